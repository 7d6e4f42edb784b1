"""Clusters, nodes and GPU slots. A slot is a place in the packed arrays of hot state; it is never reused."""

from __future__ import annotations

from django.db import models


class Cluster(models.Model):
    """One training cluster. A simulated one is marked and stays out of alerts, goodput and /metrics."""

    name = models.CharField(max_length=255, unique=True)
    simulated = models.BooleanField(default=False)
    observe_only = models.BooleanField(default=False)
    """Incidents open and are shown, and nobody is told: for a site that learns what is usual there."""
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


class Part(models.Model):
    """A piece of hardware with a serial number. What it is part of now and was before: ``PartPlacement``."""

    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="parts")
    kind = models.CharField(max_length=20)
    """``gpu``, ``optics``, ``psu``, ... as ``parts.kind_of`` names it"""
    serial = models.CharField(max_length=64)
    model = models.CharField(max_length=128, blank=True)
    gpu_uuid = models.CharField(max_length=255, blank=True)
    first_seen_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["cluster", "kind", "serial"], name="one_part_per_serial"),
        ]
        indexes = [models.Index(fields=["serial"]), models.Index(fields=["gpu_uuid"])]

    def __str__(self) -> str:
        return f"{self.kind} {self.serial}"


class PartPlacement(models.Model):
    """A part in a place, from when to when; open while ``until`` is None. Two open ones: it is told twice."""

    part = models.ForeignKey(Part, on_delete=models.CASCADE, related_name="placements")
    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="+")
    host = models.CharField(max_length=255)
    """the node's name, or of a device that belongs to none its kind and name, as ``switch/leaf-3``"""
    node = models.ForeignKey(Node, null=True, on_delete=models.SET_NULL, related_name="placements")
    slot = models.CharField(max_length=255)
    """where on that host: ``gpu/3``, ``port/mlx5_0/1``, ``psu/1``"""
    since = models.DateTimeField()
    seen_at = models.DateTimeField()
    """when it was last told to be there"""
    until = models.DateTimeField(null=True)
    ended = models.CharField(max_length=20, blank=True)
    """``replaced``: another serial sits there now; ``moved``: it is elsewhere now"""

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["cluster", "host", "slot"],
                condition=models.Q(until__isnull=True),
                name="one_part_per_slot",
            ),
        ]
        indexes = [
            models.Index(fields=["part", "-since"]),
            models.Index(fields=["cluster", "host", "slot", "-since"]),
        ]

    def __str__(self) -> str:
        return f"{self.host} {self.slot}"
