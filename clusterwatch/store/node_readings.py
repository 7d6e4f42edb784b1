"""What a node knows of its parts now: one packed row per node, replaced by each newer one.

In: ``Readings`` records as their agents packed them, checked at ingest. Out: values by entity with quality,
source and true age. A row never goes back: of one spool the higher number is newer, of two the later time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from django.db import connection

from clusterwatch.store import binary_reads
from collectors.wire import readings

DAY_NS: Final = 86_400 * 10**9
KEPT_DAYS: Final = 30
"""Of a node that sends nothing any more."""
STALE_AFTER_S: Final = 90.0
"""Beyond two periods of its source: an agent sends what it knows at least once a minute."""
UNITS: Final = (
    "bytes_per_s", "mib_per_s", "per_s", "delta_count", "count", "total", "ratio", "percent", "mask", "bytes",
    "gbps", "mbps", "gts", "mhz", "hz", "rpm", "dbm", "lpm", "pa", "ms", "us", "ma", "w", "c", "s", "v", "a",
)  # fmt: skip
"""What names of metrics end with, longer ones before those that they end with."""


class NodeRow(NamedTuple):
    """One record as it is stored; ``t_ns`` is of the node's clock."""

    node_id: int
    cluster_id: int
    t_ns: int
    epoch: str
    sequence: int
    data: bytes

    def replaces(self, other: NodeRow) -> bool:
        """Clocks of one spool may be set back, its numbers only rise."""
        return self.sequence > other.sequence if self.epoch == other.epoch else self.t_ns >= other.t_ns


@dataclass(frozen=True, slots=True)
class SourceState:
    """A source of a node's agent. ``age_s`` None: it gave nothing since the agent started."""

    name: str
    state: str
    """``ok``, or what keeps it from giving values"""
    age_s: float | None
    stale: bool


@dataclass(frozen=True, slots=True)
class Reading:
    """One value; None has its reason in ``quality``."""

    metric: str
    value: float | int | None
    unit: str | None
    """last part of the metric's name, as in ``UNITS``; None where it ends with none"""
    quality: str
    source: str
    age_s: float
    stale: bool
    labels: dict[str, str]


@dataclass(frozen=True, slots=True)
class NodeReadings:
    """Everything a node knew when it sent its newest record ``age_s`` ago."""

    age_s: float
    entities: dict[str, tuple[Reading, ...]]
    sources: tuple[SourceState, ...]
    left_out: int
    """values that the node read and did not send"""


_COLUMNS: Final = ("node_id", "cluster_id", "t_ns", "epoch", "sequence", "data", "received_ns")
_UPSERT: Final = (
    "INSERT INTO node_readings AS kept (" + ", ".join(_COLUMNS) + ") VALUES {rows}"  # noqa: S608  our names
    " ON CONFLICT (node_id) DO UPDATE SET "
    + ", ".join(f"{name} = excluded.{name}" for name in _COLUMNS if name != "node_id")
    + " WHERE CASE WHEN kept.epoch = excluded.epoch THEN kept.sequence < excluded.sequence"
    " ELSE kept.t_ns <= excluded.t_ns END"
)


def put(rows: Iterable[NodeRow], received_ns: int) -> None:
    """Replaces what is older; runs in the caller's transaction. Raises what the database says."""
    newest: dict[int, NodeRow] = {}
    for row in rows:
        before = newest.get(row.node_id)
        if before is None or row.replaces(before):
            newest[row.node_id] = row
    if not newest:
        return
    # In one order everywhere, so that two gateways never wait for each other in a circle.
    values = [part for node in sorted(newest) for part in (*newest[node], received_ns)]
    marks = f"({', '.join(['%s'] * len(_COLUMNS))})"
    with connection.cursor() as cursor:
        cursor.execute(_UPSERT.format(rows=", ".join([marks] * len(newest))), values)


def latest(node_id: int, now_ns: int) -> NodeReadings | None:
    """What the node knows; None when it never sent any.

    Raises:
        WireError: the row is damaged.
    """
    rows = binary_reads.fetch(
        "SELECT t_ns, received_ns, data FROM node_readings WHERE node_id = %s", [node_id]
    )
    if not rows:
        return None
    t_ns, received_ns, data = rows[0]
    return unpacked(readings.unpack(data), age_s(t_ns, received_ns, now_ns))


def age_s(t_ns: int, received_ns: int, now_ns: int) -> float:
    """Of a row that a node's clock dates; one that runs ahead makes nothing fresher than its coming here."""
    return max(now_ns - t_ns, now_ns - received_ns, 0) / 1e9


def drop_unseen(now_ns: int) -> int:
    """Deletes the rows of nodes that sent nothing for ``KEPT_DAYS``; returns how many."""
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM node_readings WHERE received_ns < %s", [now_ns - KEPT_DAYS * DAY_NS])
        return int(cursor.rowcount)


def unit_of(metric: str) -> str | None:
    """The unit a metric's name ends with; ``bytes_read_per_s`` has what is counted before the verb."""
    if metric.endswith("_per_s") and "bytes_" in metric:
        return "bytes_per_s"
    return next((unit for unit in UNITS if metric.endswith(f"_{unit}")), None)


def unpacked(table: readings.Table, sent_s: float) -> NodeReadings:
    """Values by entity, of a table that was sent ``sent_s`` ago."""
    sources = tuple(_source(word, sent_s) for word in table.sources)
    entities: dict[str, list[Reading]] = {}
    labels = table.label or [0] * len(table.value)
    for place, metric, value, quality, of, label in zip(
        table.entity, table.metric, table.value, table.quality, table.source, labels, strict=True
    ):
        name, source = table.metrics[metric], sources[of]
        entities.setdefault(table.entities[place], []).append(
            Reading(
                metric=name,
                value=value,
                unit=unit_of(name),
                quality=table.qualities[quality],
                source=source.name,
                age_s=sent_s if source.age_s is None else source.age_s,
                stale=source.stale,
                labels=table.labels[label] if table.labels else {},
            )
        )
    found = {entity: tuple(values) for entity, values in entities.items()}
    return NodeReadings(sent_s, found, sources, table.left_out)


def _source(word: readings.SourceWord, sent_s: float) -> SourceState:
    age_s = None if word.age_s is None else word.age_s + sent_s
    stale = age_s is None or age_s > STALE_AFTER_S + 2 * word.period_s
    return SourceState(word.name, word.state, age_s, stale)
