"""What one rank's dump says of one process group: the numbers it issued, and which of them are still open.

In: ``RankTrace``. Out: ``View`` per (group, rank). One linear pass per trace; of a long ring only the newest
calls and every open one are kept, so memory follows ranks x groups.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from collectors.formats.trace import RankTrace

KEPT_CALLS: Final = 256
"""Newest calls of a group that stay comparable; when a job stops, its error is a few calls old."""


@dataclass(slots=True, eq=False)
class View:
    """One rank's calls in one group. Sequence numbers are collective_seq_id."""

    rank: int
    trace: RankTrace
    index: int
    """of the group in ``trace.groups``"""
    low: int | None = None
    """lowest collective held"""
    high: int | None = None
    """highest collective held: the last one issued"""
    calls: dict[int, list[int]] = field(default_factory=dict)
    """sequence -> entries (several for a coalesced call), newest ``KEPT_CALLS`` and all open ones"""
    open: list[int] = field(default_factory=list)
    """sequences issued and not finished, rising"""
    timed_out: set[int] = field(default_factory=set)
    """sequences retired without being finished: the watchdog gave up on them"""
    p2p_open: list[int] = field(default_factory=list)
    """entries of sends and receives that are not known to be finished, in record order"""
    p2p_used: bool = False

    def issued(self, sequence: int) -> bool:
        return self.high is not None and sequence <= self.high

    def entry(self, sequence: int) -> int | None:
        """The entry that tells the state of a call: the last one, which closes a coalesced call."""
        entries = self.calls.get(sequence)
        return entries[-1] if entries else None

    @property
    def first_open(self) -> int | None:
        return self.open[0] if self.open else None


def is_gloo(trace: RankTrace) -> bool:
    return trace.backend == "gloo"


def _finished(trace: RankTrace, at: int, gloo: bool) -> bool:
    """On gloo ``state`` stays "scheduled" for ever and ``retired`` is the only mark of an end."""
    entries = trace.entries
    if gloo:
        return entries.retired[at]
    return entries.state[at] == "completed" or entries.completed_ns[at] is not None


def views_of(trace: RankTrace) -> dict[int, View]:
    """``View`` per group index of ``trace``; groups without an entry are absent. Cost: O(entries)."""
    gloo = is_gloo(trace)
    entries = trace.entries
    views: dict[int, View] = {}
    closed_batches: set[tuple[int, int | None]] = set()
    for at in range(len(entries) - 1, -1, -1):  # newest first, so that the newest calls are the kept ones
        group = entries.group[at]
        view = views.get(group)
        if view is None:
            view = views[group] = View(trace.rank, trace, group)
        if entries.is_p2p[at]:
            _add_p2p(view, at, _finished(trace, at, gloo), closed_batches)
            continue
        sequence = entries.sequence[at]
        if sequence is None:
            continue
        part = view.low == sequence  # newest first: an equal number is an earlier part of a coalesced call
        view.high = sequence if view.high is None else max(view.high, sequence)
        view.low = sequence if view.low is None else min(view.low, sequence)
        if part:
            view.calls.get(sequence, []).insert(0, at)
        else:
            _add_call(view, sequence, at, _finished(trace, at, gloo), gloo)
    for view in views.values():
        view.open.sort()
        view.p2p_open.reverse()
    return views


def _add_call(view: View, sequence: int, at: int, finished: bool, gloo: bool) -> None:
    if not finished:
        view.open.append(sequence)
        if not gloo and view.trace.entries.retired[at]:
            view.timed_out.add(sequence)
    elif len(view.calls) >= KEPT_CALLS:
        return
    view.calls[sequence] = [at]


def _add_p2p(view: View, at: int, finished: bool, closed: set[tuple[int, int | None]]) -> None:
    """A member of a batch stays "scheduled" for ever: its closing entry tells (public issue 137969)."""
    entries = view.trace.entries
    view.p2p_used = True
    batch = (view.index, entries.p2p_sequence[at])
    if entries.op[at] == "coalesced":
        if finished:
            closed.add(batch)
        return
    if not finished and batch not in closed:
        view.p2p_open.append(at)
