"""Nodes that said hello: their rows and their slots on the map, many nodes in a few statements.

In: hellos of one cluster. Out: a place each. A gateway restart brings thousands of hellos within seconds, so
nothing here is done node by node that can be done for all.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from django.db import transaction
from django.utils import timezone

from clusterwatch.fleet.models import Cluster, Node, Slot
from collectors.wire.records import GpuIdentity, Hello

_HELLO_FIELDS: Final = (
    "machine_id", "boot_id", "epoch", "agent_version", "rack", "leaf", "nvlink_domain", "cpu_count",
    "memory_bytes", "last_hello_at",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Place:
    """A node and its open slots, as the gateway needs them."""

    cluster_id: int
    node_id: int
    slots: tuple[int, ...]
    """slot numbers in the order of the hello's GPUs; one for a node without GPUs"""


@dataclass(slots=True)
class _Seats:
    """The slots of one node, and what has to change for its GPUs."""

    node: Node
    gpus: Sequence[GpuIdentity]
    numbers: dict[int | None, int]
    """slot numbers by GPU index, as far as they stay"""
    missing: list[GpuIdentity | None] = field(default_factory=list)
    closing: list[int] = field(default_factory=list)
    """primary keys of slots whose GPU left"""

    @property
    def slots(self) -> tuple[int, ...]:
        if not self.gpus:
            return tuple(sorted(self.numbers.values()))
        return tuple(self.numbers[gpu.index] for gpu in self.gpus)


def register_nodes(cluster: Cluster, hellos: Sequence[Hello]) -> list[Place]:
    """Writes what hellos say of their nodes and gives slots to GPUs that have none.

    A GPU that left its place closes that slot's history; its successor gets a new number.

    Args:
        hellos: of this cluster, each node once.

    Cost: five statements, three more when slots change.
    """
    with transaction.atomic():
        nodes = _write_nodes(cluster, hellos)
        held: dict[int, dict[int | None, Slot]] = defaultdict(dict)
        for slot in Slot.objects.filter(node__in=[node.pk for node in nodes.values()], until__isnull=True):
            held[slot.node_id][slot.gpu_index] = slot
        seats = [_seats(nodes[hello.node], hello.gpus, held[nodes[hello.node].pk]) for hello in hellos]
        changed = [one for one in seats if one.missing or one.closing]
        if changed:
            _replace(cluster, changed)
    return [Place(cluster.pk, one.node.pk, one.slots) for one in seats]


def _write_nodes(cluster: Cluster, hellos: Sequence[Hello]) -> Mapping[str, Node]:
    """The nodes' rows by name, made or brought up to date. Rows are written in one order everywhere."""
    names = [hello.node for hello in hellos]
    known = {node.name: node for node in Node.objects.filter(cluster=cluster, name__in=names)}
    rows = [
        _updated(known.get(hello.node) or Node(cluster=cluster, name=hello.node), hello)
        for hello in sorted(hellos, key=lambda hello: hello.node)
    ]
    for row in rows:
        row.pk = None  # the name is the key: another gateway may have made the row meanwhile
    Node.objects.bulk_create(
        rows, update_conflicts=True, unique_fields=["cluster", "name"], update_fields=_HELLO_FIELDS
    )
    return {row.name: row for row in rows}


def _updated(node: Node, hello: Hello) -> Node:
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
    return node


def _seats(node: Node, gpus: Sequence[GpuIdentity], held: Mapping[int | None, Slot]) -> _Seats:
    """What the node has, and what it lacks."""
    if not gpus and held:
        # A driver that forgot its GPUs for a while is no change of hardware: only a real list closes slots.
        return _Seats(node, gpus, {index: slot.number for index, slot in held.items()})
    wanted: list[GpuIdentity | None] = list(gpus) or [None]
    missing = [gpu for gpu in wanted if not _fits(held.get(_place(gpu)), gpu)]
    leaving = held.keys() - {_place(gpu) for gpu in wanted}
    leaving |= held.keys() & {_place(gpu) for gpu in missing}
    numbers = {index: slot.number for index, slot in held.items() if index not in leaving}
    return _Seats(node, gpus, numbers, missing, [held[index].pk for index in leaving])


def _place(gpu: GpuIdentity | None) -> int | None:
    return gpu.index if gpu else None


def _fits(slot: Slot | None, gpu: GpuIdentity | None) -> bool:
    """The slot still holds this GPU; a uuid that either side does not know is no change."""
    if slot is None:
        return False
    return gpu is None or not gpu.uuid or not slot.gpu_uuid or gpu.uuid == slot.gpu_uuid


def _replace(cluster: Cluster, changed: Sequence[_Seats]) -> None:
    """Closes what was replaced and opens new numbers, under the lock of the cluster's counter."""
    locked = Cluster.objects.select_for_update().get(pk=cluster.pk)
    closing = [pk for one in changed for pk in one.closing]
    if closing:
        Slot.objects.filter(pk__in=closing).update(until=timezone.now())
    made = []
    for one in changed:
        for gpu in one.missing:
            one.numbers[_place(gpu)] = locked.slot_count
            made.append(_slot(locked, one.node, gpu))
            locked.slot_count += 1
    Slot.objects.bulk_create(made)
    locked.slots_version += 1
    locked.save(update_fields=["slot_count", "slots_version"])


def _slot(cluster: Cluster, node: Node, gpu: GpuIdentity | None) -> Slot:
    return Slot(
        cluster=cluster,
        number=cluster.slot_count,
        node=node,
        gpu_index=_place(gpu),
        gpu_uuid=(gpu.uuid or "") if gpu else "",
        gpu_serial=(gpu.serial or "") if gpu else "",
        gpu_model=(gpu.model or "") if gpu else "",
    )
