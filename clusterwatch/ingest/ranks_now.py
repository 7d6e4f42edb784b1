"""What each rank and group of a job does at this moment. Pure: a layout and hot state in, columns out.

The words are those of ``live/README.md``; ``jobs.progress`` says the same for served pages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from clusterwatch.ingest.layout import EXIT_ENDED, EXIT_FAILED, JobLayout
from clusterwatch.store import hot
from collectors.wire.limits import SILENT_AFTER_S

RANK_STATES: Final = ("unknown", "moving", "waiting", "behind", "still", "ended", "failed", "stopped")
UNKNOWN, MOVING, WAITING, BEHIND, STILL, ENDED, FAILED, STOPPED = range(len(RANK_STATES))
STILL_AFTER_NS: Final = 3_000_000_000
SILENT_AFTER_NS: Final = int(SILENT_AFTER_S * 1e9)
NEVER_NS: Final = np.int64(0)
_NONE: Final = np.int64(-(2**62))
"""Below every number a recorder gives."""

Column = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Calls:
    """(rank, group) rows of a job's newest attempt, columns of length M."""

    place: Column
    """row of the rank in the layout"""
    group: Column
    """index into ``group_ids``"""
    group_ids: Column
    number: Column
    """collective sequence number, else the recorder's own"""
    has_sequence: NDArray[np.bool_]
    in_flight: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class RanksNow:
    """Ranks of a job in the order of its layout: columns of length N, times 0 where nothing is known."""

    state: NDArray[np.uint8]
    """index into ``RANK_STATES``"""
    seen_ns: Column
    moved_ns: Column
    heard_ns: Column
    phase: Column
    step: Column
    """-1: no step seen"""
    behind: Column
    """calls behind the waiters that are furthest ahead, 0 for a rank that moves"""
    calls: Calls


def look(layout: JobLayout, progress: hot.JobProgress, now_ns: int) -> RanksNow:
    """Joins a job's processes with what hot state says of them. Cost: O((N + M) log N)."""
    row_of = rows(wanted=layout.rank_id, held=progress.rank_id)
    seen_ns = _column(progress.seen_ns, row_of, 0)
    moved_ns = _column(progress.moved_ns, row_of, 0)
    calls = _calls(layout, progress)
    waiting, behind = _waiting_and_behind(len(layout.rank_id), calls)
    moves = now_ns - moved_ns <= STILL_AFTER_NS
    state = np.select(
        [
            layout.exit == EXIT_FAILED,
            layout.exit == EXIT_ENDED,
            now_ns - seen_ns > SILENT_AFTER_NS,
            layout.stopped,
            moves,
            waiting,
            behind > 0,
        ],
        [FAILED, ENDED, UNKNOWN, STOPPED, MOVING, WAITING, BEHIND],
        STILL,
    )
    return RanksNow(
        state=state.astype(np.uint8),
        seen_ns=seen_ns,
        moved_ns=moved_ns,
        heard_ns=_column(progress.heard_ns, row_of, 0),
        phase=_column(progress.phase, row_of, 0),
        step=_column(progress.step, row_of, -1),
        behind=np.where(moves, 0, behind),
        calls=calls,
    )


def rows(*, wanted: Column, held: Column) -> Column:
    """Where each wanted id is in ``held``, -1 where it is not."""
    order = np.argsort(held, kind="stable")
    places = np.searchsorted(held[order], wanted)
    found = np.append(order, -1)[places]
    return np.where(np.append(held, _NONE)[found] == wanted, found, -1)


def _column(values: NDArray[Any], rows: Column, missing: int) -> Column:
    return np.append(values.astype(np.int64), missing)[rows]


def _calls(layout: JobLayout, progress: hot.JobProgress) -> Calls:
    """The (rank, group) rows of ranks and groups that the layout knows."""
    place = rows(wanted=progress.rank_id, held=layout.rank_id)[progress.row]
    known = (place >= 0) & (progress.group_id >= 0)
    group_ids, group = np.unique(progress.group_id[known], return_inverse=True)
    sequence, enqueued = progress.sequence[known], progress.enqueued[known]
    return Calls(
        place=place[known],
        group=group,
        group_ids=group_ids,
        number=np.where(sequence >= 0, sequence, enqueued),
        has_sequence=sequence >= 0,
        in_flight=enqueued > progress.completed[known],
    )


def _waiting_and_behind(rank_count: int, calls: Calls) -> tuple[NDArray[np.bool_], Column]:
    """Ranks with a call of their own in flight; and how many calls each is behind its groups' waiters."""
    waiting = np.zeros(rank_count, bool)
    waiting[calls.place[calls.in_flight]] = True
    front = waiters_front(calls)
    behind = np.zeros(rank_count, np.int64)
    lag = np.where(front[calls.group] == _NONE, 0, front[calls.group] - calls.number)
    np.maximum.at(behind, calls.place, lag)
    return waiting, behind


def waiters_front(calls: Calls) -> Column:
    """Per group the highest number at which a member waits; far below zero where nobody waits."""
    front = np.full(len(calls.group_ids), _NONE, np.int64)
    np.maximum.at(front, calls.group[calls.in_flight], calls.number[calls.in_flight])
    return front


def stuck_groups(now: RanksNow, now_ns: int) -> tuple[NDArray[np.bool_], NDArray[np.bool_], Column]:
    """Per group: a call is in flight; its waiters have not moved for 3 s; when the last of them moved."""
    calls = now.calls
    is_open = np.bincount(calls.group[calls.in_flight], minlength=len(calls.group_ids)) > 0
    moved = np.zeros(len(calls.group_ids), np.int64)
    np.maximum.at(moved, calls.group[calls.in_flight], now.moved_ns[calls.place[calls.in_flight]])
    return is_open, is_open & (now_ns - moved > STILL_AFTER_NS), moved


def job_line(now: RanksNow) -> tuple[int | None, int, int]:
    """Newest step, commonest phase among ranks that report, and when any rank last moved (0: never)."""
    reported = now.seen_ns > NEVER_NS
    step = int(now.step.max(initial=-1))
    phases = np.bincount(now.phase[reported]) if reported.any() else np.zeros(1, np.int64)
    return (step if step >= 0 else None), int(phases.argmax()), int(now.moved_ns.max(initial=0))
