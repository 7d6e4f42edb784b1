"""What each rank and group of a job does at this moment. Pure: a layout and hot state in, columns out.

The decision itself is ``analysis.motion``, which served pages ask too (``jobs.progress``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from clusterwatch.analysis import motion
from clusterwatch.analysis.motion import STILL_AFTER_NS
from clusterwatch.ingest.layout import JobLayout
from clusterwatch.store import hot
from collectors.wire.limits import SILENT_AFTER_S

SILENT_AFTER_NS: Final = int(SILENT_AFTER_S * 1e9)
NEVER_NS: Final = np.int64(0)
_NO_ID: Final = np.int64(-(2**62))
"""Below every id a database gives."""

Column = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Calls(motion.Calls):
    """(rank, group) rows of a job's newest attempt, columns of length M; ``place`` is a row of the layout."""

    group_ids: Column
    """what ``group`` points into"""
    has_sequence: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class RanksNow:
    """Ranks of a job in the order of its layout: columns of length N, times 0 where nothing is known."""

    state: NDArray[np.uint8]
    """index into ``motion.RANK_STATES``"""
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
    waiting, behind = motion.waiting_and_behind(len(layout.rank_id), calls)
    moves = now_ns - moved_ns <= STILL_AFTER_NS
    state = motion.states(
        exits=layout.exit,
        silent=now_ns - seen_ns > SILENT_AFTER_NS,
        stopped=layout.stopped,
        moves=moves,
        waiting=waiting,
        behind=behind,
    )
    return RanksNow(
        state=state,
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
    return np.where(np.append(held, _NO_ID)[found] == wanted, found, -1)


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
        group_count=len(group_ids),
        group_ids=group_ids,
        number=motion.newest_number(sequence, enqueued),
        has_sequence=sequence >= 0,
        in_flight=enqueued > progress.completed[known],
    )


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
