"""Counters that saturate, wrap or are set back: what changed between two looks, or why that is not known.

In: the values of one group of counters that are reset together (a port, a netdev, a GPU) and a clock. Out:
``Change`` per counter. Widths: InfiniBand Architecture Specification 16.1.3.5 (a counter stops at all ones);
the firmware's queue counters of mlx5 are 32 bits wide and wrap.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from collectors.sources.base import FIRST_SAMPLE, OK, RESET, Sample

SATURATED: Final = "saturated"
UNREADABLE: Final = "unreadable"
EMPTY: Final = "empty"
NOT_AVAILABLE: Final = "not_available"
OUT_OF_RANGE: Final = "out_of_range"
WRAP_FROM: Final = 2**31
"""A counter of 32 bits that falls from below this was set back, not wrapped."""


@dataclass(frozen=True, slots=True)
class Counter:
    """What a counter can hold.

    Attributes:
        bits: its width. A value beyond that shows that the width is 64 here.
        saturates: it stops at all ones, which then says nothing.
        wraps: it starts again at 0 behind all ones.
    """

    bits: int = 64
    saturates: bool = False
    wraps: bool = False

    def is_saturated(self, value: int) -> bool:
        return self.saturates and value == (1 << self.bits) - 1


PLAIN: Final = Counter()


class Count(msgspec.Struct, frozen=True, gc=False):
    """One value as it was read; None has its reason in ``quality``."""

    value: int | None
    quality: str = OK


class Change(msgspec.Struct, frozen=True, gc=False):
    """What a counter did since the look before; None has its reason in ``quality``."""

    delta: int | None
    per_s: float | None
    quality: str = OK


STANDS: Final = Change(0, 0.0)
"""Nothing was counted."""


class CounterGroup:
    """Counters that are reset together, and their values of the look before."""

    def __init__(self, kinds: Mapping[str, Counter], default: Counter = PLAIN) -> None:
        self._kinds = kinds
        self._default = default
        self._last: dict[str, int] = {}
        self._at_s: float | None = None
        self.fell: tuple[str, ...] = ()
        """counters that were set back since the look before"""

    def kind(self, name: str) -> Counter:
        return self._kinds.get(name, self._default)

    def update(self, counts: Mapping[str, Count], at_s: float) -> dict[str, Change]:
        """Changes since the last call. Forgets counters that are no longer there."""
        passed_s = 0.0 if self._at_s is None else at_s - self._at_s
        known = {name: count.value for name, count in counts.items() if count.value is not None}
        fallen = {name for name, value in known.items() if value < self._last.get(name, 0)}
        wrapped = {name for name in fallen if len(fallen) == 1 and self._may_have_wrapped(name, known[name])}
        self.fell = tuple(sorted(fallen - wrapped))
        changes, last = {}, self._last
        for name, count in counts.items():
            value = count.value
            stands = passed_s > 0 and value is not None and last.get(name) == value
            if stands and not self.kind(name).is_saturated(value or 0):
                changes[name] = STANDS  # as most do at most looks
            else:
                changes[name] = self._change(name, count, passed_s, name in wrapped)
        self._last, self._at_s = known, at_s
        return changes

    def _may_have_wrapped(self, name: str, value: int) -> bool:
        kind, last = self.kind(name), self._last[name]
        return kind.wraps and last > WRAP_FROM and last < 2**kind.bits and value < last

    def _change(self, name: str, count: Count, passed_s: float, wrapped: bool) -> Change:
        kind, value, last = self.kind(name), count.value, self._last.get(name)
        if value is None:
            return Change(None, None, count.quality)
        if kind.is_saturated(value):
            return Change(None, None, SATURATED)
        if last is None or passed_s <= 0:
            return Change(None, None, FIRST_SAMPLE)
        delta = value - last + (2**kind.bits if wrapped else 0)
        if delta < 0:
            return Change(None, None, RESET)
        return Change(delta, delta / passed_s)


def parsed(text: str) -> Count:
    """A counter as a file or a tool prints it."""
    text = text.strip()
    if not text:
        return Count(None, EMPTY)
    if text.startswith(("N/A", "[N/A")):
        return Count(None, NOT_AVAILABLE)
    if not (text.isascii() and text.isdigit()):
        return Count(None, UNREADABLE)
    if len(text) > 20 or (value := int(text)) >= 2**64:
        return Count(None, OUT_OF_RANGE)
    return Count(value)


def samples(
    entity: str, group: CounterGroup, counts: Mapping[str, Count], changes: Mapping[str, Change]
) -> Iterator[Sample]:
    """``<name>_total``, ``<name>_delta_count`` and ``<name>_per_s`` of each counter. All ones are unknown."""
    for name, count in counts.items():
        if changes[name] is STANDS and count.value is not None:
            yield from _standing(entity, name, count.value)
            continue
        total, delta, per_s = _metrics(name)
        full = count.value is not None and group.kind(name).is_saturated(count.value)
        value, quality = (None, SATURATED) if full else (count.value, count.quality)
        yield Sample(entity, total, value, quality)
        change = changes[name]
        yield Sample(entity, delta, change.delta, change.quality)
        yield Sample(entity, per_s, change.per_s, change.quality)


@functools.lru_cache(maxsize=4_096)
def _metrics(name: str) -> tuple[str, str, str]:
    lower = name.lower()
    return f"{lower}_total", f"{lower}_delta_count", f"{lower}_per_s"


@functools.lru_cache(maxsize=4_096)
def _standing(entity: str, name: str, value: int) -> tuple[Sample, Sample, Sample]:
    """The samples of a counter that stands: the same at each look, so they are made once."""
    total, delta, per_s = _metrics(name)
    return Sample(entity, total, value), Sample(entity, delta, 0), Sample(entity, per_s, 0.0)
