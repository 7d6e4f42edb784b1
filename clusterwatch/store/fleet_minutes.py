"""The rollups that lie by metric: the largest GPUs of a window, and heat maps of GPU by time.

In: cluster, metric, slots, a window (widened to whole minutes). Out: small arrays. One minute of one metric
is one row of all slots; rows are read a few at a time, so memory does not grow with the window.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from clusterwatch.store import binary_reads, fleet_planes, partitions
from clusterwatch.store.answers import (
    MINUTE_NS,
    SECOND_NS,
    Coverage,
    Gaps,
    Grid,
    Horizon,
    QueryRefused,
    Window,
    find_gaps,
)
from clusterwatch.store.fleet_math import CounterGrowth, Floats32, GaugeGrowth, MeanOver, top_places

ROWS_AT_ONCE: Final = 16
"""Minutes fetched together: 6 MB of numbers at 24,576 GPUs."""
READY_AFTER_S: Final = 180.0
"""A minute's row is written 60 s after its end, and again for what came late."""
TOP_MAX: Final = 1_000
TOP_HOURS_MAX: Final = 24
HEAT_HOURS_MAX: Final = 24
HEAT_ROWS_MAX: Final = 1_024
HEAT_COLUMNS_MAX: Final = 360


class Plane(IntEnum):
    """What one minute of one GPU is reduced to."""

    LOW = 0
    MEAN = 1
    HIGH = 2
    LAST = 3


class By(StrEnum):
    """How GPUs are ranked over a window."""

    MEAN = "mean"
    GROWTH = "growth"


@dataclass(frozen=True, slots=True)
class Ranked:
    """GPUs with the largest (or smallest) number, best first."""

    window: Window
    """whole minutes"""
    slots: NDArray[np.int64]
    values: NDArray[np.float64]
    coverage: Coverage
    """slots with a number, of those asked for"""
    minutes: Coverage
    gaps: Gaps


@dataclass(frozen=True, slots=True)
class HeatMap:
    """A number per (group of slots, bucket of minutes), NaN where there is none."""

    grid: Grid
    plane: Plane
    groups: tuple[NDArray[np.int64], ...]
    """slots of each row, in the order asked for"""
    values: Floats32
    """shape (rows, columns)"""
    coverage: Coverage
    """cells with a number"""
    gaps: Gaps


def minutes_of(cluster_id: int, metric: str, window: Window, plane: Plane) -> Iterator[tuple[int, Floats32]]:
    """(minute, one number per slot) of each stored minute that begins in the window, oldest first."""
    for t_ns, data in _rows_of(cluster_id, metric, window):
        yield t_ns, fleet_planes.decode_plane(data, plane)


def all_planes(cluster_id: int, metric: str, window: Window) -> Iterator[tuple[int, NDArray[np.float32]]]:
    """(minute, numbers of shape (4, slots)) of each stored minute, in the order of ``Plane``."""
    for t_ns, data in _rows_of(cluster_id, metric, window):
        yield t_ns, fleet_planes.decode_planes(data)


def _rows_of(cluster_id: int, metric: str, window: Window) -> Iterator[tuple[int, bytes]]:
    step_ns = ROWS_AT_ONCE * MINUTE_NS
    for first_ns in range(window.start_ns, window.end_ns, step_ns):
        rows = binary_reads.fetch(
            "SELECT t_ns, data FROM fleet_minute"
            " WHERE cluster_id = %s AND metric = %s AND t_ns >= %s AND t_ns < %s ORDER BY t_ns",
            [cluster_id, metric, first_ns, min(window.end_ns, first_ns + step_ns)],
        )
        yield from ((t_ns, data) for t_ns, data in rows)


def is_collected(cluster_id: int, metric: str) -> bool:
    """Whether any minute of the metric is stored."""
    return bool(
        binary_reads.fetch(
            "SELECT 1 FROM fleet_minute WHERE cluster_id = %s AND metric = %s LIMIT 1", [cluster_id, metric]
        )
    )


def metric_names(cluster_id: int, window: Window) -> list[str]:
    """Metrics with a stored minute in the window, by name. Cost: one step in the index for each."""
    rows = binary_reads.fetch(
        "WITH RECURSIVE one AS ("
        " (SELECT metric FROM fleet_minute WHERE cluster_id = %(cluster)s"
        "  AND t_ns >= %(start)s AND t_ns < %(end)s ORDER BY metric LIMIT 1)"
        " UNION ALL SELECT (SELECT f.metric FROM fleet_minute f WHERE f.cluster_id = %(cluster)s"
        "  AND f.t_ns >= %(start)s AND f.t_ns < %(end)s AND f.metric > one.metric ORDER BY f.metric LIMIT 1)"
        " FROM one WHERE one.metric IS NOT NULL) SELECT metric FROM one WHERE metric IS NOT NULL",
        {"cluster": cluster_id, "start": window.start_ns, "end": window.end_ns},
    )
    return [name for (name,) in rows]


def top_k(
    cluster_id: int,
    metric: str,
    window: Window,
    count: int,
    *,
    by: By = By.MEAN,
    is_counter: bool = False,
    largest: bool = True,
    slots: NDArray[np.int64] | None = None,
    slot_count: int,
    now_ns: int | None = None,
) -> Ranked:
    """The GPUs with the largest mean, or the largest growth, of a metric.

    Growth of a gauge is its newest minute mean less its oldest; that of a counter is what it counted, over
    restarts of the count. A minute weighs the same however many seconds of it came.

    Args:
        slots: only these; None: all of the cluster.
        slot_count: slots of the cluster.

    Raises:
        QueryRefused: ``count`` over ``TOP_MAX`` or a window over ``TOP_HOURS_MAX`` hours.
    Cost: 1 ms a minute at 24,576 GPUs.
    """
    if not 1 <= count <= TOP_MAX:
        raise QueryRefused(f"from 1 to {TOP_MAX} GPUs at once")
    whole = window.aligned(60).bounded(TOP_HOURS_MAX * 3600, "a ranking")
    gathered = (
        MeanOver(slot_count) if by is By.MEAN else (CounterGrowth if is_counter else GaugeGrowth)(slot_count)
    )
    plane = Plane.LAST if by is By.GROWTH and is_counter else Plane.MEAN
    grid = Grid.over(whole, 60)
    present = np.zeros(grid.count, np.bool_)
    for t_ns, row in minutes_of(cluster_id, metric, whole, plane):
        gathered.add(fitted(row, slot_count))
        present[(t_ns - grid.start_ns) // MINUTE_NS] = True
    values = gathered.result()
    asked = np.arange(slot_count) if slots is None else slots[slots < slot_count]
    best = asked[top_places(values[asked], count, largest=largest)]
    known = int(np.count_nonzero(~np.isnan(values[asked])))
    gaps = _gaps(cluster_id, metric, grid, present, now_ns)
    minutes = Coverage(grid.count, int(present.sum()))
    return Ranked(whole, best, values[best], Coverage(len(asked), known), minutes, gaps)


def heat_map(
    cluster_id: int,
    metric: str,
    slots: NDArray[np.int64],
    window: Window,
    *,
    plane: Plane = Plane.MEAN,
    rows_max: int = 512,
    columns_max: int = 240,
    now_ns: int | None = None,
) -> HeatMap:
    """One number per GPU and minute, GPUs and minutes gathered where there are more than fit.

    Where several numbers share a cell, the cell holds their mean for ``Plane.MEAN``, the smallest for
    ``LOW``, the largest for ``HIGH`` and ``LAST``.

    Args:
        slots: the GPUs, in the order of the rows.

    Raises:
        QueryRefused: no GPU, or a window over ``HEAT_HOURS_MAX`` hours.
    """
    if not len(slots):
        raise QueryRefused("no GPU was chosen")
    rows_max, columns_max = min(rows_max, HEAT_ROWS_MAX), min(columns_max, HEAT_COLUMNS_MAX)
    whole = window.aligned(60).bounded(HEAT_HOURS_MAX * 3600, "a heat map")
    minutes = Grid.over(whole, 60)
    step_s = 60 * -(-minutes.count // columns_max)
    grid = Grid.over(whole, step_s)
    per_row = -(-len(slots) // rows_max)
    starts = np.arange(0, len(slots), per_row)
    cells = _Cells(grid.count, len(starts), plane)
    present = np.zeros(minutes.count, np.bool_)
    for t_ns, row in minutes_of(cluster_id, metric, whole, plane):
        cells.add((t_ns - grid.start_ns) // grid.step_ns, fitted(row, int(slots.max()) + 1)[slots], starts)
        present[(t_ns - minutes.start_ns) // MINUTE_NS] = True
    values = cells.result()
    coverage = Coverage(values.size, int(np.count_nonzero(~np.isnan(values))))
    groups = tuple(np.split(slots, starts[1:].tolist()))
    return HeatMap(grid, plane, groups, values, coverage, _gaps(cluster_id, metric, minutes, present, now_ns))


class _Cells:
    """Cells of a heat map while minutes are added."""

    def __init__(self, columns: int, rows: int, plane: Plane) -> None:
        self._plane = plane
        self._mean = plane is Plane.MEAN
        self._total = np.zeros((columns, rows)) if self._mean else np.full((columns, rows), np.nan)
        self._count = np.zeros((columns, rows), np.int64)

    def add(self, column: int, row: Floats32, starts: NDArray[np.int64]) -> None:
        if self._mean:
            there = ~np.isnan(row)
            self._total[column] += np.add.reduceat(np.where(there, row, 0.0).astype(np.float64), starts)
            self._count[column] += np.add.reduceat(there.astype(np.int64), starts)
            return
        pick = np.fmin if self._plane is Plane.LOW else np.fmax
        self._total[column] = pick(self._total[column], pick.reduceat(row, starts))

    def result(self) -> Floats32:
        """Shape (rows, columns)."""
        if not self._mean:
            return self._total.T.astype(np.float32)
        filled = np.full(self._total.shape, np.nan)
        np.divide(self._total, self._count, out=filled, where=self._count > 0)
        return filled.T.astype(np.float32)


def fitted(row: Floats32, slot_count: int) -> Floats32:
    """A row of exactly ``slot_count`` slots: slots given later have no number in older rows."""
    if len(row) >= slot_count:
        return row[:slot_count]
    return np.concatenate([row, np.full(slot_count - len(row), np.nan, np.float32)])


def horizon(now_ns: int | None) -> Horizon:
    """What ``fleet_minute`` can hold now."""
    now = now_ns or time.time_ns()
    return Horizon(partitions.oldest_kept_ns("fleet_minute", now), now - int(READY_AFTER_S * SECOND_NS))


def _gaps(cluster_id: int, metric: str, grid: Grid, present: NDArray[np.bool_], now_ns: int | None) -> Gaps:
    collected = bool(present.any()) or is_collected(cluster_id, metric)
    return find_gaps(grid, present, horizon(now_ns), collected)
