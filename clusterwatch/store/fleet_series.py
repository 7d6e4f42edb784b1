"""Writers of what is kept per fleet: minutes by metric, percentiles and maps every 10 s.

In: numpy arrays over slots, numbers of a scope. Out: rows of ``fleet_minute``, ``fleet_percentile`` and
``map_frame``; the bytes are those of ``fleet_planes``. A row that is there already is written over in
``fleet_minute`` (late data) and stays in the others (a new leader repeats the second of the old one).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from typing import Any, Final

import numpy as np
import psycopg
from django.db import connection, transaction
from numpy.typing import NDArray

from clusterwatch.store import fleet_planes, partitions

FLEET_SCOPE: Final = "fleet"
MODES: Final = ("state", "job", "power", "temperature", "sm_activity", "lateness", "link_errors")
"""Colour modes a map is kept in."""


@dataclass(frozen=True, slots=True)
class PercentileRow:
    """One metric over one scope at one time, in the metric's unit."""

    cluster_id: int
    scope: str
    """``FLEET_SCOPE`` or ``job_scope(id)``"""
    metric: str
    t_ns: int
    count: int
    """values it is made of"""
    mean: float
    low: float
    high: float
    p1: float
    p25: float
    p50: float
    p75: float
    p99: float


_PERCENTILE_COLUMNS: Final = tuple(field.name for field in fields(PercentileRow))
_PERCENTILE_KINDS: Final = ("bigint", "text", "text", "bigint", "integer", *["real"] * 8)


def job_scope(job_id: int) -> str:
    """The scope of a job's rows in ``fleet_percentile``."""
    return f"job:{job_id}"


def percentile_row(
    cluster_id: int, scope: str, metric: str, t_ns: int, values: NDArray[np.floating[Any]]
) -> PercentileRow | None:
    """The row over the finite values; None without any. Cost: a partial sort, 0.3 ms at 24,576."""
    there = values[np.isfinite(values)].astype(np.float64)
    if not len(there):
        return None
    low, p1, p25, p50, p75, p99, high = np.percentile(there, (0, 1, 25, 50, 75, 99, 100)).tolist()
    mean = float(there.mean())
    return PercentileRow(cluster_id, scope, metric, t_ns, len(there), mean, low, high, p1, p25, p50, p75, p99)


def write_percentiles(rows: Sequence[PercentileRow]) -> None:
    """Adds rows; one that is there already stays. Raises ``django.db.Error``."""
    if not rows:
        return
    partitions.ensure("fleet_percentile", {row.t_ns for row in rows})
    columns = [list(column) for column in zip(*map(astuple, rows), strict=True)]
    arrays = ", ".join(f"%s::{kind}[]" for kind in _PERCENTILE_KINDS)
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO fleet_percentile ({', '.join(_PERCENTILE_COLUMNS)})"  # noqa: S608  our own names
            f" SELECT * FROM unnest({arrays}) ON CONFLICT DO NOTHING",
            columns,
        )


def write_map_frames(
    cluster_id: int, t_ns: int, slots_version: int, frames: Mapping[str, NDArray[np.uint8]]
) -> None:
    """Keeps the map of one moment: mode -> one byte per slot. Raises ``django.db.Error``."""
    partitions.ensure("map_frame", [t_ns])
    _execute_many(
        "INSERT INTO map_frame (cluster_id, mode, t_ns, slots_version, data) VALUES (%s, %s, %s, %s, %b)"
        " ON CONFLICT DO NOTHING",
        (
            (cluster_id, mode, t_ns, slots_version, fleet_planes.encode_frame(slots))
            for mode, slots in frames.items()
        ),
    )


def write_fleet_minute(
    cluster_id: int,
    t_ns: int,
    slots_version: int,
    node_count: int,
    planes: Mapping[str, NDArray[np.float32]] | Iterable[tuple[str, NDArray[np.float32]]],
) -> int:
    """Writes one minute of some metrics, over what is there; returns how many.

    Args:
        t_ns: start of the minute.
        node_count: nodes whose rollups are in it.
        planes: metric -> (4, slots): low, mean, high, last, NaN where there is none. An iterable of pairs is
            consumed one by one, so that the planes of all metrics need not be in memory together.

    Raises: ``django.db.Error``.
    """
    pairs = planes.items() if isinstance(planes, Mapping) else planes
    partitions.ensure("fleet_minute", [t_ns])
    return _execute_many(
        "INSERT INTO fleet_minute (cluster_id, metric, t_ns, slots_version, node_count, data)"
        " VALUES (%s, %s, %s, %s, %s, %b) ON CONFLICT (cluster_id, metric, t_ns) DO UPDATE"
        " SET slots_version = excluded.slots_version, node_count = excluded.node_count, data = excluded.data",
        (
            (cluster_id, metric, t_ns, slots_version, node_count, fleet_planes.encode_planes(four))
            for metric, four in pairs
        ),
    )


def _execute_many(statement: str, rows: Iterable[tuple[Any, ...]]) -> int:
    """Runs a statement per row in one transaction, bytes as bytes: Django's cursor would send them as hex."""
    count = 0
    with (
        transaction.atomic(),
        connection.wrap_database_errors,
        psycopg.Cursor(connection.connection) as cursor,
    ):
        for row in rows:
            cursor.execute(statement, row)
            count += 1
    return count
