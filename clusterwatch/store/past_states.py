"""The cluster as it was: the map at any kept time, and every number of some nodes in one exact second.

In: cluster or nodes, a time. Out: the stored frame at or before it (pulse keeps one every 10 s), or the
values of that second from the blocks of the nodes.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from clusterwatch.store import binary_reads, fleet_planes, node_blocks, node_series, partitions
from clusterwatch.store.answers import MINUTE_NS, SECOND_NS, QueryRefused, Reason

FRAME_AGE_MAX_S: Final = 60
"""An older frame tells nothing about the time asked for."""
NODES_MAX: Final = 64


@dataclass(frozen=True, slots=True)
class MapFrame:
    """One byte per slot, as the live map had it; what a byte means depends on the mode (live/README.md)."""

    t_ns: int
    mode: str
    slots_version: int
    slots: NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class NodeSecond:
    """Every metric of one node in one second."""

    node_id: int
    values: dict[str, NDArray[np.float64]]
    """metric -> one number per series, NaN where no sample was taken"""
    units: dict[str, str]
    reason: Reason | None
    """why there is nothing at all"""


def map_at(cluster_id: int, mode: str, t_ns: int, *, now_ns: int | None = None) -> MapFrame | Reason:
    """The newest stored frame at or before a time, not older than ``FRAME_AGE_MAX_S``; else why none."""
    rows = binary_reads.fetch(
        "SELECT t_ns, slots_version, data FROM map_frame"
        " WHERE cluster_id = %s AND mode = %s AND t_ns <= %s AND t_ns > %s ORDER BY t_ns DESC LIMIT 1",
        [cluster_id, mode, t_ns, t_ns - FRAME_AGE_MAX_S * SECOND_NS],
    )
    if not rows:
        return _why_no_frame(cluster_id, mode, t_ns, now_ns or time.time_ns())
    found_ns, slots_version, data = rows[0]
    return MapFrame(found_ns, mode, slots_version, fleet_planes.decode_frame(data))


def _why_no_frame(cluster_id: int, mode: str, t_ns: int, now_ns: int) -> Reason:
    if t_ns < partitions.oldest_kept_ns("map_frame", now_ns):
        return Reason.EXPIRED
    if t_ns > now_ns:
        return Reason.NOT_YET
    known = binary_reads.fetch(
        "SELECT 1 FROM map_frame WHERE cluster_id = %s AND mode = %s LIMIT 1", [cluster_id, mode]
    )
    return Reason.NO_DATA if known else Reason.NOT_COLLECTED


def second_of_nodes(
    node_ids: Sequence[int], t_ns: int, *, metrics: Sequence[str] | None = None, now_ns: int | None = None
) -> list[NodeSecond]:
    """Every number of some nodes in the second that holds ``t_ns``, in the order asked for.

    Raises:
        QueryRefused: more than ``NODES_MAX`` nodes.
    """
    if len(node_ids) > NODES_MAX:
        raise QueryRefused(f"the exact second of at most {NODES_MAX} nodes: a rack, not the cluster")
    minute_ns = t_ns // MINUTE_NS * MINUTE_NS
    rows = binary_reads.fetch(
        "SELECT node_id, t_ns, shape_id, data FROM raw_block"
        " WHERE node_id = ANY(%s) AND t_ns = %s ORDER BY node_id, sequence",
        [list(node_ids), minute_ns],
    )
    by_node: dict[int, list[tuple[int, int, bytes]]] = {}
    for node_id, *rest in rows:
        by_node.setdefault(node_id, []).append((rest[0], rest[1], rest[2]))
    reason = _why_no_block(t_ns, now_ns or time.time_ns())
    return [
        _second_of(node_id, by_node.get(node_id, []), t_ns - minute_ns, metrics, reason)
        for node_id in node_ids
    ]


def _second_of(
    node_id: int,
    rows: Sequence[tuple[int, int, bytes]],
    offset_ns: int,
    metrics: Sequence[str] | None,
    reason: Reason,
) -> NodeSecond:
    values: dict[str, NDArray[np.float64]] = {}
    units: dict[str, str] = {}
    for part in node_blocks.decoded(rows, metrics, slice(None)):
        units.update({one.name: one.unit for one in part.layout.metrics if one.name in part.values})
        for name, array in part.values.items():
            sample = offset_ns * array.shape[-1] // MINUTE_NS
            values[name] = array[0, :, sample]
    return NodeSecond(node_id, values, units, None if values else reason)


def _why_no_block(t_ns: int, now_ns: int) -> Reason:
    horizon = node_series.horizon_of("raw_block", now_ns)
    if t_ns < horizon.kept_from_ns:
        return Reason.EXPIRED
    return Reason.NOT_YET if t_ns > horizon.ready_until_ns else Reason.NO_DATA
