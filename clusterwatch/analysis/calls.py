"""Open calls of all groups, and where every member stands with each: one pass in numpy over (rank, group).

In: ``World``. Out: ``OpenCall`` per (group, sequence) that some member waits in. Cost: O(ranks x groups) in
numpy, and one object per open call.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np

from clusterwatch.analysis.columns import View
from clusterwatch.analysis.groups import Group, World
from clusterwatch.analysis.plausible import AHEAD_MAX
from clusterwatch.analysis.rows import split
from clusterwatch.analysis.signature import ALL_PARTY, plain
from clusterwatch.analysis.tables import Marks, Numbers
from collectors.formats.columns import NULL, STARTED

CALLS_PER_GROUP_MAX: Final = 64
"""Different calls of one group that are told apart, the oldest; a member in a later one waits for those."""

_CLOCK_SLACK_NS: Final = 1_000_000_000
"""Hosts' clocks agree to well under a second; used only to tell an evicted call from one never made. A ring
that spans less than that is judged by its own span."""

_Ranks = tuple[int, ...]


@dataclass(slots=True, eq=False)
class OpenCall:
    """Members of ``group`` by what they did with call ``sequence``; all rising."""

    group: Group
    sequence: int
    issued_ns: int | None
    """when the first of those who wait made it"""
    waiting: _Ranks
    """issued it, and it is their oldest open one of the group"""
    absent: _Ranks = ()
    """left a dump and never issued it"""
    silent: _Ranks = ()
    """left no dump"""
    behind: _Ranks = ()
    """issued it, still busy with an earlier call of the group"""
    ahead: _Ranks = ()
    """finished it already: who waits is itself late"""
    started: _Ranks = ()
    """of those who wait, the ones where it was seen to start; () without the recorder's timing"""
    timed: bool = False
    """some member's recorder has seen a start, of whatever call"""
    held_up: _Ranks = ()
    """of those who wait, the ones with older open work of another group"""
    timed_out: bool = False
    """some member's watchdog gave up on a call of the group, or a gloo call ended without all members"""
    node: int = 0
    """number in the wait graph, below zero"""

    @property
    def targets(self) -> _Ranks:
        """Whom it lacks."""
        return self.absent + self.silent + self.behind

    @property
    def joined(self) -> bool:
        """Every member has issued it."""
        return not (self.absent or self.silent or self.behind)

    @property
    def key(self) -> tuple[int, int, int, int]:
        """Order of calls by when the first member made them; then the smaller group."""
        issued = 1 << 63 if self.issued_ns is None else self.issued_ns
        return (issued, self.group.size, self.group.number, self.sequence)

    @property
    def op(self) -> str:
        view = self.group.views[self.waiting[0]]
        entry = view.entry(self.sequence)
        return "unknown" if entry is None else view.op(entry)


def waited_in(world: World) -> Numbers:
    """[R] sequence of the oldest open call of each row; ``NULL`` where nothing is open."""
    first = world.rows.first_open.copy()
    for group in _uneven_gloo(world):
        for view, row in zip(group.views.values(), group.mine.tolist(), strict=True):
            calls = open_calls(group, view)
            if calls:
                first[row] = calls[0]
    return first


def _uneven_gloo(world: World) -> Iterable[Group]:
    """gloo groups of members with different last calls."""
    rows = world.rows
    marks = rows.gloo & (rows.number != NULL)
    if not marks.any():
        return
    low = np.full(len(world.groups), np.iinfo(np.int64).max)
    top = np.full(len(world.groups), NULL)
    np.minimum.at(low, rows.number[marks], rows.high[marks])
    np.maximum.at(top, rows.number[marks], rows.high[marks])
    for number in np.flatnonzero(top > low).tolist():
        yield world.groups[number]


def open_calls(group: Group, view: View) -> list[int]:
    """Open sequences of a member, rising. On gloo also calls retired though a member never made them: they
    failed or timed out, since no all-party call can finish without all.
    """
    if not view.window.gloo or view.high is None:
        return view.open
    if not (group.whole or group.certain):
        return view.open
    highs = group.rows.high[group.mine]
    others = np.maximum(highs[group.rows.rank[group.mine] != view.rank], 0)
    floor = int(others.min()) if len(others) else view.high
    failed = []
    for sequence in range(max(floor + 1, view.high - CALLS_PER_GROUP_MAX), view.high + 1):
        passed = view.passed(sequence)
        if passed is not None and plain(passed.op) in ALL_PARTY:
            failed.append(sequence)
    return sorted({*view.open, *failed})


def find(world: World) -> list[OpenCall]:
    """Every open call, by group and sequence."""
    rows, first = world.rows, waited_in(world)
    waits = np.flatnonzero((first != NULL) & (rows.number != NULL))
    if not len(waits):
        return []
    order = np.lexsort((first[waits], rows.number[waits]))
    waits = waits[order]
    group, sequence = rows.number[waits], first[waits]
    new_group = np.append(True, group[1:] != group[:-1])
    new = new_group | np.append(True, sequence[1:] != sequence[:-1])
    call = np.cumsum(new) - 1
    nth = call - call[np.flatnonzero(new_group)][np.cumsum(new_group) - 1]
    new &= nth < CALLS_PER_GROUP_MAX
    call = np.cumsum(new) - 1
    first[waits] = sequence[new][call]
    return _Standing(world, first, group[new], sequence[new]).calls()


class _Standing:
    """Pairs (call, row of its group): ``P`` in all. Each category is a mark over them."""

    def __init__(self, world: World, first: Numbers, group: Numbers, sequence: Numbers) -> None:
        self.world = world
        self.rows = world.rows
        self.group, self.sequence = group, sequence
        mine = [world.groups[number].mine for number in group.tolist()]
        self.row = np.concatenate(mine)
        self.call = np.repeat(np.arange(len(group)), [len(rows) for rows in mine])
        wanted = sequence[self.call]
        first = first[self.row]
        high = self.rows.high[self.row]
        self.issued = (high != NULL) & (high >= wanted)
        self.waiting = self.issued & (first == wanted)
        self.behind = self.issued & (first != NULL) & (first < wanted)
        self.ahead = self.issued & ((first == NULL) | (first > wanted))

    def _ranks(self, marks: Marks) -> list[_Ranks]:
        return split(self.rows.rank[self.row[marks]], self.call[marks], len(self.group))

    def calls(self) -> list[OpenCall]:
        rows, count = self.rows, len(self.group)
        own = self.waiting & (rows.first_open[self.row] == self.sequence[self.call])
        made = self._issue_times(own)
        started = own & (rows.groups["first_open_state"][self.row] == STARTED)
        held = own & (rows.groups["first_open_at"][self.row] > rows.oldest_open_at[self.row])
        timed = np.bincount(self.call, rows.timed[self.row], count) > 0
        gave_up = self.waiting & (
            (rows.groups["timed_out_count"][self.row] > 0) | (~own & rows.gloo[self.row])
        )
        timed_out = np.bincount(self.call, gave_up, count) > 0
        found = [
            OpenCall(self.world.groups[group], sequence, None if ns == NULL else ns, waiting)
            for group, sequence, ns, waiting in zip(
                self.group.tolist(), self.sequence.tolist(), made, self._ranks(self.waiting), strict=True
            )
        ]
        absent = self._ranks(self._absent(made))
        columns = zip(
            found, absent, self._ranks(self.behind), self._ranks(self.ahead), self._ranks(started),
            self._ranks(held), timed.tolist(), timed_out.tolist(), strict=True,
        )  # fmt: skip
        for one, *standing, one.timed, one.timed_out in columns:
            one.absent, one.behind, one.ahead, one.started, one.held_up = standing
            if one.issued_ns is None:
                one.issued_ns = issued_ns(one.group, one.sequence)
            if not one.group.whole:
                _add_lacking(self.world, one)
        return found

    def _enqueued(self) -> Marks:
        """pg_status says that it was issued though the ring does not hold it any more.

        Not for gloo, which counts other calls there too, nor for groups with sends and receives: NCCL writes
        their numbers there. Nor where no rank can be so far beyond its peers.
        """
        held = self.rows.groups[self.row]
        sure = ~self.rows.gloo[self.row] & (held["p2p_count"] == 0)
        sure &= held["last_enqueued"] <= self.sequence[self.call] + AHEAD_MAX
        enqueued: Marks = sure & (held["last_enqueued"] >= self.sequence[self.call])
        return enqueued

    def _issue_times(self, own: Marks) -> list[int]:
        """When the first of the waiting members made each call."""
        late = np.iinfo(np.int64).max
        made = np.full(len(self.group), late)
        times = self.rows.groups["first_open_ns"][self.row[own]]
        np.minimum.at(made, self.call[own], np.where(times == NULL, late, times))
        known: list[int] = np.where(made == late, NULL, made).tolist()
        return known

    def _absent(self, made: list[int]) -> Marks:
        """Never issued it, and did not make it so long ago that their ring has dropped it."""
        absent: Marks = ~(self.issued | self._enqueued())
        unheard = np.flatnonzero(absent & (self.rows.high[self.row] == NULL))
        for pair in unheard.tolist():
            rank = int(self.rows.rank[self.row[pair]])
            since = made[int(self.call[pair])]
            if evicted(self.world, rank, None if since == NULL else since):
                absent[pair] = False
        return absent


def _add_lacking(world: World, call: OpenCall) -> None:
    """Members without a row: without a dump, or with one that does not know the group."""
    silent = tuple(rank for rank in call.group.lacking if rank not in world.windows)
    absent = [
        rank
        for rank in call.group.lacking
        if rank in world.windows and not evicted(world, rank, call.issued_ns)
    ]
    call.silent = silent
    call.absent = tuple(sorted((*call.absent, *absent)))


def evicted(world: World, rank: int, since_ns: int | None) -> bool:
    """Whether a rank that holds no call of a group may have made one that its ring has dropped since."""
    window = world.windows[rank]
    if not window.truncated or not window.any_finished:
        return False  # an only-active dump drops finished calls; an open one would be there
    oldest = window.oldest_ns
    if oldest is None or since_ns is None or window.newest_ns is None:
        return True
    return oldest > since_ns + min(_CLOCK_SLACK_NS, window.newest_ns - oldest)


def issued_ns(group: Group, sequence: int | None, last: bool = False) -> int | None:
    """When the first (or last) member made a call, ns; None where no dump holds it."""
    if sequence is None:
        return None
    calls = group.calls
    times = calls.created_ns[calls.at(sequence)]
    times = times[times != NULL]
    if not len(times):
        return None
    return int(times.max() if last else times.min())
