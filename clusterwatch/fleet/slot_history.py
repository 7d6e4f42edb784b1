"""Who sat on which slot in a given minute, for what is built from stored rollups.

In: the history of a cluster's slots. Out: ``store.fleet_build.SlotTable``. The history is read again only
when ``slots_version`` moved.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from clusterwatch.fleet.models import Cluster, Slot
from clusterwatch.store.fleet_build import SlotTable

Ints = NDArray[np.int64]
_NEVER = 2**63 - 1


@dataclass(frozen=True, slots=True)
class _History:
    """Slots as columns, ordered by node, GPU index and time."""

    node_id: Ints
    gpu_index: Ints
    number: Ints
    since_ns: Ints
    until_ns: Ints


def slots_at(cluster_id: int, t_ns: int) -> SlotTable:
    """The slots that were open in the minute from ``t_ns``; of two on one place the later one.

    A place's first slot counts for all time before it: a node may send minutes of before its first hello.
    Raises: ``Cluster.DoesNotExist``.
    """
    cluster = Cluster.objects.only("slots_version", "slot_count").get(pk=cluster_id)
    history = _history(cluster_id, cluster.slots_version)
    minute_end_ns = t_ns + 60 * 10**9
    first_of_place = np.ones(len(history.number), np.bool_)
    first_of_place[1:] = (np.diff(history.node_id) != 0) | (np.diff(history.gpu_index) != 0)
    begun = (history.since_ns < minute_end_ns) | first_of_place
    rows = np.flatnonzero(begun & (history.until_ns > t_ns))
    node_id, place = history.node_id[rows], history.gpu_index[rows]
    last = np.ones(len(rows), np.bool_)
    last[:-1] = (np.diff(node_id) != 0) | (np.diff(place) != 0)
    return _table(cluster, node_id[last], history.number[rows][last])


def _table(cluster: Cluster, node_id: Ints, number: Ints) -> SlotTable:
    """One row per node, its slots in the order of their GPUs."""
    nodes, first, counts = np.unique(node_id, return_index=True, return_counts=True)
    numbers = np.full((len(nodes), int(counts.max(initial=0))), -1, np.int64)
    row = np.repeat(np.arange(len(nodes)), counts)
    numbers[row, np.arange(len(number)) - first[row]] = number
    return SlotTable(cluster.slots_version, cluster.slot_count, nodes, numbers)


@lru_cache(maxsize=16)
def _history(cluster_id: int, slots_version: int) -> _History:
    rows = Slot.objects.filter(cluster_id=cluster_id).order_by("node_id", "gpu_index", "since", "number")
    columns = list(zip(*rows.values_list("node_id", "gpu_index", "number", "since", "until"), strict=True))
    node_id, gpu_index, number, since, until = columns or ((), (), (), (), ())
    return _History(
        np.array(node_id, np.int64),
        np.array([-1 if index is None else index for index in gpu_index], np.int64),
        np.array(number, np.int64),
        np.array([_ns(moment) for moment in since], np.int64),
        np.array([_NEVER if moment is None else _ns(moment) for moment in until], np.int64),
    )


def _ns(moment: datetime) -> int:
    return int(moment.timestamp()) * 10**9 + moment.microsecond * 1_000
