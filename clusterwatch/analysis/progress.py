"""Moving, stalled or unknown: what two looks at a job's collective progress say, before any trace is here.

In: ``Glance`` (what is kept of the look before) and ``Look`` (hot state joined with what the database knows
of each process). Out: ``Judgement``: per world whether it moves, since when it does not, who waits in an open
call, and who may hold the others up.

A stall needs an old frontier AND no advance between two looks (DESIGN 5.7): slow but moving is no hang. Ranks
are judged by world, since a world's default group connects its ranks, and several worlds of one job do not
wait for each other. ``enqueued`` and ``completed`` of gloo count op ids with point-to-point calls in them, so
only ``sequence`` is compared between ranks; "open" (enqueued > completed) is a fact of one rank alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from clusterwatch.analysis.model import Coverage, ProcessState
from collectors.wire.limits import SILENT_AFTER_S
from collectors.wire.records import PHASES

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

PROCESS_CODES: Final = tuple(ProcessState)
"""``Look.process`` holds indices into this."""
SILENT_NS: Final = int(SILENT_AFTER_S * 1e9)
LOOKS_APART_NS: Final = 900_000_000
"""Two looks nearer than this say nothing about standing still (the tick is 1 s, give or take)."""
STILL_NS: Final = 1_000_000_000
"""A frame must have shown the same numbers for so long."""
GROUPS_KEPT: Final = 16
"""Groups a judgement describes; the others are counted only."""

_EXITED = PROCESS_CODES.index(ProcessState.EXITED)
_AGENT_GONE = PROCESS_CODES.index(ProcessState.AGENT_GONE)
_NODE_SILENT = PROCESS_CODES.index(ProcessState.NODE_SILENT)
_STOPPED = PROCESS_CODES.index(ProcessState.STOPPED)


class Motion(StrEnum):
    MOVING = "moving"
    STALLED = "stalled"
    UNKNOWN = "unknown"
    """not enough data: one look only, or nobody who should speak does"""


class Reason(StrEnum):
    """Why a rank may be the one that holds the others up, strongest first."""

    DIED = "its process died"
    NODE_SILENT = "its host went silent"
    STOPPED = "its process is stopped"
    HOOK_SILENT = "its process lives but says nothing"
    FINISHED = "it has finished"
    BEHIND = "it is behind its peers and in no call"
    OUTSIDE = "it is in no collective call"
    UNOBSERVED = "nothing is known of it"


@dataclass(frozen=True, slots=True)
class Look:
    """One moment of one attempt of a job: N expected ranks, M (rank, group) rows.

    All times in ns of the server's clock.
    """

    at_ns: int
    word_ns: int
    """when a gateway last wrote: silence is measured from here, so that our own pause accuses nobody"""
    rank: Ints
    rank_id: Ints
    """what tells a restarted process from its forerunner"""
    world: Ints
    """N: number of the rank's world"""
    seen_ns: Ints
    """N: last frame with this rank, 0 when none ever came"""
    heard_ns: Ints
    moved_ns: Ints
    step: Ints
    phase: NDArray[np.uint8]
    phase_since_ns: Ints
    process: NDArray[np.uint8]
    """N: index into ``PROCESS_CODES``"""
    clean: Bools
    """N: exited, and normally"""
    row: Ints
    """M: index of the rank"""
    group_id: Ints
    enqueued: Ints
    completed: Ints
    sequence: Ints


@dataclass(frozen=True, slots=True)
class Glance:
    """What of a look is needed to tell the next one's advance: K ranks that were reported."""

    at_ns: int
    rank_id: Ints
    """sorted"""
    numbers: Ints
    """one mixed number for all of a rank's counters: differs when any of them does"""
    seen_ns: Ints


@dataclass(frozen=True, slots=True)
class GroupState:
    """A group with an open call: who issued the newest known one, who did not. Global ranks, sorted."""

    group_id: int
    sequence: int | None
    """newest collective sequence number any member has issued; None where it is not comparable"""
    waiting: tuple[int, ...]
    behind: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class WorldState:
    """One world of the job at this look."""

    world: int
    motion: Motion
    since_ns: int
    """last progress of any of its ranks"""
    phase: str
    """of the ranks that hold the others up; without any, of most ranks"""
    waiting: tuple[int, ...] = ()
    suspects: tuple[int, ...] = ()
    reasons: tuple[Reason, ...] = ()
    """one per suspect"""
    groups: tuple[GroupState, ...] = ()
    all_joined: bool = False
    """every observed rank waits in a call and none is behind"""
    rank_count: int = 0

    def stall_s(self, now_ns: int) -> float:
        return max(0.0, (now_ns - self.since_ns) / 1e9)


@dataclass(frozen=True, slots=True)
class Judgement:
    at_ns: int
    worlds: tuple[WorldState, ...]
    coverage: Coverage

    @property
    def stalled(self) -> tuple[WorldState, ...]:
        """Worlds that stand still; a world whose ranks wait in no call counts only when nobody else moves."""
        still = tuple(w for w in self.worlds if w.motion is Motion.STALLED)
        if all(w.motion is Motion.STALLED for w in self.worlds):
            return still
        return tuple(w for w in still if w.waiting)

    @property
    def moving(self) -> bool:
        return any(w.motion is Motion.MOVING for w in self.worlds)


def glance(look: Look) -> Glance:
    """What to keep of ``look`` for the next one. Cost: linear, one sort."""
    reported = np.flatnonzero(look.seen_ns > 0)
    reported = reported[np.argsort(look.rank_id[reported], kind="stable")]
    return Glance(look.at_ns, look.rank_id[reported], _mixed(look)[reported], look.seen_ns[reported])


def _mixed(look: Look) -> Ints:
    """One 64-bit number per rank over step and all of its groups' counters, N."""
    with np.errstate(over="ignore"):
        rows = look.group_id.astype(np.uint64)
        for column in (look.enqueued, look.completed, look.sequence):
            rows = _scramble(rows * np.uint64(0x9E3779B97F4A7C15) + column.astype(np.uint64))
        total = _scramble(look.step.astype(np.uint64) + np.uint64(1))
        np.add.at(total, look.row, rows)
    return total.view(np.int64)


def _scramble(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finalizer of splitmix64 (Steele, Lea and Flood 2014): near numbers become far ones."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def judge(previous: Glance | None, now: Look) -> Judgement:
    """What changed since ``previous``, and who holds up whom where nothing did.

    Args:
        previous: the look before, at least ``LOOKS_APART_NS`` older; None for the first one.
        now: this look. Ranks that exited stay in it.
    Cost: linear in ranks and rows, one sort.
    """
    marks = _marks(now)
    moved, later = _compared(previous, now)
    worlds = tuple(
        _world(int(world), now.world == world, moved, later, marks, now) for world in np.unique(now.world)
    )
    fresh = int(np.count_nonzero(marks.fresh))
    stale = int(np.count_nonzero((now.seen_ns > 0) & ~marks.fresh))
    return Judgement(now.at_ns, worlds, Coverage(len(now.rank), fresh, stale, 0))


@dataclass(frozen=True, slots=True)
class _Marks:
    """Facts per rank, N, and per row, M."""

    fresh: Bools
    """a frame with this rank came lately"""
    speaking: Bools
    """fresh, alive, and its own hook spoke lately: what it does not do, it does not do"""
    hook_silent: Bools
    open_row: Bools
    waiting: Bools
    behind_row: Bools
    behind: Bools


def _marks(now: Look) -> _Marks:
    count = len(now.rank)
    alive = (now.process != _EXITED) & (now.process != _NODE_SILENT) & (now.process != _AGENT_GONE)
    fresh = (now.seen_ns >= now.word_ns - SILENT_NS) & (now.seen_ns > 0) & alive
    hook_silent = fresh & (now.heard_ns > 0) & (now.seen_ns - now.heard_ns > SILENT_NS)
    open_row = now.enqueued > now.completed
    waiting = np.zeros(count, bool)
    waiting[now.row[open_row]] = True
    behind_row = _behind(now, fresh)
    behind = np.zeros(count, bool)
    behind[now.row[behind_row]] = True
    return _Marks(fresh, fresh & ~hook_silent, hook_silent, open_row, waiting, behind_row, behind)


def _behind(now: Look, fresh: Bools) -> Bools:
    """M: the row's rank has issued fewer collectives of the group than a peer that waits in one."""
    usable = (now.sequence >= 0) & fresh[now.row]
    groups, place = np.unique(now.group_id, return_inverse=True)
    newest = np.full(len(groups), -1, np.int64)
    waited_for = usable & (now.enqueued > now.completed)
    np.maximum.at(newest, place[waited_for], now.sequence[waited_for])
    lower: Bools = usable & (now.sequence < newest[place])
    return lower


def _compared(previous: Glance | None, now: Look) -> tuple[Bools, Bools]:
    """N: numbers differ from the look before (or the rank is new); N: a later frame was seen than then."""
    if previous is None or now.at_ns - previous.at_ns < LOOKS_APART_NS or not len(previous.rank_id):
        return np.zeros(len(now.rank), bool), np.zeros(len(now.rank), bool)
    place = np.minimum(np.searchsorted(previous.rank_id, now.rank_id), len(previous.rank_id) - 1)
    known = previous.rank_id[place] == now.rank_id
    reported = now.seen_ns > 0
    moved = reported & (~known | (_mixed(now) != previous.numbers[place]))
    later = reported & known & (now.seen_ns > previous.seen_ns[place])
    return moved, later


def _world(world: int, member: Bools, moved: Bools, later: Bools, marks: _Marks, now: Look) -> WorldState:
    rows = np.flatnonzero(member)
    since_ns = int(min(now.at_ns, max(now.moved_ns[rows].max(initial=0), 0))) or now.at_ns
    motion = _motion(rows, moved, later, marks, now, since_ns)
    if motion is not Motion.STALLED:
        since_ns = now.at_ns if motion is Motion.MOVING and not now.moved_ns[rows].any() else since_ns
        return WorldState(world, motion, since_ns, _phase_of(rows, now), rank_count=len(rows))
    suspects, reasons = _suspects(rows, marks, now)
    waiting = rows[(marks.waiting & marks.fresh)[rows]]
    observed = rows[marks.fresh[rows]]
    return WorldState(
        world=world,
        motion=motion,
        since_ns=since_ns,
        phase=_phase_of(suspects if len(suspects) else rows, now),
        waiting=tuple(np.sort(now.rank[waiting]).tolist()),
        suspects=tuple(now.rank[suspects].tolist()),
        reasons=reasons,
        groups=_groups(member, marks, now),
        all_joined=bool(len(observed)) and bool((marks.waiting & ~marks.behind)[observed].all()),
        rank_count=len(rows),
    )


def _motion(rows: Ints, moved: Bools, later: Bools, marks: _Marks, now: Look, since_ns: int) -> Motion:
    if moved[rows].any():
        return Motion.MOVING
    speaking = rows[marks.speaking[rows]]
    shown = now.seen_ns[speaking] - since_ns >= STILL_NS
    if not (later[speaking] & shown).any():
        return Motion.UNKNOWN
    return Motion.STALLED


def _phase_of(rows: Ints, now: Look) -> str:
    """The most frequent phase of the ranks; of equally frequent ones the last in ``PHASES``.

    Ranks that train, as far as they know, but have no process group are making their groups (anew).
    """
    counts = np.bincount(np.minimum(now.phase[rows], len(PHASES) - 1), minlength=len(PHASES))
    phase = PHASES[len(PHASES) - 1 - int(np.argmax(counts[::-1]))]
    return "startup" if phase == "train" and not np.isin(now.row, rows).any() else phase


def _suspects(rows: Ints, marks: _Marks, now: Look) -> tuple[Ints, tuple[Reason, ...]]:
    """Ranks that may hold the others up: the strongest kind of evidence there is, by rank."""
    exited = now.process == _EXITED
    silent = now.process == _NODE_SILENT
    unobserved = ~marks.fresh & ~exited & ~silent
    root = marks.behind & ~marks.waiting & marks.fresh
    outside = marks.fresh & ~marks.waiting & bool(marks.waiting[rows].any())
    kinds: tuple[tuple[tuple[Bools, Reason], ...], ...] = (
        ((exited & ~now.clean, Reason.DIED), (silent, Reason.NODE_SILENT)),
        ((now.process == _STOPPED, Reason.STOPPED),),
        ((marks.hook_silent, Reason.HOOK_SILENT),),
        ((exited & now.clean, Reason.FINISHED),),
        ((root, Reason.BEHIND), (unobserved, Reason.UNOBSERVED)),
        ((outside, Reason.OUTSIDE), (unobserved, Reason.UNOBSERVED)),
    )
    for kind in kinds:
        strongest, weaker = kind[0], kind[1:]
        if not any(mark[rows].any() for mark, _reason in kind if _reason is not Reason.UNOBSERVED):
            continue
        found = {int(r): reason for mark, reason in (*weaker, strongest) for r in rows[mark[rows]]}
        order = sorted(found, key=lambda r: int(now.rank[r]))
        return np.asarray(order, np.int64), tuple(found[r] for r in order)
    left = rows[unobserved[rows]]
    return left, (Reason.UNOBSERVED,) * len(left)


def _groups(member: Bools, marks: _Marks, now: Look) -> tuple[GroupState, ...]:
    """Groups of this world with an open call, those with ranks behind first, then by how many wait."""
    mine = member[now.row] & marks.fresh[now.row]
    found: list[GroupState] = []
    for group_id in np.unique(now.group_id[mine & marks.open_row]):
        rows = np.flatnonzero(mine & (now.group_id == group_id))
        waiting = now.rank[now.row[rows[marks.open_row[rows]]]]
        behind = now.rank[now.row[rows[marks.behind_row[rows]]]]
        newest = int(now.sequence[rows].max(initial=-1))
        found.append(
            GroupState(
                int(group_id),
                newest if newest >= 0 else None,
                tuple(np.sort(waiting).tolist()),
                tuple(np.sort(behind).tolist()),
            )
        )
    found.sort(key=lambda g: (-bool(g.behind), -len(g.waiting), g.group_id))
    return tuple(found[:GROUPS_KEPT])
