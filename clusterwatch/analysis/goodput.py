"""Where the time of a job's GPUs goes: each rank's every nanosecond of a window is in exactly one class.

In: ranks of one attempt, their told steps, phases and the job's stalls, ns UTC. Out: ns by ``Kind``, whose
sum is ranks x window. What nobody told is UNKNOWN and never productive. Definitions with their reasons, and
the cost: docs/goodput.md.
Source: time of useful steps by time held, as the published accounts of large training runs count it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clusterwatch.analysis.goodput_layers import PAINTED, intervals, kinds, swept
from clusterwatch.analysis.goodput_model import (
    NEVER_NS,
    OWN_COUNT_MAX,
    USEFUL,
    Kind,
    Memory,
    Roster,
    Spans,
    Split,
    Stall,
    Steps,
)
from clusterwatch.analysis.goodput_steps import of_steps


@dataclass(frozen=True, slots=True)
class Before:
    """How the attempt before ended: its last step, and the step after which its last whole checkpoint was."""

    last_step: int | None
    saved_step: int | None


def repeats_until(before: Before, first_step: int) -> int | None:
    """The highest step that an attempt does again, in its own numbers; None where nobody can tell.

    Where numbers go on over attempts, steps up to the highest one before are told again. Where each attempt
    counts from 1, as many are done again as came after the last whole checkpoint.
    """
    if before.last_step is None:
        return None
    if first_step > OWN_COUNT_MAX:
        return before.last_step
    if before.saved_step is None:
        return None
    return max(0, before.last_step - before.saved_step)


def split(
    start_ns: int,
    end_ns: int,
    roster: Roster,
    steps: Steps,
    phases: Mapping[str, Spans],
    stalls: Sequence[Stall],
    memory: Memory,
) -> Split:
    """Splits [start, end) of every rank of the roster.

    Args:
        phases: spans of ``evaluation``, ``checkpoint``, ``startup``, ``teardown``; others count for nothing.
        stalls: of this attempt, in no order; they may reach over the window.
        memory: of the window before.
    """
    known = np.isfinite(steps.duration_s) & (steps.end_ns > start_ns)
    steps = _chosen(steps, known & (steps.start_ns < end_ns))
    stalls = [one for one in stalls if one.start_ns < end_ns and one.end_ns > start_ns]
    memory = _with_firsts(memory, steps, len(roster))
    segments = swept(intervals(start_ns, end_ns, roster, steps, phases, stalls, memory), len(steps.who))
    found = kinds(segments)
    ns = {kind: int(segments.length_ns[found == place].sum()) for place, kind in enumerate(PAINTED) if kind}
    told, usual_s, memory = of_steps(start_ns, end_ns, roster, steps, segments, found, memory)
    ns = {kind: ns.get(kind, 0) + told.get(kind, 0) for kind in Kind}
    return Split(ns, _by_cause(ns[Kind.STALLED], start_ns, end_ns, stalls), usual_s, memory)


def _chosen(steps: Steps, kept: NDArray[np.bool_]) -> Steps:
    return Steps(*(getattr(steps, name)[kept] for name in Steps.__slots__))


def _with_firsts(memory: Memory, steps: Steps, count: int) -> Memory:
    """Notes when ranks that had not stepped before began their first told step."""
    first = np.full(count, NEVER_NS, np.int64)
    np.minimum.at(first, steps.who, steps.start_ns)
    first_ns = np.where(memory.first_ns > 0, memory.first_ns, np.where(first < NEVER_NS, first, 0))
    return replace(memory, first_ns=first_ns)


def _by_cause(stalled_ns: int, start_ns: int, end_ns: int, stalls: Sequence[Stall]) -> dict[str, int]:
    """The stalled time by verdict; of several in one window by how much of it each one takes."""
    if not stalled_ns:
        return {}
    weights = [
        (one.cause, min(one.end_ns, end_ns) - max(one.start_ns, start_ns))
        for one in sorted(stalls, key=lambda one: (one.start_ns, one.cause))
    ]
    whole = sum(weight for _, weight in weights)
    found: dict[str, int] = {}
    for cause, weight in weights:
        found[cause] = found.get(cause, 0) + stalled_ns * weight // whole
    first = weights[0][0]
    found[first] += stalled_ns - sum(found.values())
    return found


# --- sums ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ratios:
    """Shares of all time, 0 to 1; None where there is none. ``high`` counts what is unknown as useful."""

    goodput_low: float | None
    goodput_high: float | None
    ettr: float | None


def ratios(ns: Mapping[Any, int]) -> Ratios:
    """Goodput: useful time by all time, as bounds. ETTR: time in steps that were kept, slow ones too.

    The time in the scheduler's queue is not known here and is in neither.
    """
    whole = sum(ns.values())
    if whole <= 0:
        return Ratios(None, None, None)
    useful = sum(ns.get(kind, 0) for kind in USEFUL)
    unknown, slow = ns.get(Kind.UNKNOWN, 0), ns.get(Kind.DEGRADED, 0)
    return Ratios(useful / whole, (useful + unknown) / whole, (useful + slow) / whole)
