"""Which slots are where: of a rack, of nodes, and what a slot is called. Closed slots have names too."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from clusterwatch.fleet.models import Node, Slot


@dataclass(frozen=True, slots=True)
class SlotName:
    """A place of the map in words."""

    node_id: int
    node: str
    gpu: int | None
    """None: the node itself, which has no GPU"""


def nodes_of_rack(cluster_id: int, rack: str, most: int) -> list[int]:
    """Ids of at most ``most`` nodes of a rack, by name."""
    nodes = Node.objects.filter(cluster_id=cluster_id, rack=rack).order_by("name")
    return list(nodes.values_list("pk", flat=True)[:most])


def slots_of_nodes(node_ids: Sequence[int]) -> NDArray[np.int64]:
    """Open slots of some nodes, in number order."""
    slots = Slot.objects.filter(node_id__in=node_ids, until__isnull=True).order_by("number")
    return np.array(slots.values_list("number", flat=True), np.int64)


def names(cluster_id: int, slots: Iterable[int] | None = None) -> dict[int, SlotName]:
    """What slots are called; None: every open slot of the cluster. Cost: one query, linear in slots."""
    found = Slot.objects.filter(cluster_id=cluster_id)
    found = found.filter(until__isnull=True) if slots is None else found.filter(number__in=list(slots))
    rows = found.order_by("number").values_list("number", "node_id", "node__name", "gpu_index")
    return {number: SlotName(node_id, node, gpu) for number, node_id, node, gpu in rows}
