"""Reads of the fleet: clusters, nodes and who sits on which slot."""

from __future__ import annotations

from django.db.models import QuerySet

from clusterwatch.fleet.models import Cluster, Node, Slot


def clusters() -> QuerySet[Cluster]:
    """Every cluster, real ones first."""
    return Cluster.objects.order_by("simulated", "name")


def cluster_named(name: str) -> Cluster | None:
    return Cluster.objects.filter(name=name).first()


def slot_count(cluster_id: int) -> int:
    """Slots given so far: the length of the cluster's arrays in hot state; 0 where there is no cluster."""
    return Cluster.objects.filter(pk=cluster_id).values_list("slot_count", flat=True).first() or 0


def nodes_of(cluster_id: int) -> QuerySet[Node]:
    """The cluster's nodes by name."""
    return Node.objects.filter(cluster_id=cluster_id).order_by("name")


def open_slots(cluster_id: int) -> QuerySet[Slot]:
    """The map as it is now: one row per place, by number."""
    slots = Slot.objects.filter(cluster_id=cluster_id, until__isnull=True)
    return slots.select_related("node").order_by("number")


def slots_of_node(node_id: int, *, closed: bool = False) -> QuerySet[Slot]:
    """A node's slots by number; with ``closed`` its history too."""
    slots = Slot.objects.filter(node_id=node_id)
    return (slots if closed else slots.filter(until__isnull=True)).order_by("number")
