"""Checkpoints of a job: what each save took and cost, who was slow, and from which one to go on.

In: told steps of one stretch (a save is told as seconds of the step it fell into), and the saves that were
kept. Out: ``Save`` per world and step; ``Recommended``. A save that never ended stands in no finished step,
so it never looks whole. Cost: linear in steps, sorted only where somebody saved.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from clusterwatch.analysis.goodput_model import OWN_COUNT_MAX, SAVE_MIN_S, Floats, Ints, Roster, Steps

RULE: Final = "checkpoints 1"
SLOW_MAX: Final = 5
"""Ranks that are kept by name, the slowest first."""
SURE_WHOLE: Final = 0.9
"""Confidence where the same ranks saved as in every other save of the attempt."""
SURE_ALONE: Final = 0.5
"""Confidence where there is only one save to tell who saves."""
PROVEN_MORE: Final = 0.09
"""A load that went on from it leaves no doubt that it can be read."""


@dataclass(frozen=True, slots=True)
class Save:
    """One checkpoint of a world.

    Attributes:
        step: the newest step that is in it: it was written before step + 1 ended.
        end_ns: median end of the step it fell into.
        rank_count: ranks that told that step.
        saver_count: those of them that wrote.
        cost_ns: time of all ranks beyond the usual step; without a usual pace the writers' own time.
        slowest: (place in the roster, seconds), the longest first.
    """

    world: int
    step: int
    end_ns: int
    rank_count: int
    saver_count: int
    p50_s: float
    p99_s: float
    longest_s: float
    cost_ns: int
    slowest: tuple[tuple[int, float], ...]


def saves(
    steps: Steps, roster: Roster, usual_s: Mapping[int, float], start_ns: int, end_ns: int
) -> list[Save]:
    """Saves whose step ended, in the middle of its ranks, within [start, end); the oldest first."""
    saving = np.nan_to_num(steps.checkpoint_s, nan=0.0) >= SAVE_MIN_S
    if not saving.any():
        return []
    world = roster.world[steps.who]
    of_save = _rows_of(world, steps.step, saving)
    found = [_save(steps, world, saving, rows, usual_s) for rows in of_save]
    return sorted(
        (one for one in found if start_ns <= one.end_ns < end_ns), key=lambda one: (one.end_ns, one.world)
    )


def _rows_of(world: Ints, step: Ints, saving: NDArray[np.bool_]) -> list[Ints]:
    """Rows of each (world, step) in which anybody saved."""
    key = (world << 48) | (step & (2**48 - 1))
    keys = np.unique(key[saving])
    at = np.minimum(np.searchsorted(keys, key), len(keys) - 1)
    rows = np.flatnonzero(keys[at] == key)
    order = rows[np.argsort(at[rows], kind="stable")]
    cuts = np.flatnonzero(np.diff(at[order])) + 1
    return list(np.split(order, cuts))


def _save(
    steps: Steps, world: Ints, saving: NDArray[np.bool_], rows: Ints, usual_s: Mapping[int, float]
) -> Save:
    writers = rows[saving[rows]]
    took_s, number = steps.checkpoint_s[writers], int(world[rows[0]])
    p50, p99, longest = np.percentile(took_s, (50, 99, 100)).tolist()
    usual, whole_s = usual_s.get(number), steps.duration_s[rows]
    lost_s = took_s if usual is None else np.maximum(whole_s[np.isfinite(whole_s)] - usual, 0.0)
    worst = np.lexsort((steps.who[writers], -took_s))[:SLOW_MAX]
    return Save(
        world=number,
        step=int(steps.step[rows[0]]) - 1,
        end_ns=int(np.median(steps.end_ns[rows])),
        rank_count=len(np.unique(steps.who[rows])),
        saver_count=len(np.unique(steps.who[writers])),
        p50_s=p50,
        p99_s=p99,
        longest_s=longest,
        cost_ns=int(lost_s.sum() * 1e9),
        slowest=tuple((int(steps.who[writers[at]]), float(took_s[at])) for at in worst.tolist()),
    )


# --- which one to go on from ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Kept:
    """A save as it was kept; ``world_size`` ranks could have written, ``rank_count`` told of the step."""

    attempt: int
    world: str
    step: int
    end_ns: int
    saver_count: int
    rank_count: int
    world_size: int


@dataclass(frozen=True, slots=True)
class Recommended:
    """``why`` tells what it rests on, and what is not known."""

    save: Kept
    is_proven: bool
    """a later attempt went on from it"""
    confidence: float
    why: tuple[str, ...]


def whole(kept: Sequence[Kept]) -> list[tuple[Kept, float, str]]:
    """The saves that are whole as far as anybody told, with how sure that is and why; in the order given.

    Whole: every rank wrote; or as many as ever do in this world of this attempt. A save in which fewer ranks
    wrote is left out.
    """
    most: dict[tuple[int, str], int] = defaultdict(int)
    count: dict[tuple[int, str], int] = defaultdict(int)
    for one in kept:
        key = (one.attempt, one.world)
        most[key] = max(most[key], one.saver_count)
        count[key] += 1
    return [
        (one, *_sure(one, count[one.attempt, one.world] > 1))
        for one in kept
        if one.saver_count >= min(one.world_size, most[one.attempt, one.world])
    ]


def _sure(one: Kept, has_others: bool) -> tuple[float, str]:
    """(confidence that it is whole, why)."""
    some = f"{one.saver_count:,} of {one.world_size:,} ranks wrote it"
    if one.saver_count >= one.world_size:
        return SURE_WHOLE, f"all {one.world_size:,} ranks wrote it"
    if one.saver_count == one.rank_count:
        return SURE_ALONE, f"{some}, {one.world_size - one.rank_count:,} told nothing of it"
    if has_others:
        return SURE_WHOLE, f"{some}, as in every whole save before"
    return SURE_ALONE, f"{some}, no other save tells who should"


def recommend(
    kept: Sequence[Kept], first_steps: Mapping[int, int], before_ns: int, attempt: int
) -> Recommended | None:
    """The newest save before a moment that is surely whole; where there is none the newest that may be.

    Args:
        kept: saves of a job, all attempts.
        first_steps: attempt -> the first step it told; proves a load where numbers go on.
        before_ns: when things went wrong.
        attempt: that went wrong; saves of later ones do not count.
    """
    fit = [one for one in whole(kept) if one[0].end_ns < before_ns and one[0].attempt <= attempt]
    if not fit:
        return None
    ordered = sorted(fit, key=lambda one: (one[0].attempt, one[0].end_ns))
    save, sure, words = next((one for one in reversed(ordered) if one[1] >= SURE_WHOLE), ordered[-1])
    newest = ordered[-1][0]
    loader = _loader(save, first_steps)
    proof = (
        "not proven by a load" if loader is None else f"attempt {loader} went on from it, so it can be read"
    )
    why = [words, proof]
    if newest is not save:
        why.append(
            f"the one after step {newest.step} of attempt {newest.attempt} may be whole: {ordered[-1][2]}"
        )
    return Recommended(
        save, loader is not None, sure + (PROVEN_MORE if loader is not None else 0.0), tuple(why)
    )


def _loader(save: Kept, first_steps: Mapping[int, int]) -> int | None:
    """The attempt that went on from a save, where numbers go on over attempts."""
    later = sorted(number for number in first_steps if number > save.attempt)
    fit = (n for n in later if first_steps[n] > OWN_COUNT_MAX and first_steps[n] - save.step in (1, 2))
    return next(fit, None)


def trend_ratio(longest_s: Floats) -> float | None:
    """How much longer the newest third of saves took than the oldest third, as a share; None below six."""
    third = len(longest_s) // 3
    if third < 2:
        return None
    old, new = float(np.median(longest_s[:third])), float(np.median(longest_s[-third:]))
    return None if old <= 0 else new / old - 1
