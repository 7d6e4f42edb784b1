"""Reads of series: raw values of a node, one-minute rollups, events of a window.

In: ids and windows [start, end) in ns UTC. Out: plain dataclasses and numpy arrays. Every list is bounded by
its caller's window or by ``limit``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import numpy as np
from django.db import connection
from numpy.typing import NDArray

from collectors.wire import blocks
from collectors.wire.records import BlockMetric

MINUTE_NS: Final = 60 * 10**9
EVENTS_MAX: Final = 10_000
RAW_WINDOW_MAX_MINUTES: Final = 24 * 60


@dataclass(frozen=True, slots=True)
class RawSeries:
    """One metric of one node at its full resolution."""

    unit: str
    t_ns: NDArray[np.int64]
    """length T, rising"""
    values: NDArray[np.float64]
    """shape (T, series), NaN where no sample was taken"""


@dataclass(frozen=True, slots=True)
class Rollup:
    """One metric of one node by the minute; arrays of shape (T, series), NaN where there was no sample."""

    t_ns: NDArray[np.int64]
    low: NDArray[np.float32]
    mean: NDArray[np.float32]
    high: NDArray[np.float32]
    last: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """One event as it was stored; the four rank fields are None for events of the node itself."""

    t_ns: int
    node_id: int
    source: str
    kind: str
    severity: str
    text: str
    fields: dict[str, str]
    job_id: int | None
    attempt: int | None
    world: str | None
    rank: int | None


def raw_values(node_id: int, metric: str, start_ns: int, end_ns: int) -> RawSeries | None:
    """Values of one metric of a node; None when it has none in the window.

    Two blocks of one minute (an agent that restarted) are joined: the later one fills what the first lacks.
    Cost: linear in the values of all metrics of the window's blocks; they are decoded whole.
    Raises:
        ValueError: the window is longer than ``RAW_WINDOW_MAX_MINUTES``.
    """
    if end_ns - start_ns > RAW_WINDOW_MAX_MINUTES * MINUTE_NS:
        raise ValueError(
            f"a raw window may be {RAW_WINDOW_MAX_MINUTES} minutes long: read the rollup instead"
        )
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT r.t_ns, s.metrics::text, r.data FROM raw_block r JOIN block_shape s ON s.id = r.shape_id"
            " WHERE r.node_id = %s AND r.t_ns > %s AND r.t_ns < %s AND s.metrics @> %s::jsonb"
            " ORDER BY r.t_ns, r.sequence",
            [node_id, start_ns - MINUTE_NS, end_ns, f'[{{"name": {msgspec.json.encode(metric).decode()}}}]'],
        )
        rows = cursor.fetchall()
    minutes: dict[int, NDArray[np.float64]] = {}
    unit = ""
    for minute_ns, headers, data in rows:
        header, values = _decode_one(headers, bytes(data), metric)
        unit = header.unit
        known = minutes.get(minute_ns)
        same = known is not None and known.shape == values.shape
        minutes[minute_ns] = (
            np.where(np.isnan(known), values, known) if known is not None and same else values
        )
    return _join_minutes(unit, minutes, start_ns, end_ns) if minutes else None


def rollup(node_id: int, metric: str, start_ns: int, end_ns: int) -> Rollup | None:
    """One-minute rollup of a node's metric, by the minutes that begin in the window; None without any."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT n.t_ns, n.low[m.start:m.stop], n.mean[m.start:m.stop], n.high[m.start:m.stop],"
            " n.last[m.start:m.stop] FROM node_minute n JOIN ("
            "  SELECT shape_id, first_index AS start, first_index + series - 1 AS stop"
            "  FROM block_metric WHERE metric = %s) m ON m.shape_id = n.shape_id"
            " WHERE n.node_id = %s AND n.t_ns >= %s AND n.t_ns < %s ORDER BY n.t_ns, n.sequence",
            [metric, node_id, start_ns, end_ns],
        )
        rows = cursor.fetchall()
    if not rows:
        return None
    width = max(len(row[1]) for row in rows)
    minutes: dict[int, NDArray[np.float32]] = {}
    for minute_ns, *parts in rows:
        values = np.array([_padded(part, width) for part in parts], np.float32)
        known = minutes.get(minute_ns)
        minutes[minute_ns] = values if known is None else np.where(np.isnan(values), known, values)
    stacked = np.stack(list(minutes.values()), axis=1)
    return Rollup(np.array(list(minutes), np.int64), *stacked)


def events(
    start_ns: int,
    end_ns: int,
    *,
    cluster_id: int | None = None,
    node_id: int | None = None,
    job_id: int | None = None,
    device: str | None = None,
    limit: int = 1_000,
) -> list[StoredEvent]:
    """Events of a window, newest first; the given ids narrow it.

    Args:
        device: ``kind/name`` of one that a poller told of; has no index, so give the poller's node too.
    Raises:
        ValueError: ``limit`` is over ``EVENTS_MAX``.
    """
    if limit > EVENTS_MAX:
        raise ValueError(f"at most {EVENTS_MAX} events at once")
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT t_ns, node_id, source, kind, severity, text, fields::text, job_id, attempt, world, rank"
            " FROM event WHERE t_ns >= %(start)s AND t_ns < %(end)s"
            " AND (%(cluster)s::bigint IS NULL OR cluster_id = %(cluster)s)"
            " AND (%(node)s::bigint IS NULL OR node_id = %(node)s)"
            " AND (%(job)s::bigint IS NULL OR job_id = %(job)s)"
            " AND (%(device)s::text IS NULL OR fields ->> 'device' = %(device)s)"
            " ORDER BY t_ns DESC, sequence DESC LIMIT %(limit)s",
            {
                "start": start_ns,
                "end": end_ns,
                "cluster": cluster_id,
                "node": node_id,
                "job": job_id,
                "device": device,
                "limit": limit,
            },
        )
        rows: list[list[Any]] = [list(row) for row in cursor.fetchall()]
    for row in rows:
        row[6] = msgspec.json.decode(row[6], type=dict[str, str])
    return [StoredEvent(*row) for row in rows]


def _decode_one(headers: str, data: bytes, metric: str) -> tuple[BlockMetric, NDArray[np.float64]]:
    """(header, values of shape (samples, series)) of one metric of a block."""
    metrics = msgspec.json.decode(headers, type=list[BlockMetric])
    place = next(i for i, one in enumerate(metrics) if one.name == metric)
    header = metrics[place]
    multiples = np.frombuffer(blocks.decode(metrics, data)[place], np.int64)
    values = np.where(multiples == blocks.MISSING, np.nan, multiples * header.resolution)
    return header, values.reshape(header.series, header.samples).T


def _join_minutes(
    unit: str, minutes: dict[int, NDArray[np.float64]], start_ns: int, end_ns: int
) -> RawSeries:
    width = max(values.shape[1] for values in minutes.values())
    times, parts = [], []
    for minute_ns, values in sorted(minutes.items()):
        step_ns = MINUTE_NS // len(values)
        times.append(minute_ns + step_ns * np.arange(len(values), dtype=np.int64))
        parts.append(np.pad(values, ((0, 0), (0, width - values.shape[1])), constant_values=np.nan))
    t_ns = np.concatenate(times)
    kept = (t_ns >= start_ns) & (t_ns < end_ns)
    return RawSeries(unit, t_ns[kept], np.concatenate(parts)[kept])


def _padded(values: Sequence[Any], width: int) -> list[Any]:
    return [*values, *[None] * (width - len(values))]
