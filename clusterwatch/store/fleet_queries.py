"""Questions about a whole cluster or a part of it: newest numbers, percentiles over time.

In: a cluster's id, metric names, slots, windows. Out: dataclasses with coverage and reasons. Rankings and
heat maps are in ``fleet_minutes``, past states in ``past_states``, one GPU over time in ``node_series``.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from clusterwatch.store import binary_reads, fleet_minutes, hot, node_blocks, node_series, partitions
from clusterwatch.store.answers import (
    MINUTE_NS,
    SECOND_NS,
    Coverage,
    Gaps,
    Grid,
    Horizon,
    QueryRefused,
    Window,
    choose_step,
    find_gaps,
)
from clusterwatch.store.fleet_math import Floats, percentiles

FRESH_S: Final = 10.0
PERCENTILE_POINTS: Final = (1, 25, 50, 75, 99)
PERCENTILE_STEPS_S: Final = (10, 60, 300, 900, 3600)
PERCENTILE_COLUMNS: Final = ("mean", "low", "high", "p1", "p25", "p50", "p75", "p99")
PERCENTILE_POINTS_MAX: Final = 9_000
"""A day by 10 s."""
FLEET: Final = "fleet"


@dataclass(frozen=True, slots=True)
class Latest:
    """Newest number of every slot."""

    values: NDArray[np.float32]
    """NaN where there is none, or an old one"""
    seen_ns: NDArray[np.int64]
    """when it was heard, 0: never"""
    silent: NDArray[np.bool_]
    """the newest number is older than asked for"""
    coverage: Coverage


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Percentiles over the GPUs of a scope, bucket by bucket; NaN where there is none."""

    grid: Grid
    source: str
    columns: dict[str, Floats]
    """each of ``PERCENTILE_COLUMNS``"""
    count: NDArray[np.int64]
    """values in a bucket"""
    gaps: Gaps
    coverage: Coverage


def latest(
    cluster_id: int, metric: str, slot_count: int, *, max_age_s: float = FRESH_S, now_ns: int | None = None
) -> Latest:
    """Newest number of a metric for every slot, from hot state. Raises ``redis.RedisError``."""
    now = now_ns or time.time_ns()
    found = hot.read_metric(cluster_id, metric, slot_count)
    known = found.seen_ns > 0
    silent = known & (now - found.seen_ns > max_age_s * SECOND_NS)
    values = np.where(silent, np.float32(np.nan), found.values)
    reported = int(np.count_nonzero(~np.isnan(values)))
    return Latest(values, found.seen_ns, silent, Coverage(slot_count, reported))


def scope_of_job(job_id: int) -> str:
    """The name of a job's rows in ``fleet_percentile``."""
    return f"job:{job_id}"


def stored_percentiles(
    cluster_id: int,
    scope: str,
    metric: str,
    window: Window,
    *,
    step_s: int | None = None,
    now_ns: int | None = None,
) -> Percentiles:
    """Percentiles of the whole fleet or of a job, as pulse wrote them every 10 s.

    With a step over 10 s ``mean`` weighs by the number of values, ``low`` and ``high`` are the extremes, and
    a percentile is the mean of the 10-second ones: percentiles cannot be joined exactly.

    Args:
        scope: ``FLEET`` or ``scope_of_job(id)``.
        step_s: one of ``PERCENTILE_STEPS_S``; None: the finest that fits.
    """
    step = choose_step(window, PERCENTILE_STEPS_S, PERCENTILE_POINTS_MAX, step_s)
    grid = Grid.over(window, step)
    rows = binary_reads.fetch_table(
        "SELECT t_ns, count, mean, low, high, p1, p25, p50, p75, p99 FROM fleet_percentile"
        " WHERE cluster_id = %s AND scope = %s AND metric = %s AND t_ns >= %s AND t_ns < %s ORDER BY t_ns",
        [cluster_id, scope, metric, grid.start_ns, grid.end_ns],
        [("t_ns", ">i8"), ("count", ">i4"), *((name, ">f4") for name in PERCENTILE_COLUMNS)],
    )
    count, columns = _gathered(grid, rows)
    known = bool(len(rows)) or _has_percentiles(cluster_id, scope, metric)
    horizon = Horizon(_kept_from("fleet_percentile", now_ns), (now_ns or time.time_ns()) - 20 * SECOND_NS)
    gaps = find_gaps(grid, count > 0, horizon, known)
    coverage = Coverage(grid.count, int((count > 0).sum()))
    return Percentiles(grid, "fleet_percentile", columns, count, gaps, coverage)


def _gathered(grid: Grid, rows: NDArray[Any]) -> tuple[NDArray[np.int64], dict[str, Floats]]:
    """Rows of 10 s in the buckets of a grid."""
    places = grid.places(rows["t_ns"].astype(np.int64))
    weight = rows["count"].astype(np.float64)
    count = np.zeros(grid.count)
    np.maximum.at(count, places, weight)
    samples = np.bincount(places, minlength=grid.count).astype(np.float64)
    weights = np.bincount(places, weight, grid.count)
    columns: dict[str, Floats] = {}
    with np.errstate(invalid="ignore", divide="ignore"):
        for name in PERCENTILE_COLUMNS:
            numbers = rows[name].astype(np.float64)
            if name in ("low", "high"):
                columns[name] = np.full(grid.count, np.nan)
                (np.fmin if name == "low" else np.fmax).at(columns[name], places, numbers)
            elif name == "mean":
                columns[name] = np.bincount(places, numbers * weight, grid.count) / weights
            else:
                columns[name] = np.bincount(places, numbers, grid.count) / samples
    return count.astype(np.int64), columns


def _has_percentiles(cluster_id: int, scope: str, metric: str) -> bool:
    return bool(
        binary_reads.fetch(
            "SELECT 1 FROM fleet_percentile WHERE cluster_id = %s AND scope = %s AND metric = %s LIMIT 1",
            [cluster_id, scope, metric],
        )
    )


# --- of a rack or a node: exact ---------------------------------------------------------------------------

GROUP_BLOCKS_MAX: Final = 1_500
"""Blocks decoded for one answer: 0.3 s. Two nodes for 12 hours, 64 for 20 minutes."""
GROUP_STEPS_S: Final = (1, 10, 60, 300, 900, 3600)
GROUP_POINTS: Final = 400


def group_percentiles(
    cluster_id: int,
    metric: str,
    node_ids: Sequence[int],
    slots: NDArray[np.int64],
    window: Window,
    *,
    step_s: int | None = None,
    now_ns: int | None = None,
) -> Percentiles:
    """Exact percentiles over the GPUs of some nodes (a rack, or one node).

    Below a minute over every sample of every GPU in a bucket, from raw blocks; from a minute on over the
    minute means of the GPUs, from ``fleet_minute``: a bucket of five minutes holds five of each.

    Raises:
        QueryRefused: too many blocks or points; the text says which step would do.
    """
    blocks_needed = len(node_ids) * (int(window.length_s // 60) + 1)
    steps = GROUP_STEPS_S if blocks_needed <= GROUP_BLOCKS_MAX else GROUP_STEPS_S[2:]
    if step_s in GROUP_STEPS_S[:2] and step_s not in steps:
        raise QueryRefused(
            f"{blocks_needed} blocks hold these seconds, at most {GROUP_BLOCKS_MAX} are read: choose"
            " resolution_s of 60 or more, fewer nodes or a shorter window"
        )
    step = choose_step(window, steps, GROUP_POINTS if step_s is None else PERCENTILE_POINTS_MAX, step_s)
    grid = Grid.over(window, step)
    now = now_ns or time.time_ns()
    if step < 60:
        samples, source = _raw_samples(metric, node_ids, grid), "raw_block"
        horizon = node_series.horizon_of(source, now)
    else:
        samples, source = _minute_samples(cluster_id, metric, slots, grid), "fleet_minute"
        horizon = fleet_minutes.horizon(now)
    there = ~np.isnan(samples)
    count = there.sum(axis=(1, 2))
    collected = bool(count.any()) or fleet_minutes.is_collected(cluster_id, metric)
    gaps = find_gaps(grid, count > 0, horizon, collected)
    coverage = Coverage(grid.count * len(slots), int(there.any(axis=2).sum()))
    columns = _columns_of(samples.reshape(grid.count, -1))
    return Percentiles(grid, source, columns, count.astype(np.int64), gaps, coverage)


def _columns_of(samples: Floats) -> dict[str, Floats]:
    """Every one of ``PERCENTILE_COLUMNS`` of each row."""
    there = ~np.isnan(samples)
    counts = there.sum(axis=1)
    mean = np.full(len(samples), np.nan)
    np.divide(np.where(there, samples, 0.0).sum(axis=1), counts, out=mean, where=counts > 0)
    found = percentiles(samples, (0, 100, *PERCENTILE_POINTS))
    names = ("low", "high", *(f"p{point}" for point in PERCENTILE_POINTS))
    return {"mean": mean} | {name: found[:, column] for column, name in enumerate(names)}


def _raw_samples(metric: str, node_ids: Sequence[int], grid: Grid) -> Floats:
    """Samples of shape (buckets, GPUs, seconds)."""
    nothing = np.empty((0, grid.count * grid.step_s))
    parts = [node_blocks.seconds_of(node_id, metric, grid) for node_id in node_ids]
    joined = np.concatenate([nothing, *parts])
    return joined.reshape(-1, grid.count, grid.step_s).transpose(1, 0, 2)


def _minute_samples(cluster_id: int, metric: str, slots: NDArray[np.int64], grid: Grid) -> Floats:
    """Minute means of shape (buckets, GPUs, minutes)."""
    per_bucket = grid.step_s // 60
    samples = np.full((grid.count, len(slots), per_bucket), np.nan)
    window = Window(grid.start_ns, grid.end_ns)
    size = int(slots.max(initial=0)) + 1
    for t_ns, row in fleet_minutes.minutes_of(cluster_id, metric, window, fleet_minutes.Plane.MEAN):
        bucket, minute = divmod((t_ns - grid.start_ns) // MINUTE_NS, per_bucket)
        samples[bucket, :, minute] = fleet_minutes.fitted(row, size)[slots]
    return samples


def _kept_from(table: str, now_ns: int | None) -> int:
    return partitions.oldest_kept_ns(table, now_ns or time.time_ns())
