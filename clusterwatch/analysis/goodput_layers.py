"""Which intervals of a rank's time there are, and which of them holds at each moment.

In: a roster, told steps, phases and stalls. Out: ``Segments``, pieces between two ends of intervals, and what
each one is. One sort over all ends, numpy besides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from clusterwatch.analysis.goodput_model import (
    STARTUP_MAX_NS,
    Ints,
    Kind,
    Memory,
    Roster,
    Spans,
    Stall,
    Steps,
)

WINDOW, IDLE, HUNG, STALL, EVALUATION, STEP, CHECKPOINT, STARTUP = range(8)
_LAYERS: Final = 8


@dataclass(frozen=True, slots=True, eq=False)
class Segments:
    """Pieces between two ends of intervals: length and the layers that hold there."""

    length_ns: Ints
    active: NDArray[np.bool_]
    """shape (layers, pieces)"""
    step: Ints
    """place in ``Steps`` of the newest one begun"""


_Interval = tuple[int, Ints, Ints, Ints]
"""layer, who, start, end"""


def intervals(
    start_ns: int,
    end_ns: int,
    roster: Roster,
    steps: Steps,
    phases: Mapping[str, Spans],
    stalls: Sequence[Stall],
    memory: Memory,
) -> list[_Interval]:
    everyone = np.arange(len(roster))
    begin, end = np.full(len(roster), start_ns), np.full(len(roster), end_ns)
    latest = _startup_ends(roster, memory.first_ns)
    hung = np.zeros(len(steps.who), bool)
    for stall in stalls:
        hung |= (steps.start_ns < stall.start_ns) & (steps.end_ns > stall.start_ns)
    made: list[_Interval] = [
        (WINDOW, everyone, begin, end),
        (IDLE, everyone, begin, np.minimum(roster.started_ns, end_ns)),
        (IDLE, everyone, roster.exit_ns, end),
        (STEP, steps.who, steps.start_ns, steps.end_ns),
        (HUNG, steps.who[hung], steps.start_ns[hung], steps.end_ns[hung]),
        (STARTUP, everyone, np.maximum(roster.started_ns, start_ns), np.minimum(latest, end_ns)),
    ]
    made += [
        (STALL, everyone, np.full(len(roster), one.start_ns), np.full(len(roster), one.end_ns))
        for one in stalls
    ]
    layers = {
        "evaluation": EVALUATION,
        "checkpoint": CHECKPOINT,
        "startup": STARTUP,
        "teardown": IDLE,
    }
    made += [(layers[name], of.who, of.start_ns, of.end_ns) for name, of in phases.items() if name in layers]
    return made


def _startup_ends(roster: Roster, first_ns: Ints) -> Ints:
    """When each rank's start-up is over at the latest.

    Ranks of a world step together: where most have stepped, one that told no step is silent, not starting.
    """
    ends = np.where(first_ns > 0, first_ns, roster.started_ns + STARTUP_MAX_NS)
    for number in np.unique(roster.world).tolist():
        of_world = roster.world == number
        told = first_ns[of_world & (first_ns > 0)]
        if 2 * len(told) >= int(of_world.sum()):
            ends[of_world] = np.minimum(ends[of_world], told.max())
    return ends


def swept(found: Sequence[_Interval], step_count: int) -> Segments:
    """One pass over all ends of intervals in the order of ranks and time. Cost: O(E log E)."""
    parts = []
    for layer, who, start, end in found:
        kept = end > start
        numbers = np.flatnonzero(kept) if layer == STEP else np.full(int(kept.sum()), -1)
        for times, delta in ((start[kept], 1), (end[kept], -1)):
            count = len(times)
            signs = np.full(count, delta, np.int8)
            layers = np.full(count, layer, np.int8)
            number = numbers if delta > 0 else np.full(count, -1)
            parts.append((who[kept], times, layers, signs, number))
    who, times, layers, signs, number = (
        np.concatenate([np.asarray(part[at]) for part in parts]) for at in range(5)
    )
    order = np.lexsort((times, who))
    who, times, layers, signs, number = who[order], times[order], layers[order], signs[order], number[order]
    inside = who[:-1] == who[1:]
    length = np.where(inside, times[1:] - times[:-1], 0)
    kept = length > 0
    active = np.zeros((_LAYERS, int(kept.sum())), bool)
    for layer in range(_LAYERS):
        running = np.cumsum(np.where(layers == layer, signs, 0), dtype=np.int64)
        active[layer] = running[:-1][kept] > 0
    begun = np.where(number >= 0, np.arange(len(number)), 0)
    step = number[np.maximum.accumulate(begun)] if step_count else number
    return Segments(length[kept], active, step[:-1][kept])


PAINTED: Final = (
    None,
    Kind.IDLE,
    Kind.EVALUATION,
    None,
    Kind.STALLED,
    Kind.CHECKPOINT,
    Kind.STARTUP,
    Kind.UNKNOWN,
)
"""By number of ``kinds``; 0 is outside of the window, 3 is a step, which ``goodput_steps`` splits."""
IN_STEP: Final = 3


def kinds(segments: Segments) -> Ints:
    """What each piece inside of the window is; the first that holds.

    A step that began after a stall did shows that it was over for this rank.
    """
    is_on = segments.active
    fresh = is_on[STEP] & ~is_on[HUNG]
    chosen: Ints = np.select(
        [
            ~is_on[WINDOW],
            is_on[IDLE],
            fresh & is_on[EVALUATION],
            fresh,
            is_on[STALL],
            is_on[EVALUATION],
            is_on[STEP],
            is_on[CHECKPOINT],
            is_on[STARTUP],
        ],
        [0, 1, 2, IN_STEP, 4, 2, IN_STEP, 5, 6],
        7,
    )
    return chosen
