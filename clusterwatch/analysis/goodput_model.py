"""Words and records of goodput: classes of time, ranks, told steps, stalls, what a window leaves behind.

In and out of ``goodput``, ``goodput_layers`` and ``goodput_steps``; times are ns UTC, places are those of a
``Roster``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

RULE: Final = "goodput 1"
"""Rule and version, as every answer says it."""
SAVE_MIN_S: Final = 0.01
"""Shorter saves in a step are no checkpoint but a log or a metric."""
STARTUP_MAX_NS: Final = 1_800 * 10**9
"""Past half an hour without a step nobody knows what the job does; the hook's own bound is the same."""
LONGEST_STEP_NS: Final = 86_400 * 10**9
NEVER_NS: Final = 2**62
OWN_COUNT_MAX: Final = 2
"""A hook counts from the start of its process and tells its second step first; higher numbers go on."""


class Kind(StrEnum):
    """Classes of time, in the order a page shows them."""

    PRODUCTIVE = "productive"
    EVALUATION = "evaluation"
    DEGRADED = "degraded"
    STALLED = "stalled"
    RESTART = "restart"
    CHECKPOINT = "checkpoint"
    STARTUP = "startup"
    IDLE = "idle"
    UNKNOWN = "unknown"


USEFUL: Final = (Kind.PRODUCTIVE, Kind.EVALUATION)


@dataclass(frozen=True, slots=True, eq=False)
class Roster:
    """Ranks of one attempt, shape (N,); the place in it stands for a rank everywhere below."""

    world: Ints
    """number of the world"""
    started_ns: Ints
    exit_ns: Ints
    """``NEVER_NS`` where the process lives or nobody told its end"""

    def __len__(self) -> int:
        return len(self.started_ns)


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """Told steps, shape (M,): who, number, end, and seconds; NaN where unknown."""

    who: Ints
    step: Ints
    end_ns: Ints
    duration_s: Floats
    checkpoint_s: Floats

    @property
    def start_ns(self) -> Ints:
        seconds = np.clip(np.nan_to_num(self.duration_s, nan=0.0), 0.0, LONGEST_STEP_NS / 1e9)
        found: Ints = self.end_ns - (seconds * 1e9).astype(np.int64)
        return found


@dataclass(frozen=True, slots=True, eq=False)
class Spans:
    """Times of ranks in one phase, shape (K,)."""

    who: Ints
    start_ns: Ints
    end_ns: Ints


def no_spans() -> Spans:
    return Spans(*(np.zeros(0, np.int64) for _ in range(3)))


@dataclass(frozen=True, slots=True)
class Stall:
    """A standstill of the whole job: from its last progress until it was over."""

    start_ns: int
    end_ns: int
    cause: str
    """its verdict"""


@dataclass(frozen=True, slots=True)
class Memory:
    """What one window leaves to the next one of the same attempt.

    Attributes:
        first_ns: when each rank's first told step began, 0 = not yet; shape (N,).
        paces_s: per world the median pace of earlier windows, seconds.
        last_step: highest step told in this attempt.
        repeats_until: steps up to this one were done by an earlier attempt; None: nobody can tell.
        is_judged: ``repeats_until`` was worked out.
    """

    first_ns: Ints
    paces_s: Mapping[int, Sequence[float]] = field(default_factory=dict)
    last_step: int | None = None
    repeats_until: int | None = None
    is_judged: bool = False


@dataclass(frozen=True, slots=True)
class Split:
    """A window, split. ``usual_s`` is by world."""

    ns: Mapping[Kind, int]
    stalled_ns: Mapping[str, int]
    """of it, STALLED by cause"""
    usual_s: Mapping[int, float]
    memory: Memory
