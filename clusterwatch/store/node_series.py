"""Series of one node's GPUs: each second from its blocks, or by the minute and coarser from its rollups.

In: our id of the node, the place of a GPU on it, metric names, a window. Out: ``NodeAnswer``. Reads
``raw_block`` and ``node_minute`` by node_id only, so that a distributed database asks one machine.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from clusterwatch.store import binary_reads, node_blocks, node_rollups, partitions
from clusterwatch.store.answers import (
    MINUTE_NS,
    SECOND_NS,
    Coverage,
    Gaps,
    Gathered,
    Grid,
    Horizon,
    QueryRefused,
    Window,
    choose_step,
    find_gaps,
)
from clusterwatch.store.fleet_math import Floats

RAW_STEPS_S: Final = (1, 10)
ROLLUP_STEPS_S: Final = (60, 300, 900, 3600)
STEPS_S: Final = (*RAW_STEPS_S, *ROLLUP_STEPS_S)
POINTS_CHOSEN: Final = 1_500
"""A window of 10 minutes comes by the second, one of a day by the minute."""
POINTS_MAX: Final = 86_400
"""A day by the second."""
VALUES_MAX: Final = 2_000_000
"""Points times metrics of one answer."""
ARRIVAL_S: Final = 120.0
"""After this a block has come, or is late: an agent sends within 50 s of the minute's end."""


@dataclass(frozen=True, slots=True)
class Series:
    """One metric of one GPU over the answer's grid; NaN where there is no number, with the reason in gaps."""

    metric: str
    unit: str
    of_node: bool
    """the node has one number for all its GPUs"""
    low: Floats
    mean: Floats
    """the sample itself where the step is that of the samples"""
    high: Floats
    gaps: Gaps
    coverage: Coverage
    """buckets with a number, of buckets that could have one by now"""


@dataclass(frozen=True, slots=True)
class NodeAnswer:
    """Series of one place on one node."""

    grid: Grid
    source: str
    """the table they were read from"""
    series: tuple[Series, ...]
    damaged: int
    """blocks that could not be read"""


def gpu_series(
    node_id: int,
    place: int,
    window: Window,
    *,
    metrics: Sequence[str] | None = None,
    step_s: int | None = None,
    now_ns: int | None = None,
) -> NodeAnswer:
    """Metrics of one GPU over time.

    Args:
        place: the GPU's index on its node.
        metrics: names; None: every metric the node sent in the window.
        step_s: one of ``STEPS_S``; None: the finest with at most ``POINTS_CHOSEN`` points.

    Raises:
        QueryRefused: too many points, or a step that there is none of.
    Cost: 20 metrics of 10 minutes by the second 3 ms, of a day by the minute 60 ms; one metric of a day by
    the second 200 ms.
    """
    step = choose_step(window, STEPS_S, POINTS_CHOSEN if step_s is None else POINTS_MAX, step_s)
    grid = Grid.over(window, step)
    raw = step in RAW_STEPS_S
    source = "raw_block" if raw else "node_minute"
    names = metric_names(node_id, source, grid) if metrics is None else list(dict.fromkeys(metrics))
    if grid.count * len(names) > VALUES_MAX:
        raise QueryRefused(f"at most {VALUES_MAX} values at once: ask for fewer metrics or a coarser step")
    found = (node_blocks.columns if raw else node_rollups.columns)(node_id, place, grid, names)
    horizon = horizon_of(source, now_ns or time.time_ns())
    series = (_finished(name, found, grid, horizon) for name in names)
    return NodeAnswer(grid, source, tuple(series), found.damaged)


def step_of(window: Window, step_s: int | None) -> int:
    """The step of an answer that is asked for piece by piece: only the choice of one is bounded.

    Raises:
        QueryRefused: a step that there is none of, or a window that no step fits.
    """
    if step_s in STEPS_S:
        return step_s
    return choose_step(window, STEPS_S, POINTS_CHOSEN, step_s)


def metric_names(node_id: int, table: str, grid: Grid) -> list[str]:
    """Metrics the node sent in the grid's time, by name.

    Args:
        table: ``raw_block`` or ``node_minute``.
    """
    # Two tables, two constant queries.
    query = {
        "raw_block": "SELECT DISTINCT shape_id FROM raw_block"
        " WHERE node_id = %s AND t_ns >= %s AND t_ns < %s",
        "node_minute": "SELECT DISTINCT shape_id FROM node_minute"
        " WHERE node_id = %s AND t_ns >= %s AND t_ns < %s",
    }[table]
    start_ns = grid.start_ns // MINUTE_NS * MINUTE_NS
    rows = binary_reads.fetch(query, [node_id, start_ns, grid.end_ns])
    layouts = node_blocks.layouts(shape_id for (shape_id,) in rows).values()
    return sorted({metric.name for layout in layouts for metric in layout.metrics})


def horizon_of(table: str, now_ns: int) -> Horizon:
    """What a table of series can hold now."""
    kept_from_ns = partitions.oldest_kept_ns(table, now_ns)
    return Horizon(kept_from_ns, now_ns - int(ARRIVAL_S * SECOND_NS))


def _finished(name: str, found: Gathered, grid: Grid, horizon: Horizon) -> Series:
    column = found.columns.get(name)
    if column is None:
        empty = np.full(grid.count, np.nan)
        nothing = np.zeros(grid.count, np.bool_)
        gaps = find_gaps(grid, nothing, horizon, collected=not found.rows)
        return Series(name, "", False, empty, empty, empty, gaps, Coverage(_possible(grid, horizon), 0))
    present = ~np.isnan(column.mean)
    if column.every_s > grid.step_s:  # a sample stands for the seconds until the next one
        every = column.every_s // grid.step_s
        starts = np.arange(0, grid.count, every)
        present = np.repeat(np.logical_or.reduceat(present, starts), every)[: grid.count]
    gaps = find_gaps(grid, present, horizon, collected=True)
    reported = int(np.count_nonzero(present))
    whole = reported == grid.count
    coverage = Coverage(reported if whole else max(_possible(grid, horizon), reported), reported)
    of_node = column.series_count == 1
    return Series(name, column.unit, of_node, column.low, column.mean, column.high, gaps, coverage)


def _possible(grid: Grid, horizon: Horizon) -> int:
    """Buckets that lie wholly in what is kept and has had time to come."""
    ends = grid.t_ns + grid.step_ns
    return int(((ends > horizon.kept_from_ns) & (ends <= horizon.ready_until_ns)).sum())
