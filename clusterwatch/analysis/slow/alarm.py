"""Whether an excess stays: a sum that grows while it is there, with a bound on what one step may add.

In: an excess by step and column, and the size that matters. Out: ``Sums``: which columns, since when, how
sure. One pause of any length opens nothing; several bad steps do. Cost: O(steps x columns).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Rule:
    """A one-sided sum: it grows by the excess, at most ``most``, less ``allowed``; open at ``opens``."""

    allowed: float
    most: float
    opens: float
    ceiling: float = 1.5
    """of the sum, in ``opens``: how long after a fault it stays open"""


@dataclass(slots=True)
class Sums:
    """The sum of each column as rows come, and what became of it. Rows are numbers that only grow.

    Attributes:
        total: what the sum is now.
        highest: the most it ever was, in units of its threshold; 1 and more has opened.
        zero_at: last row at which it was 0.
        opened: row at which it reached its threshold first, -1 before.
        onset: row at which it began to grow then, -1 before.
    """

    total: Floats
    highest: Floats
    zero_at: Ints
    opened: Ints
    onset: Ints

    @classmethod
    def of(cls, columns: int) -> Sums:
        never = np.full(columns, -1, np.int64)
        return cls(np.zeros(columns), np.zeros(columns), never, never.copy(), never.copy())

    def add(self, row: int, excess: Floats, rule: Rule) -> None:
        """One row more; NaN adds nothing and takes nothing."""
        change = np.clip(excess, -rule.most, rule.most) - rule.allowed
        change = np.where(np.isnan(change), 0.0, change)
        self.total = np.clip(self.total + change, 0.0, rule.ceiling * rule.opens)
        self.zero_at[self.total == 0.0] = row
        new = (self.total >= rule.opens) & (self.opened < 0)
        self.opened[new] = row
        self.onset[new] = self.zero_at[new] + 1
        np.maximum(self.highest, self.total / rule.opens, out=self.highest)

    def close(self) -> Ints:
        """Forgets what opened and fell back to 0; returns the columns."""
        over = np.flatnonzero((self.opened >= 0) & (self.total == 0.0))
        self.opened[over] = self.onset[over] = -1
        self.highest[over] = 0.0
        return over

    @property
    def columns(self) -> Ints:
        """Those that opened."""
        return np.flatnonzero(self.opened >= 0)


def watch(excess: Floats, rule: Rule) -> Sums:
    """The sums of all columns over all rows."""
    sums = Sums.of(excess.shape[1])
    for row in range(len(excess)):
        sums.add(row, excess[row], rule)
    return sums


_MOST: Final = 20.0
"""A logarithm or a number of seconds beyond this is as good as any other."""
_RISE_MIN: Final = 0.5
"""of the level after: a smaller rise is noise of something that was always there"""


def change_row(values: Floats, first: int, last: int) -> int:
    """The row of the split of a series that leaves the least squares.

    Only rows ``first`` to ``last`` may be the split; NaN rows are left out. 0 where it never was otherwise:
    no row before it, or no step up.
    """
    known = np.flatnonzero(~np.isnan(values))
    if len(known) < 2:
        return 0
    series = np.clip(values[known], -_MOST, _MOST)
    sums, squares = np.cumsum(series), np.cumsum(series**2)
    n = np.arange(1, len(series))
    left = squares[:-1] - sums[:-1] ** 2 / n
    right = (squares[-1] - squares[:-1]) - (sums[-1] - sums[:-1]) ** 2 / (len(series) - n)
    loss = left + right
    loss[(known[1:] < first) | (known[1:] > last)] = np.inf
    split = int(np.argmin(loss)) + 1
    if not np.isfinite(loss[split - 1]):
        return 0
    before, after = float(series[:split].mean()), float(series[split:].mean())
    whole = float(squares[-1] - sums[-1] ** 2 / len(series))
    if after - before <= _RISE_MIN * abs(after) or loss[split - 1] > 0.8 * whole:
        return 0
    return int(known[split])
