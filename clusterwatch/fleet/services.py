"""Writes of the fleet: clusters, nodes and the slots of the map."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.db import transaction
from django.utils import timezone

from clusterwatch.fleet.models import Cluster, Node, Slot
from collectors.wire.records import GpuIdentity, Hello, Inventory


@dataclass(frozen=True, slots=True)
class Place:
    """A node and its open slots, as the gateway needs them."""

    cluster_id: int
    node_id: int
    slots: tuple[int, ...]
    """slot numbers in the order of the hello's GPUs; one for a node without GPUs"""


def ensure_cluster(name: str, simulated: bool = False) -> Cluster:
    """The cluster of this name, made when there is none.

    Raises:
        ValueError: it exists, but is simulated where this one is not (or the other way round).
    """
    cluster, _ = Cluster.objects.get_or_create(name=name, defaults={"simulated": simulated})
    if cluster.simulated != simulated:
        raise ValueError(f"cluster {name} is {'' if cluster.simulated else 'not '}simulated")
    return cluster


def register_node(cluster: Cluster, hello: Hello) -> Place:
    """Writes what a hello says of its node and gives slots to GPUs that have none.

    A GPU that left its place closes that slot's history; its successor gets a new number.
    """
    with transaction.atomic():
        known = Node.objects.filter(cluster=cluster, name=hello.node).first()
        node = known or Node.objects.get_or_create(cluster=cluster, name=hello.node)[0]
        _update(node, hello)
        return Place(cluster.pk, node.pk, _slots(cluster, node, hello.gpus))


def note_inventory(node_id: int, inventory: Inventory, as_json: dict[str, Any]) -> None:
    """Keeps the newest inventory of a node; runs in the transaction of its record."""
    changes: dict[str, Any] = {"inventory": as_json}
    if inventory.cpu_count is not None:
        changes["cpu_count"] = inventory.cpu_count
    if inventory.memory_bytes is not None:
        changes["memory_bytes"] = inventory.memory_bytes
    Node.objects.filter(pk=node_id).update(**changes)


def _update(node: Node, hello: Hello) -> None:
    node.machine_id = hello.machine_id
    node.boot_id = hello.boot_id
    node.epoch = hello.epoch
    node.agent_version = hello.agent_version
    node.rack = hello.rack or node.rack
    node.leaf = hello.leaf or node.leaf
    node.nvlink_domain = hello.nvlink_domain or node.nvlink_domain
    node.cpu_count = hello.cpu_count if hello.cpu_count is not None else node.cpu_count
    node.memory_bytes = hello.memory_bytes if hello.memory_bytes is not None else node.memory_bytes
    node.last_hello_at = timezone.now()
    node.save()


def _slots(cluster: Cluster, node: Node, gpus: Sequence[GpuIdentity]) -> tuple[int, ...]:
    """Numbers of the open slots, one per GPU in the given order, or the node's own."""
    open_slots = {slot.gpu_index: slot for slot in Slot.objects.filter(node=node, until__isnull=True)}
    if not gpus and open_slots:
        # A driver that forgot its GPUs for a while is no change of hardware: only a real list closes slots.
        return tuple(slot.number for slot in sorted(open_slots.values(), key=lambda slot: slot.number))
    wanted: list[GpuIdentity | None] = list(gpus) or [None]
    missing = [gpu for gpu in wanted if not _fits(open_slots.get(_place(gpu)), gpu)]
    gone = [slot for index, slot in open_slots.items() if index not in {_place(gpu) for gpu in wanted}]
    numbers = {index: slot.number for index, slot in open_slots.items()}
    if missing or gone:
        numbers = _replace(cluster, node, missing, open_slots, gone)
    return tuple(numbers[_place(gpu)] for gpu in wanted)


def _place(gpu: GpuIdentity | None) -> int | None:
    return gpu.index if gpu else None


def _fits(slot: Slot | None, gpu: GpuIdentity | None) -> bool:
    """The slot still holds this GPU; a uuid that either side does not know is no change."""
    if slot is None:
        return False
    return gpu is None or not gpu.uuid or not slot.gpu_uuid or gpu.uuid == slot.gpu_uuid


def _replace(
    cluster: Cluster,
    node: Node,
    missing: Sequence[GpuIdentity | None],
    open_slots: dict[int | None, Slot],
    gone: Sequence[Slot],
) -> dict[int | None, int]:
    """Closes what was replaced and opens new numbers, under the lock of the cluster's counter."""
    locked = Cluster.objects.select_for_update().get(pk=cluster.pk)
    places = [_place(gpu) for gpu in missing]
    closing = [slot.pk for slot in gone] + [open_slots[p].pk for p in places if p in open_slots]
    Slot.objects.filter(pk__in=closing).update(until=timezone.now())
    made = [
        Slot(
            cluster=locked,
            number=locked.slot_count + offset,
            node=node,
            gpu_index=_place(gpu),
            gpu_uuid=(gpu.uuid or "") if gpu else "",
            gpu_serial=(gpu.serial or "") if gpu else "",
            gpu_model=(gpu.model or "") if gpu else "",
        )
        for offset, gpu in enumerate(missing)
    ]
    Slot.objects.bulk_create(made)
    locked.slot_count += len(made)
    locked.slots_version += 1
    locked.save(update_fields=["slot_count", "slots_version"])
    kept = {index: slot.number for index, slot in open_slots.items() if slot.pk not in set(closing)}
    return kept | {slot.gpu_index: slot.number for slot in made}
