"""What the time of a step was: work at the usual pace, beyond it, a checkpoint, or done before.

In: told steps and the pieces of ``goodput_layers``. Out: ns by kind, the usual pace by world.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from clusterwatch.analysis.goodput_layers import EVALUATION, HUNG, IN_STEP, STALL, STEP, WINDOW, Segments
from clusterwatch.analysis.goodput_model import SAVE_MIN_S, Floats, Ints, Kind, Memory, Roster, Steps

TOLERANCE_RATIO: Final = 0.01
"""A step this much slower than usual is whole: clocks and silicon differ by about one per cent for ever."""
PACES_MAX: Final = 360
"""Windows whose median pace is kept per world: six hours of minutes."""
PACE_PERCENTILE: Final = 10.0
"""The usual pace is a low one: a fault must last nine times as long as what went before to become usual."""


def of_steps(
    start_ns: int,
    end_ns: int,
    roster: Roster,
    steps: Steps,
    segments: Segments,
    kinds: Ints,
    memory: Memory,
) -> tuple[dict[Kind, int], dict[int, float], Memory]:
    """Time in steps by kind, the usual pace by world, and the memory with both.

    Shares are worked out over the whole step without what was a stall or an evaluation, and applied to the
    part of it that lies in the window, so windows that cut a step agree.
    """
    count = len(steps.who)
    free_ns, window_ns = _free(segments, kinds, count)
    saved_s, world = np.nan_to_num(steps.checkpoint_s, nan=0.0), roster.world[steps.who]
    longest_s = _longest_save(world, steps.step, saved_s)
    again = steps.step <= (-1 if memory.repeats_until is None else memory.repeats_until)
    ended = (steps.end_ns > start_ns) & (steps.end_ns <= end_ns) & (free_ns > 0)
    paces = _paces(memory.paces_s, world, free_ns / 1e9, ended & ~again & (longest_s < SAVE_MIN_S))
    usual_s = {number: _usual_s(told) for number, told in paces.items()}
    ckpt_ns, excess_ns = _parts(free_ns, _by_world(usual_s, world) * 1e9, saved_s * 1e9, longest_s * 1e9)
    share = np.divide(window_ns, free_ns, out=np.zeros(count), where=free_ns > 0)
    ckpt = np.minimum((ckpt_ns * share).astype(np.int64), window_ns)
    slow = np.minimum((excess_ns * share).astype(np.int64), window_ns - ckpt)
    last = memory.last_step
    if ended.any():
        last = max(last or 0, int(steps.step[ended].max()))
    told = _summed(window_ns, again, ckpt, slow)
    return told, usual_s, replace(memory, paces_s=paces, last_step=last)


def _usual_s(paces_s: Sequence[float]) -> float:
    return float(np.percentile(paces_s, PACE_PERCENTILE, method="lower"))


def _summed(window_ns: Ints, again: NDArray[np.bool_], ckpt: Ints, slow: Ints) -> dict[Kind, int]:
    """Whole ns; what no other kind has is productive, so nothing is lost to rounding."""
    repeated, fresh = int(window_ns[again].sum()), ~again
    saved, lost = int(ckpt[fresh].sum()), int(slow[fresh].sum())
    return {
        Kind.RESTART: repeated,
        Kind.CHECKPOINT: saved,
        Kind.DEGRADED: lost,
        Kind.PRODUCTIVE: int(window_ns.sum()) - repeated - saved - lost,
    }


def _free(segments: Segments, kinds: Ints, count: int) -> tuple[Ints, Ints]:
    """Of each step: time that was no stall and no evaluation, and how much of it lies in the window."""
    outside = ~segments.active[WINDOW]
    stalled = segments.active[STALL] & segments.active[HUNG]
    beyond = outside & segments.active[STEP] & ~stalled & ~segments.active[EVALUATION]
    within = kinds == IN_STEP
    length = segments.length_ns
    inside_ns = np.bincount(segments.step[within], length[within], count)
    outside_ns = np.bincount(segments.step[beyond], length[beyond], count)
    return (inside_ns + outside_ns).astype(np.int64), inside_ns.astype(np.int64)


def _longest_save(world: Ints, step: Ints, saved_s: Floats) -> Floats:
    """Of each row the longest save that any rank of its world had in that step: the others waited for it."""
    saving = saved_s >= SAVE_MIN_S
    if not saving.any():
        return np.zeros(len(step))
    key = _key(world, step)
    keys, place = np.unique(key[saving], return_inverse=True)
    longest = np.zeros(len(keys))
    np.maximum.at(longest, place, saved_s[saving])
    at = np.minimum(np.searchsorted(keys, key), len(keys) - 1)
    return np.where(keys[at] == key, longest[at], 0.0)


def _key(world: Ints, step: Ints) -> Ints:
    """World and step as one number."""
    return (world << 48) | (step & (2**48 - 1))


def _paces(
    before: Mapping[int, Sequence[float]], world: Ints, pace_s: Floats, counted: NDArray[np.bool_]
) -> dict[int, list[float]]:
    """Adds this window's median pace of each world. Steps with a save and repeated ones tell no pace."""
    paces = {number: list(told) for number, told in before.items()}
    for number in np.unique(world[counted]).tolist():
        told = pace_s[counted & (world == number)]
        paces[number] = [*paces.get(number, ()), float(np.median(told))][-PACES_MAX:]
    return paces


def _by_world(usual_s: Mapping[int, float], world: Ints) -> Floats:
    table = np.full(int(world.max(initial=0)) + 1, np.nan)
    for number, usual in usual_s.items():
        if number < len(table):
            table[number] = usual
    found: Floats = table[world]
    return found


def _parts(free_ns: Ints, usual_ns: Floats, own_ns: Floats, longest_ns: Floats) -> tuple[Floats, Floats]:
    """(checkpoint, beyond the usual) of each step, ns. Without a usual pace nothing is beyond it.

    Waiting for somebody else's save is checkpoint, too: what a step took beyond the usual, up to that save.
    """
    free = free_ns.astype(np.float64)
    beyond = np.maximum(np.nan_to_num(free - usual_ns, nan=0.0), 0.0)
    ckpt = np.minimum(np.maximum(own_ns, np.minimum(beyond, longest_ns)), free)
    rest = free - ckpt
    excess = np.nan_to_num(rest - usual_ns, nan=0.0)
    is_slow = rest > usual_ns * (1 + TOLERANCE_RATIO)
    return ckpt, np.where(is_slow, np.maximum(excess, 0.0), 0.0)
