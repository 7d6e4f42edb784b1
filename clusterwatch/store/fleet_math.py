"""Numbers over slots and time: percentiles, means, growth, the largest ones, buckets. Pure; NaN is none."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Floats32 = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Buckets:
    """Samples gathered into buckets along the first axis; NaN where a bucket has none."""

    low: Floats
    mean: Floats
    high: Floats


def percentiles(values: Floats, points: Sequence[float]) -> Floats:
    """Percentiles of each row over what is there, by linear interpolation between the two nearest.

    Args:
        values: shape (rows, n).
        points: 0 to 100.

    Returns: shape (rows, points), NaN for a row without a number. Cost: one sort of each row.
    """
    if not values.shape[1]:
        return np.full((len(values), len(points)), np.nan)
    ordered = np.sort(values, axis=1)  # NaN comes last
    counts = np.count_nonzero(~np.isnan(values), axis=1)
    place = np.asarray(points, np.float64)[None, :] / 100 * np.maximum(counts - 1, 0)[:, None]
    below = np.floor(place).astype(np.int64)
    above = np.minimum(below + 1, np.maximum(counts - 1, 0)[:, None])
    low = np.take_along_axis(ordered, below, axis=1)
    high = np.take_along_axis(ordered, above, axis=1)
    found: Floats = low + (high - low) * (place - below)
    return found


class MeanOver:
    """Mean of each column over the rows added, of what is there."""

    def __init__(self, width: int) -> None:
        self._total = np.zeros(width)
        self._count = np.zeros(width, np.int64)

    def add(self, row: Floats32) -> None:
        there = ~np.isnan(row)
        np.add(self._total, row, out=self._total, where=there)
        self._count += there

    def result(self) -> Floats:
        found = np.full(len(self._total), np.nan)
        np.divide(self._total, self._count, out=found, where=self._count > 0)
        return found


class GaugeGrowth:
    """Newest number of each column less its oldest; NaN where fewer than two rows have one."""

    def __init__(self, width: int) -> None:
        self._first = np.full(width, np.nan)
        self._last = np.full(width, np.nan)
        self._count = np.zeros(width, np.int64)

    def add(self, row: Floats32) -> None:
        there = ~np.isnan(row)
        np.copyto(self._first, row, where=there & (self._count == 0))
        np.copyto(self._last, row, where=there)
        self._count += there

    def result(self) -> Floats:
        return np.where(self._count >= 2, self._last - self._first, np.nan)


class CounterGrowth:
    """What the counter of each column counted over the rows added.

    A number below the one before it is a restart of the count: what it then shows was counted since. Rows
    without a number are passed over. NaN where fewer than two rows have one.
    """

    def __init__(self, width: int) -> None:
        self._last = np.full(width, np.nan)
        self._total = np.zeros(width)
        self._count = np.zeros(width, np.int64)

    def add(self, row: Floats32) -> None:
        there = ~np.isnan(row)
        step = row - self._last
        step = np.where(step < 0, row, step)
        np.add(self._total, step, out=self._total, where=there & (self._count > 0))
        np.copyto(self._last, row, where=there)
        self._count += there

    def result(self) -> Floats:
        return np.where(self._count >= 2, self._total, np.nan)


def top_places(values: Floats, count: int, *, largest: bool = True) -> NDArray[np.int64]:
    """Indices of the ``count`` largest (or smallest) numbers, best first; equal ones by index."""
    known = np.flatnonzero(~np.isnan(values))
    keys = -values[known] if largest else values[known]
    if count < len(known):
        edge = np.partition(keys, count - 1)[count - 1]
        near = keys <= edge
        known, keys = known[near], keys[near]
    order = np.lexsort((known, keys))[:count]
    found: NDArray[np.int64] = known[order]
    return found


def in_buckets(values: Floats, factor: int) -> Buckets:
    """Every ``factor`` rows gathered into one.

    Args:
        values: shape (buckets * factor, ...).
    """
    grouped = values.reshape(-1, factor, *values.shape[1:])
    with warnings.catch_warnings():
        # A bucket without a sample is a NaN here, which numpy would warn about.
        warnings.simplefilter("ignore", RuntimeWarning)
        return Buckets(np.nanmin(grouped, axis=1), np.nanmean(grouped, axis=1), np.nanmax(grouped, axis=1))
