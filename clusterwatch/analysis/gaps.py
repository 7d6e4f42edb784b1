"""How long a healthy job pauses, learned from itself, and after which pause we suspect and page.

In: gaps between two advances of a world's ranks, in seconds, by phase. Out: ``Limits``. A fixed limit is
naive: long steps, checkpoints, compilation and evaluation pause for longer than a hang should stay unseen
(flagos-ai/FlagScale#1267, ray-project/ray#64993). So the job's own gaps decide as soon as there are some.

A gap is measured on a whole world and not on one group: a group that is called every ten minutes has gaps
of ten minutes of its own, yet a world that stands still for one is hung.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

BIN_COUNT: Final = 64
FIRST_BIN_S: Final = 0.5
BINS_PER_DOUBLING: Final = 4
"""Bins grow by 19 %; the last one ends at 0.5 s x 2^16, nine hours."""
COUNT_MAX: Final = 100_000
"""Counts are halved beyond, so that what a job does now weighs more than what it did last week."""
QUANTILE: Final = 0.999
OPEN_FACTOR: Final = 3.0
SUSPECT_FACTOR: Final = 1.5
SUSPECT_AT_LEAST_S: Final = 2.5
IN_KERNEL_SUSPECT_S: Final = 15.0
"""A process in state D all the while stands in storage I/O as a rule. In a checkpoint that is work; so long
without any progress of the world, and without history, it is worth a suspicion (which pages nobody)."""
HISTORY_MIN_GAPS: Final = 5
"""Gaps are counted once a second at most: five seconds of motion make a history."""

STEP_PHASES: Final = frozenset({"train", "data_loading", "gc"})
"""Parts of an ordinary step: they share its history, and suspicion is not held back in them."""

DEFAULT_OPEN_S: Final[Mapping[str, float]] = {
    "train": 30.0,
    "data_loading": 30.0,
    "gc": 30.0,
    "unknown": 120.0,
    "startup": 600.0,
    "checkpoint": 600.0,
    "evaluation": 600.0,
    "compile": 900.0,
    "teardown": 600.0,
}
"""Seconds without progress before an incident opens while there is no history. Judgement, not measurement:
torch's own collective time-out is 600 s for NCCL and 1,800 s for gloo; a step of 30 s without one collective
is rare; compilation of large models takes many minutes (pytorch/pytorch#108971)."""


OPEN_AT_LEAST_S: Final[Mapping[str, float]] = {
    "train": 10.0,
    "unknown": 30.0,
    "checkpoint": 60.0,
    "evaluation": 60.0,
}
"""Floor under a learned limit, by ``history_phase``. A phase that is not here keeps its default: start-up and
compilation come once, so what they did so far says nothing of what they will do next."""


@dataclass(frozen=True, slots=True)
class Limits:
    """When a stall becomes a suspicion and when it pages."""

    suspect_s: float
    open_s: float
    source: str
    """where ``open_s`` comes from, for people"""


@dataclass(frozen=True, slots=True)
class GapHistory:
    """Counts of gaps in bins that grow by 19 %; bounded in size, mergeable, lost without harm."""

    counts: tuple[int, ...] = (0,) * BIN_COUNT

    @property
    def total(self) -> int:
        return sum(self.counts)

    def with_gap(self, gap_s: float) -> GapHistory:
        """The history with one more gap."""
        counts = list(self.counts)
        counts[_bin(gap_s)] += 1
        if sum(counts) > COUNT_MAX:
            counts = [(count + 1) // 2 for count in counts]
        return GapHistory(tuple(counts))

    def quantile_s(self, ratio: float = QUANTILE) -> float | None:
        """Upper edge of the bin that holds the quantile; None without gaps. At most 19 % too large."""
        if not self.total:
            return None
        reached: NDArray[np.int64] = np.cumsum(np.asarray(self.counts, np.int64))
        place = int(np.searchsorted(reached, math.ceil(ratio * self.total)))
        doublings = min(place, BIN_COUNT - 1) / BINS_PER_DOUBLING

        return FIRST_BIN_S * float(2.0**doublings)


def _bin(gap_s: float) -> int:
    """Bin ``i`` holds gaps up to FIRST_BIN_S x 2^(i/4)."""
    if gap_s <= FIRST_BIN_S:
        return 0
    return min(BIN_COUNT - 1, math.ceil(BINS_PER_DOUBLING * math.log2(gap_s / FIRST_BIN_S)))


def history_phase(phase: str) -> str:
    """Whose history a phase uses: parts of a step use the step's."""
    return "train" if phase in STEP_PHASES else phase


def limits(phase: str, history: GapHistory | None, in_kernel: bool = False) -> Limits:
    """When a stall in ``phase`` is suspected and when it opens.

    Args:
        phase: a word of ``collectors.wire.records.PHASES``: what the rank does that holds the others up.
        history: the job's gaps in that phase (``history_phase``), None when nothing was learned.
        in_kernel: a process that may hold the others up is blocked in the kernel (state D).
    """
    default_s = DEFAULT_OPEN_S.get(phase, DEFAULT_OPEN_S["unknown"])
    learned = history_phase(phase)
    least_s = OPEN_AT_LEAST_S.get(learned)
    if history is None or history.total < HISTORY_MIN_GAPS or least_s is None:
        suspect_s = _suspect_s(phase, default_s, None)
        suspect_s = min(suspect_s, IN_KERNEL_SUSPECT_S) if in_kernel else suspect_s
        return Limits(suspect_s, default_s, f"default for {phase}, no history yet")
    usual_s = history.quantile_s() or 0.0
    open_s = max(least_s, OPEN_FACTOR * usual_s)
    source = f"{OPEN_FACTOR:g} x the p99.9 of its own gaps in {learned} ({usual_s:.1f} s)"
    if open_s == least_s:
        source = f"at least {least_s:g} s in {learned}; the p99.9 of its own gaps is {usual_s:.1f} s"
    return Limits(_suspect_s(phase, open_s, usual_s), open_s, source)


def _suspect_s(phase: str, open_s: float, usual_s: float | None) -> float:
    if phase not in STEP_PHASES and phase != "unknown":
        return max(SUSPECT_AT_LEAST_S, open_s / 2)
    if usual_s is None:
        return SUSPECT_AT_LEAST_S
    return max(SUSPECT_AT_LEAST_S, SUSPECT_FACTOR * usual_s)
