"""Which pieces of hardware nodes and devices tell by serial, out of their packed rows.

In: a cluster's nodes and devices. Out: the samples ``part_count`` that have a serial, by entity,
of each node and device. A row that cannot be read says nothing; one that is old says nothing either.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from clusterwatch.store import binary_reads, node_readings, packed_rows
from clusterwatch.store.node_facts import ROW_STALE_AFTER_S

PART: Final = "part_count"
BATCH: Final = 256
WORDS_MAX: Final = 2_048
"""of one node or device"""
_METRICS: Final = frozenset({PART})
_OF_NODES: Final = "SELECT node_id, t_ns, received_ns, data FROM node_readings WHERE node_id = ANY(%s)"
_OF_DEVICES: Final = (
    "SELECT id, kind, name, node_name, t_ns, received_ns, period_s, data FROM store_device"
    " WHERE cluster_id = %s AND id > %s ORDER BY id LIMIT %s"
)


@dataclass(frozen=True, slots=True)
class PartWord:
    """One part: ``entity`` as its source names the place it sits in, labels with ``serial`` and more."""

    entity: str
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class DeviceWords:
    """What one device tells. ``host``: of the node that it belongs to; empty: of none."""

    kind: str
    name: str
    host: str
    words: tuple[PartWord, ...]


def of_nodes(node_ids: Sequence[int], now_ns: int) -> Iterator[tuple[int, tuple[PartWord, ...]]]:
    """(node, its parts) of nodes that are heard; one query for ``BATCH`` nodes."""
    for start in range(0, len(node_ids), BATCH):
        rows = binary_reads.fetch(_OF_NODES, [list(node_ids[start : start + BATCH])])
        for node_id, t_ns, received_ns, data in rows:
            words = _words(data, t_ns, received_ns, now_ns, ROW_STALE_AFTER_S)
            if words is not None:
                yield node_id, words


def of_devices(cluster_id: int, now_ns: int) -> Iterator[DeviceWords]:
    """The parts of devices that are heard; one query for ``BATCH`` devices."""
    newest = 0
    while rows := binary_reads.fetch(_OF_DEVICES, [cluster_id, newest, BATCH]):
        newest = rows[-1][0]
        for _id, kind, name, host, t_ns, received_ns, period_s, data in rows:
            words = _words(data, t_ns, received_ns, now_ns, ROW_STALE_AFTER_S + 2 * period_s)
            if words is not None:
                yield DeviceWords(kind, name, host, words)


def _words(
    data: bytes, t_ns: int, received_ns: int, now_ns: int, stale_after_s: float
) -> tuple[PartWord, ...] | None:
    """None: the row is too old to say anything, or damaged."""
    age_s = node_readings.age_s(t_ns, received_ns, now_ns)
    if age_s > stale_after_s:
        return None
    try:
        told = list(packed_rows.told(data, _METRICS, age_s))[:WORDS_MAX]
    except packed_rows.DAMAGED:
        return None
    return tuple(PartWord(one.entity, one.labels) for one in told if one.value and one.labels.get("serial"))
