"""Newest value of each metric for each slot of a cluster, and the last 120 s of them.

In: packed values of hot frames, many at once. Out: float32 arrays by metric as ``store.hot`` keeps them, and
on demand the last two minutes of some slots. Pure; used by one thread.

Cost: one pass over a second's values; memory 12 bytes per metric and slot for the newest, 4 bytes per second
of the ring, never more than ``RING_MAX_BYTES`` of it per cluster.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clusterwatch.store.hot import MetricArray
from collectors.wire import hot_values

METRICS_MAX: Final = 512
"""Metrics of one cluster that are kept at a time; a node may name thousands, its neighbours must not pay."""
FORGET_AFTER_NS: Final = 600 * 10**9
"""A metric nobody renewed for so long gives its place to another."""
RING_S: Final = 120
"""A block of a minute arrives up to a minute after its end: what is older lies in the database."""
RING_MAX_BYTES: Final = 512 * 1024 * 1024
_RING_FRESH_NS: Final = 1_500_000_000
"""A value older than this belongs to a second before."""

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]


class Layout:
    """What the values of a frame are; one object for all frames with the same bytes."""

    def __init__(self, data: bytes) -> None:
        """Raises ``WireError``."""
        self.metrics = hot_values.read_layout(data)
        self.size_bytes = hot_values.VALUE_BYTES * sum(series for _, series in self.metrics)

    @cached_property
    def starts(self) -> dict[str, int]:
        """Where each metric's values begin."""
        ends = np.cumsum([series for _, series in self.metrics]).tolist()
        return {name: end - series for (name, series), end in zip(self.metrics, ends, strict=True)}


class Values(NamedTuple):
    """The values of one frame."""

    layout: Layout
    slots: bytes
    """int64[S], slots of the node in the order of its GPUs"""
    values: bytes
    seen_ns: int


@dataclass(frozen=True, slots=True)
class Tail:
    """The last seconds of some slots: ``values`` is float32[metrics, seconds, slots], NaN where none came."""

    end_ns: int
    metrics: tuple[str, ...]
    values: Floats


class SlotValues:
    """All metrics of one cluster."""

    def __init__(self) -> None:
        self._row_of: dict[str, int] = {}
        self._values: Floats = np.full((8, 0), np.nan, np.float32)
        self._seen_ns: Ints = np.zeros((8, 0), np.int64)
        self._slot_count = 0
        self._renewed: set[int] = set()
        self._ring = _Ring()

    def take(self, frames: Sequence[Values], now_ns: int) -> None:
        """Takes the frames of a second, oldest first, and moves the ring on."""
        kinds: dict[tuple[Layout, int], list[Values]] = {}
        for frame in frames:
            kinds.setdefault((frame.layout, len(frame.slots)), []).append(frame)
        for (layout, slot_bytes), same in kinds.items():
            self._take_same(layout, slot_bytes // 8, same)
        self._ring.add(self._values, self._seen_ns, len(self._row_of), now_ns)

    def renewed(self) -> dict[str, MetricArray]:
        """Metrics with values newer than at the last call."""
        names = [name for name, row in self._row_of.items() if row in self._renewed]
        self._renewed.clear()
        return {name: self._array(self._row_of[name]) for name in names}

    def tail(self, slots: Sequence[int]) -> Tail:
        """The last two minutes of some slots, metrics without any value left out."""
        known = [slot for slot in slots if slot < self._values.shape[1]]
        end_ns, values = self._ring.cut(np.array(known, np.int64))
        names = [name for name, row in self._row_of.items() if row < len(values)]
        kept = [name for name in names if np.isfinite(values[self._row_of[name]]).any()]
        return Tail(end_ns, tuple(kept), values[[self._row_of[name] for name in kept]])

    def _array(self, row: int) -> MetricArray:
        return MetricArray(
            self._values[row, : self._slot_count].copy(), self._seen_ns[row, : self._slot_count].copy()
        )

    # --- one kind of frames ------------------------------------------------------------------------------

    def _take_same(self, layout: Layout, slot_count: int, frames: Sequence[Values]) -> None:
        """Frames of one layout from nodes with as many slots."""
        slots = np.frombuffer(b"".join(frame.slots for frame in frames), "<i8").reshape(-1, slot_count)
        values = np.frombuffer(b"".join(frame.values for frame in frames), "<f4").reshape(len(frames), -1)
        seen_ns = np.array([frame.seen_ns for frame in frames], np.int64)
        self._reserve_slots(int(slots.max(initial=-1)) + 1)
        wide = [name for name, series in layout.metrics if series == slot_count]
        self._scatter(layout, wide, slots, values, seen_ns)
        if slot_count != 1:  # what a node has one of goes to its first slot
            single = [name for name, series in layout.metrics if series == 1]
            self._scatter(layout, single, slots[:, :1], values, seen_ns)

    def _scatter(
        self, layout: Layout, names: Iterable[str], slots: Ints, values: Floats, seen_ns: Ints
    ) -> None:
        taken = [(self._row(name, int(seen_ns[-1])), layout.starts[name]) for name in names]
        taken = [(row, start) for row, start in taken if row >= 0]
        if not taken:
            return
        width = slots.shape[1]
        flat, seen = slots.ravel(), np.repeat(seen_ns, width)
        for row, start in taken:
            self._values[row, flat] = values[:, start : start + width].ravel()
            self._seen_ns[row, flat] = seen
            self._renewed.add(row)

    # --- room --------------------------------------------------------------------------------------------

    def _row(self, name: str, now_ns: int) -> int:
        """The row of a metric, -1 where there is no room."""
        row = self._row_of.get(name)
        if row is not None:
            return row
        if len(self._row_of) >= METRICS_MAX:
            return self._take_over(name, now_ns)
        row = self._row_of[name] = len(self._row_of)
        if row >= len(self._values):
            self._values = _grown(self._values, 2 * row, self._values.shape[1], np.nan)
            self._seen_ns = _grown(self._seen_ns, 2 * row, self._values.shape[1], 0)
        return row

    def _take_over(self, name: str, now_ns: int) -> int:
        """The row of the metric that was not renewed for the longest, if that is long enough."""
        newest = self._seen_ns[: len(self._row_of)].max(axis=1, initial=0)
        oldest = int(newest.argmin())
        if now_ns - int(newest[oldest]) < FORGET_AFTER_NS:
            return -1
        del self._row_of[next(old for old, row in self._row_of.items() if row == oldest)]
        self._values[oldest], self._seen_ns[oldest] = np.nan, 0
        self._ring.forget(oldest)
        self._row_of[name] = oldest
        return oldest

    def _reserve_slots(self, count: int) -> None:
        self._slot_count = max(self._slot_count, count)
        if count > self._values.shape[1]:
            room = max(64, count + count // 4)
            self._values = _grown(self._values, len(self._values), room, np.nan)
            self._seen_ns = _grown(self._seen_ns, len(self._seen_ns), room, 0)


class _Ring:
    """One matrix a second, newest wins, the oldest is written over."""

    def __init__(self) -> None:
        self._kept: list[Floats | None] = [None] * RING_S
        self._second = 0
        self._now_ns = 0

    def add(self, values: Floats, seen_ns: Ints, rows: int, now_ns: int) -> None:
        """Keeps what came within the last second; seconds without a call stay empty."""
        second = now_ns // 1_000_000_000
        if second < self._second:  # the clock was set back: what is kept has other times now
            self._kept = [None] * RING_S
        for missed in range(max(self._second + 1, second - RING_S + 1), second):
            self._kept[missed % RING_S] = None
        rows = min(rows, RING_MAX_BYTES // (4 * RING_S * max(1, values.shape[1])))
        now = self._reused(second % RING_S, (rows, values.shape[1]))
        np.copyto(now, values[:rows])
        now[now_ns - seen_ns[:rows] > _RING_FRESH_NS] = np.nan
        self._kept[second % RING_S] = now
        self._second, self._now_ns = second, now_ns

    def _reused(self, place: int, shape: tuple[int, int]) -> Floats:
        old = self._kept[place]
        return old if old is not None and old.shape == shape else np.empty(shape, np.float32)

    def cut(self, slots: Ints) -> tuple[int, Floats]:
        """(ns of the newest second, float32[rows, seconds, slots] oldest second first)."""
        seconds = [self._kept[(self._second + 1 + age) % RING_S] for age in range(RING_S)]
        rows = max((len(kept) for kept in seconds if kept is not None), default=0)
        found = np.full((rows, RING_S, len(slots)), np.nan, np.float32)
        for place, kept in enumerate(seconds):
            if kept is not None:
                there = slots < kept.shape[1]
                found[: len(kept), place, there] = kept[:, slots[there]]
        return self._now_ns, found

    def forget(self, row: int) -> None:
        """Another metric gets this row."""
        for kept in self._kept:
            if kept is not None and row < len(kept):
                kept[row] = np.nan


def _grown(array: NDArray[Any], rows: int, columns: int, blank: float) -> NDArray[Any]:
    larger = np.full((rows, columns), blank, array.dtype)
    larger[: array.shape[0], : array.shape[1]] = array
    return larger
