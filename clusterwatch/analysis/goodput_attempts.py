"""Attempts of a job on one line of time, and the next stretch of it to count.

In: attempts with their first start and last exit. Out: ``Stretch``: a part of one attempt, or of the gap
before one, that ends at a full hour at the latest. Time between two attempts is a restart of the later one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from clusterwatch.analysis.goodput_model import Ints, Steps

HOUR_NS: Final = 3_600 * 10**9
ENOUGH_RATIO: Final = 0.5
"""A window is counted once this share of the living ranks have told of its end."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """``ended_ns``: exit of its last rank; None while one lives or nobody told."""

    number: int
    started_ns: int
    ended_ns: int | None
    rank_count: int


@dataclass(frozen=True, slots=True)
class Stretch:
    """[start, end) of an attempt; ``is_gap``: of the time before it, in which no rank of it lived."""

    attempt: Attempt
    start_ns: int
    end_ns: int
    is_gap: bool


def lives(attempts: Sequence[Attempt]) -> list[Attempt]:
    """Attempts in their order, each over when the next one starts at the latest."""
    ordered = sorted(attempts, key=lambda one: one.number)
    found = []
    for place, one in enumerate(ordered):
        ends = [one.ended_ns] if one.ended_ns is not None else []
        ends += [later.started_ns for later in ordered[place + 1 : place + 2]]
        end = max(one.started_ns, min(ends)) if ends else None
        found.append(Attempt(one.number, one.started_ns, end, one.rank_count))
    return found


def next_stretch(
    attempts: Sequence[Attempt], counted_ns: int, horizon_ns: int, width_ns: int
) -> Stretch | None:
    """The first stretch after ``counted_ns`` that ends by the horizon; None where nothing is left.

    Args:
        attempts: as ``lives`` gives them.
        width_ns: the longest stretch.
    """
    gap_from: int | None = None
    for one in attempts:
        if gap_from is not None and counted_ns < one.started_ns:
            return _cut(one, max(counted_ns, gap_from), one.started_ns, horizon_ns, width_ns, is_gap=True)
        end = horizon_ns if one.ended_ns is None else one.ended_ns
        if counted_ns < end:
            start = max(counted_ns, one.started_ns)
            return _cut(one, start, end, horizon_ns, width_ns, is_gap=False)
        gap_from = one.ended_ns
    return None


def _cut(
    one: Attempt, start: int, end: int, horizon_ns: int, width_ns: int, *, is_gap: bool
) -> Stretch | None:
    hour_ends = (start // HOUR_NS + 1) * HOUR_NS
    until = min(end, horizon_ns, start + width_ns, hour_ends)
    return Stretch(one, start, until, is_gap) if until > start else None


def is_told(steps: Steps, awaited: NDArray[np.bool_], end_ns: int, covered: Ints) -> bool:
    """Enough of the ranks that should have told of ``end_ns`` did.

    Args:
        awaited: living ranks that had stepped, by place.
        covered: places of ranks of which a phase tells what they do then.
    """
    count = int(awaited.sum())
    if not count:
        return True
    heard = np.zeros(len(awaited), bool)
    heard[steps.who[steps.end_ns >= end_ns]] = True
    heard[covered] = True
    return int((heard & awaited).sum()) >= ENOUGH_RATIO * count
