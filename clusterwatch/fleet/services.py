"""Writes of the fleet: clusters, nodes and the slots of the map."""

from __future__ import annotations

from typing import Any

from django.db import transaction

from clusterwatch.accounts.services import audit
from clusterwatch.fleet.models import Cluster, Node
from clusterwatch.fleet.registration import Place, register_nodes
from collectors.wire.records import Hello, Inventory


def ensure_cluster(name: str, simulated: bool = False) -> Cluster:
    """The cluster of this name, made when there is none.

    Raises:
        ValueError: it exists, but is simulated where this one is not (or the other way round).
    """
    cluster, _ = Cluster.objects.get_or_create(name=name, defaults={"simulated": simulated})
    if cluster.simulated != simulated:
        raise ValueError(f"cluster {name} is {'' if cluster.simulated else 'not '}simulated")
    return cluster


def set_observe_only(name: str, observe_only: bool, actor: str) -> bool:
    """Whether anybody is told of a cluster's incidents; False where there is no such cluster."""
    with transaction.atomic():
        before = Cluster.objects.select_for_update().filter(name=name).first()
        if before is None:
            return False
        Cluster.objects.filter(pk=before.pk).update(observe_only=observe_only)
        audit(
            actor, "cluster.observe_only", name,
            {"value": before.observe_only}, {"value": observe_only},
        )  # fmt: skip
    return True


def register_node(cluster: Cluster, hello: Hello) -> Place:
    """``register_nodes`` of one."""
    return register_nodes(cluster, [hello])[0]


def note_inventory(node_id: int, inventory: Inventory, as_json: dict[str, Any]) -> None:
    """Keeps the newest inventory of a node; runs in the transaction of its record."""
    changes: dict[str, Any] = {"inventory": as_json}
    if inventory.cpu_count is not None:
        changes["cpu_count"] = inventory.cpu_count
    if inventory.memory_bytes is not None:
        changes["memory_bytes"] = inventory.memory_bytes
    Node.objects.filter(pk=node_id).update(**changes)
