"""Clusters, nodes and GPU slots. A slot is a place in the packed arrays of hot state; it is never reused."""

from __future__ import annotations

from django.db import models


class Cluster(models.Model):
    """One training cluster. A simulated one is marked and stays out of alerts, goodput and /metrics."""

    name = models.CharField(max_length=255, unique=True)
    simulated = models.BooleanField(default=False)
    created_at = models.DateTimeField(auto_now_add=True)
    slot_count = models.PositiveIntegerField(default=0)
    """Slots given so far; the next slot is this number."""
    slots_version = models.PositiveIntegerField(default=0)
    """Rises with each new slot; live frames carry it."""

    def __str__(self) -> str:
        return self.name


class Node(models.Model):
    """A machine that runs an agent, known by (cluster, name) and bound to its machine id."""

    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="nodes")
    name = models.CharField(max_length=255)
    machine_id = models.CharField(max_length=255)
    boot_id = models.CharField(max_length=255, blank=True)
    epoch = models.CharField(max_length=255, blank=True)
    agent_version = models.CharField(max_length=255, blank=True)
    rack = models.CharField(max_length=255, blank=True)
    leaf = models.CharField(max_length=255, blank=True)
    nvlink_domain = models.CharField(max_length=255, blank=True)
    cpu_count = models.PositiveIntegerField(null=True)
    memory_bytes = models.BigIntegerField(null=True)
    inventory = models.JSONField(null=True)
    first_seen_at = models.DateTimeField(auto_now_add=True)
    last_hello_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["cluster", "name"], name="one_node_per_name")]

    def __str__(self) -> str:
        return self.name


class Slot(models.Model):
    """A place in the map: a GPU of a node, or the node itself when it has none (``gpu_index`` None).

    ``until`` closes a slot's history when another GPU takes the place; the number is never given again.
    """

    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="slots")
    number = models.PositiveIntegerField()
    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="slots")
    gpu_index = models.PositiveSmallIntegerField(null=True)
    gpu_uuid = models.CharField(max_length=255, blank=True)
    gpu_serial = models.CharField(max_length=255, blank=True)
    gpu_model = models.CharField(max_length=255, blank=True)
    since = models.DateTimeField(auto_now_add=True)
    until = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["cluster", "number"], name="slot_numbers_are_never_reused"),
            models.UniqueConstraint(
                fields=["node", "gpu_index"],
                condition=models.Q(until__isnull=True),
                nulls_distinct=False,
                name="one_open_slot_per_place",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.number}"
