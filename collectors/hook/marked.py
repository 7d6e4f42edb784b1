"""One step with marks on the GPU's stream, from its first mark to its figures.

In: marks around calls, data loading and checkpoints. Out: ``Figures``, all by the clock of the stream that
the step began on, and the calls' durations. What lies between the marks of a call is waiting for peers and
the transfer; what no mark holds is the rank's own work.

A step is ``broken`` where its marks cannot be read, and ``partial`` where they can, but do not hold all its
waiting: a part of it would name the wrong rank. Both are reasons in words; such a step has no figures.
"""

from __future__ import annotations

from itertools import islice
from typing import NamedTuple

from .edges import EdgeStep, Key
from .stream import Mark, StreamClock
from .watch import Operations, unseen

WAIT, LOADER, CHECKPOINT = range(3)
CALLS_MAX = 4_096
PARTS_SLACK_RATIO = 0.001
"""By how much the parts of a step may exceed it: each is rounded by the GPU's clock."""

BY_CALLS = "too many calls to mark"
BY_UNSEEN = "calls that the hook does not see"
BY_STREAM = "calls beside the stream of the job's own work"
BY_PARTS = "parts longer than their step"


class Figures(NamedTuple):
    """One step by the stream's clock."""

    duration_s: float
    wait_s: float
    loader_s: float
    checkpoint_s: float
    late_launch: float | None
    """share of ``wait_s`` in calls at whose begin the GPU stood still for its host; None: no waiting"""


class Interval(NamedTuple):
    part: int
    begin: Mark
    end: Mark
    key: Key | None
    """of a call that is to be told"""


class Marked:
    """State of one step; written by the training thread alone."""

    def __init__(self, first: Mark, operations: Operations, covered: int, replays: int) -> None:
        """Args: what was counted when the step began: calls, those of C++ that are timed, replayed graphs."""
        self.first = first
        self.last: Mark | None = None
        self.intervals: list[Interval] = []
        self.broken = self.partial = ""
        self.figures: Figures | None = None
        self.is_settled = False
        """read, or given up: the step's row may be told"""
        self.turns = 0
        """steps that have ended while the GPU had not passed the last mark"""
        self._operations, self._covered = operations, covered
        self.replays = replays
        self._lengths_s: list[float] = []
        self._duration_s: float | None = None

    @property
    def is_read(self) -> bool:
        return self._duration_s is not None

    def add(self, interval: Interval) -> None:
        if len(self.intervals) >= CALLS_MAX:
            self.broken = self.broken or BY_CALLS
        else:
            self.intervals.append(interval)

    def close(self, last: Mark | None, operations: Operations, covered: int) -> None:
        """The step is over. Args: the last mark, and calls and covered ones as at its begin."""
        self.last = last
        count = unseen(self._operations, operations)
        if count is None or count > covered - self._covered:
            self.partial = BY_UNSEEN

    def read(self, clock: StreamClock, count_max: int) -> int:
        """Reads up to so many intervals that the GPU has passed. Returns how many; raises as the clock."""
        last, before = self.last, len(self._lengths_s)
        if last is None or not (before or clock.done(last)):
            return 0
        for _part, begin, end, _key in islice(self.intervals, before, before + count_max):
            if end.stream != last.stream and not clock.done(end):
                break
            self._lengths_s.append(clock.elapsed_s(begin, end))
        if len(self._lengths_s) == len(self.intervals):
            self._duration_s = clock.elapsed_s(self.first, last)
        return len(self._lengths_s) - before

    def settle(self, clock: StreamClock) -> EdgeStep:
        """Works out the figures of a step that is read and gives its marks back. Returns its calls."""
        edges = EdgeStep()
        for interval, length_s in zip(self.intervals, self._lengths_s):  # noqa: B905 - Python 3.9
            if interval.key is not None:
                edges.add(interval.key, int(length_s * 1e9))
            clock.free(interval.begin)
            clock.free(interval.end)
        self.figures = self._worked_out()
        for mark in (self.first, self.last):
            if mark is not None:
                clock.free(mark)
        self.intervals = []
        return edges

    def _worked_out(self) -> Figures | None:
        own, last, duration_s = self.first.stream, self.last, self._duration_s
        assert last is not None and duration_s is not None
        sums_s, late_s = [0.0, 0.0, 0.0], 0.0
        for (part, begin, end, _key), length_s in zip(self.intervals, self._lengths_s):  # noqa: B905
            if not begin.stream == end.stream == own:
                self.partial = self.partial or BY_STREAM
            sums_s[part] += length_s
            late_s += length_s if part == WAIT and begin.was_idle else 0.0
        if last.stream != own:
            self.partial = self.partial or BY_STREAM
        if sum(sums_s) > duration_s * (1 + PARTS_SLACK_RATIO):
            self.partial = self.partial or BY_PARTS
        if self.partial:
            return None
        late = late_s / sums_s[WAIT] if sums_s[WAIT] else None
        return Figures(duration_s, sums_s[WAIT], sums_s[LOADER], sums_s[CHECKPOINT], late)
