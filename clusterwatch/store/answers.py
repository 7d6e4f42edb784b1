"""What answers of the series queries are made of: windows, grids, coverage, and the reason of each gap.

Pure. Times are integer ns UTC; every window is [start, end).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

SECOND_NS: Final = 10**9
MINUTE_NS: Final = 60 * SECOND_NS
GAPS_MAX: Final = 50
"""Gaps told of one series; the others are counted."""


class QueryRefused(ValueError):
    """A question that is too large or makes no sense; the text says what would do."""


class Reason(StrEnum):
    """Why a number is not there."""

    NO_DATA = "no_data"
    """nothing came for this time: the agent, the link or the device was away"""
    NOT_COLLECTED = "not_collected"
    """what came from there does not hold this metric"""
    EXPIRED = "expired"
    """older than this class of data is kept"""
    SILENT = "silent"
    """its newest value is older than the age asked for"""
    NOT_YET = "not_yet"
    """so recent that blocks and rollups of it are still to come"""


@dataclass(frozen=True, slots=True)
class Window:
    """[start, end) in ns UTC."""

    start_ns: int
    end_ns: int

    def __post_init__(self) -> None:
        if self.end_ns <= self.start_ns:
            raise QueryRefused("the window is empty: `from` must be before `to`")

    @property
    def length_s(self) -> float:
        return (self.end_ns - self.start_ns) / SECOND_NS

    def aligned(self, step_s: int) -> Window:
        """The smallest window of whole steps around this one."""
        step_ns = step_s * SECOND_NS
        return Window(self.start_ns // step_ns * step_ns, -(-self.end_ns // step_ns) * step_ns)

    def bounded(self, longest_s: float, what: str) -> Window:
        """Itself. Raises ``QueryRefused`` when it is longer than ``longest_s``."""
        if self.length_s > longest_s:
            raise QueryRefused(f"{what} may cover {longest_s / 3600:g} h, this window has more")
        return self


@dataclass(frozen=True, slots=True)
class Grid:
    """``count`` buckets of ``step_s`` seconds from ``start_ns``."""

    start_ns: int
    step_s: int
    count: int

    @classmethod
    def over(cls, window: Window, step_s: int) -> Grid:
        whole = window.aligned(step_s)
        return cls(whole.start_ns, step_s, (whole.end_ns - whole.start_ns) // (step_s * SECOND_NS))

    @property
    def step_ns(self) -> int:
        return self.step_s * SECOND_NS

    @property
    def end_ns(self) -> int:
        return self.start_ns + self.count * self.step_ns

    @property
    def t_ns(self) -> NDArray[np.int64]:
        """Start of each bucket."""
        return self.start_ns + self.step_ns * np.arange(self.count, dtype=np.int64)

    def places(self, t_ns: NDArray[np.int64]) -> NDArray[np.int64]:
        """Bucket of each time, -1 outside."""
        found = (t_ns - self.start_ns) // self.step_ns
        return np.where((found >= 0) & (found < self.count), found, -1)


@dataclass(frozen=True, slots=True)
class Column:
    """One metric on a grid: NaN where there is no number."""

    unit: str
    series_count: int
    """of the node; 1: one number for all its GPUs"""
    every_s: int
    """seconds between samples"""
    low: NDArray[np.float64]
    mean: NDArray[np.float64]
    high: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Gathered:
    """What the rows of one node held."""

    columns: dict[str, Column]
    """by metric"""
    rows: int
    damaged: int
    """rows that could not be read"""


@dataclass(frozen=True, slots=True)
class Coverage:
    """How much of what was asked for is in the answer."""

    expected: int
    reported: int

    @property
    def ratio(self) -> float:
        return self.reported / self.expected if self.expected else 0.0


@dataclass(frozen=True, slots=True)
class Gap:
    """A stretch [start, end) without numbers."""

    start_ns: int
    end_ns: int
    reason: Reason


@dataclass(frozen=True, slots=True)
class Gaps:
    """The gaps of one series, oldest first; at most ``GAPS_MAX`` are told."""

    told: tuple[Gap, ...]
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class Horizon:
    """What can be there at all: data before ``kept_from_ns`` is dropped, after ``ready_until_ns`` to come."""

    kept_from_ns: int
    ready_until_ns: int


def find_gaps(grid: Grid, present: NDArray[np.bool_], horizon: Horizon, collected: bool) -> Gaps:
    """Every stretch of buckets without a number, with its reason.

    Args:
        present: length ``grid.count``.
        collected: False when the metric is not sent from there at all.
    """
    if present.all():
        return Gaps(())
    starts = grid.t_ns
    reasons = np.full(grid.count, 1 if collected else 2, np.int8)
    reasons[starts + grid.step_ns > horizon.ready_until_ns] = 3
    reasons[starts + grid.step_ns <= horizon.kept_from_ns] = 4
    reasons[present] = 0
    words = (None, Reason.NO_DATA, Reason.NOT_COLLECTED, Reason.NOT_YET, Reason.EXPIRED)
    edges = np.flatnonzero(np.diff(reasons, prepend=-1, append=-1))
    gaps = [
        Gap(grid.start_ns + first * grid.step_ns, grid.start_ns + end * grid.step_ns, word)
        for first, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
        if (word := words[int(reasons[first])]) is not None
    ]
    return Gaps(tuple(gaps[:GAPS_MAX]), max(0, len(gaps) - GAPS_MAX))


def choose_step(window: Window, steps_s: Sequence[int], points_max: int, asked_s: int | None) -> int:
    """The step of an answer: the one asked for, else the finest of ``steps_s`` within ``points_max``.

    Raises:
        QueryRefused: the step asked for is none of ``steps_s``, or makes too many points.
    """
    fitting = [step_s for step_s in steps_s if window.length_s / step_s <= points_max]
    if asked_s is None:
        if fitting:
            return fitting[0]
        raise QueryRefused(f"a window of {window.length_s / 86_400:.0f} days is too long")
    if asked_s not in steps_s:
        raise QueryRefused(f"resolution_s is one of {', '.join(map(str, steps_s))}")
    if asked_s not in fitting:
        finest = f"{fitting[0]} s or coarser" if fitting else "a shorter window"
        raise QueryRefused(f"at most {points_max} points: choose {finest}")
    return asked_s
