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


_RAMP_MIN: Final = 4
"""Rows; a shorter rise is a step that noise blurs."""
_RAMP_MAX: Final = 48
_RAMP_GAIN: Final = 0.85
"""A ramp is taken where it leaves less than this of what the best step leaves."""


def change_row(values: Floats, first: int, last: int) -> int:
    """The row where a series began to change: of the step, or of the ramp, that leaves the least squares.

    Only rows ``first`` to ``last`` may be the step, and a ramp that holds one of them may begin as much
    earlier as it is long; NaN rows are left out. 0 where it never was otherwise: no row before it, no rise.
    """
    known = np.flatnonzero(~np.isnan(values))
    if len(known) < 2:
        return 0
    series = np.clip(values[known], -_MOST, _MOST)
    may = (known[1:] >= first) & (known[1:] <= last)
    left = np.where(may, _step_losses(series), np.inf)
    split = int(np.argmin(left)) + 1
    loss = float(left[split - 1])
    if not np.isfinite(loss):
        return 0
    before, after = float(series[:split].mean()), float(series[split:].mean())
    whole = float(((series - series.mean()) ** 2).sum())
    if after - before <= _RISE_MIN * abs(after) or loss > 0.8 * whole:
        return 0
    ramp_loss, begin = _ramp(series, split)
    return int(known[begin if ramp_loss < _RAMP_GAIN * loss else split])


def _step_losses(series: Floats) -> Floats:
    """Squares left by a step before each row but the first."""
    sums, squares = np.cumsum(series), np.cumsum(series**2)
    n = np.arange(1, len(series))
    left = squares[:-1] - sums[:-1] ** 2 / n
    losses: Floats = left + (squares[-1] - squares[:-1]) - (sums[-1] - sums[:-1]) ** 2 / (len(series) - n)
    return losses


def _ramp(series: Floats, middle: int) -> tuple[float, int]:
    """(squares left, first row) of the best ramp from one level to another around a row."""
    rows = np.arange(len(series))
    begins = np.arange(max(1, middle - _RAMP_MAX), middle + 1)
    lengths = np.arange(_RAMP_MIN, _RAMP_MAX + 1)
    begin, length = (grid.reshape(-1) for grid in np.meshgrid(begins, lengths, indexing="ij"))
    holds = begin + length > middle
    begin, length = begin[holds], length[holds]
    if not len(begin):
        return np.inf, middle
    rise = np.clip((rows - begin[:, None] + 1) / length[:, None], 0.0, 1.0)
    rise -= rise.mean(axis=1, keepdims=True)
    centred = series - series.mean()
    spread = (rise**2).sum(axis=1)
    losses = (centred**2).sum() - (rise @ centred) ** 2 / np.maximum(spread, 1e-12)
    best = int(np.argmin(losses))
    return float(losses[best]), int(begin[best])
