"""Whether an excess stays: a sum that grows while it is there, with a bound on what one step may add.

In: an excess by step and column, and the size that matters. Out: ``Alarms``: which columns, since when, how
sure. One pause of any length opens nothing; several bad steps do. Cost: O(steps x columns).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Rule:
    """A one-sided sum: it grows by the excess, at most ``most``, less ``allowed``; open at ``opens``."""

    allowed: float
    most: float
    opens: float
    ceiling: float = 1.5
    """of the sum, in ``opens``: how long after a fault it stays open"""


@dataclass(frozen=True, slots=True)
class Alarms:
    """By column; ``onset`` and ``opened`` are rows, -1 where nothing opened.

    Attributes:
        score: highest value of the sum in units of its threshold; 1 and more has opened.
        bad_rows: rows between onset and the end with an excess above what is allowed.
    """

    score: Floats
    opened: Ints
    onset: Ints
    bad_rows: Ints

    @property
    def columns(self) -> Ints:
        return np.flatnonzero(self.opened >= 0)


def watch(excess: Floats, rule: Rule) -> Alarms:
    """The sum of each column over all rows; NaN adds nothing and takes nothing."""
    rows, columns = excess.shape
    total = np.zeros(columns)
    zero_at = np.full(columns, -1)
    opened = np.full(columns, -1)
    onset = np.full(columns, -1)
    highest = np.zeros(columns)
    change = np.nan_to_num(np.clip(excess, -rule.most, rule.most) - rule.allowed, nan=0.0)
    for row in range(rows):
        total = np.clip(total + change[row], 0.0, rule.ceiling * rule.opens)
        zero_at[total == 0.0] = row
        new = (total >= rule.opens) & (opened < 0)
        opened[new] = row
        onset[new] = zero_at[new] + 1
        np.maximum(highest, total, out=highest)
    bad = np.zeros(columns, np.int64)
    for column in np.flatnonzero(opened >= 0):
        bad[column] = int(np.sum(excess[onset[column] :, column] > rule.allowed))
    return Alarms(highest / rule.opens, opened, onset, bad)


SPLIT_MIN_ROWS = 4


def change_row(values: Floats, first: int, last: int) -> tuple[int, float, float]:
    """(row, level before, level after) of the split of a series that leaves the least squares.

    Only rows ``first`` to ``last`` may be the split; NaN rows are left out. (0, NaN, mean) where it never was
    otherwise: no row before it, or no step up.
    """
    known = np.flatnonzero(~np.isnan(values))
    if len(known) < 2:
        return 0, np.nan, np.nan
    series = values[known]
    sums, squares = np.cumsum(series), np.cumsum(series**2)
    n = np.arange(1, len(series))
    left = squares[:-1] - sums[:-1] ** 2 / n
    right = (squares[-1] - squares[:-1]) - (sums[-1] - sums[:-1]) ** 2 / (len(series) - n)
    loss = left + right
    loss[(known[1:] < first) | (known[1:] > last)] = np.inf
    split = int(np.argmin(loss)) + 1
    if not np.isfinite(loss[split - 1]):
        return 0, np.nan, float(series.mean())
    before, after = float(series[:split].mean()), float(series[split:].mean())
    whole = float(squares[-1] - sums[-1] ** 2 / len(series))
    if after <= before or loss[split - 1] > 0.8 * whole:
        return 0, np.nan, float(series.mean())
    return int(known[split]), before, after
