"""The whole job at one look: groups by shape, lag matrix, open calls, since when. What reports draw.

In: ``Window`` of each rank and the ``Diagnosis`` made of them. Out: ``Overview``. It decides nothing: who is
to blame is the diagnosis' matter; here is only counted what stands open and who lacks what.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import numpy as np

from clusterwatch.analysis.lag import UNKNOWN, GroupFacts, LagMatrix, Standing, matrix, standing
from clusterwatch.analysis.model import Diagnosis, Finding
from clusterwatch.analysis.tables import Numbers, Rows, Window
from collectors.formats.columns import NULL, STARTED

OPEN_CALLS_MAX: Final = 200
"""Open calls told one by one: those of findings first, then the oldest."""
NAMED_MAX: Final = 8
"""Groups of a shape that are told by name."""
_LOOKS_MAX: Final = 64
"""Members of a group whose clocks are asked since when a call is open."""
_FAULTS: Final = frozenset({"hang", "crash"})


class GroupState(StrEnum):
    """What a group shows. Only a finding makes a group stuck; an open call alone is no fault."""

    OK = "ok"
    """no call is open"""
    WAITING = "waiting"
    """a call is open"""
    STUCK = "stuck"
    """a finding names a call of this group"""


@dataclass(frozen=True, slots=True)
class Shape:
    """All groups of one role and size: "512 tensor groups of 8: 511 ok, 1 stuck"."""

    role: str
    size: int
    count: int
    ok: int
    waiting: int
    stuck: int
    named: tuple[GroupFacts, ...]
    """stuck groups, at most ``NAMED_MAX``; the waiting ones where none is stuck"""


@dataclass(frozen=True, slots=True)
class OpenCall:
    """The oldest call of a group that some member has not finished."""

    group: GroupFacts
    state: GroupState
    seq: int | None
    """collective_seq_id; None where only sends or receives are open"""
    op: str
    joined: tuple[int, ...]
    """members that issued it, those without a dump left out"""
    missing: tuple[int, ...]
    """members that did not issue it"""
    silent: tuple[int, ...]
    """members that left no dump, or whose dump does not tell"""
    started: int
    """members on which it is known to run"""
    timed_out: int
    """members whose watchdog gave it up"""
    since_ns: int | None
    """when a member first issued it, by that member's clock"""
    timeout_ms: int | None


@dataclass(frozen=True, slots=True)
class Overview:
    """What a report shows beside the findings."""

    size: int
    """ranks of the job"""
    newest_ns: int | None
    """newest call in all dumps: the best known time at which the job stood"""
    shapes: tuple[Shape, ...]
    """by group size, largest first"""
    lag: LagMatrix
    open_calls: tuple[OpenCall, ...]
    open_left: int
    """groups with an open call that ``open_calls`` leaves out"""


def overview(windows: Sequence[Window], diagnosis: Diagnosis) -> Overview:
    """Counts groups, lags and open calls; a dump of another time counts as none.

    Cost: O(ranks x groups) in numpy; Python per group and per told open call.
    """
    stale = set(diagnosis.stale_ranks)
    fresh = [window for window in windows if window.rank not in stale]
    stand = standing(fresh)
    states = _states(stand, diagnosis)
    size = max(diagnosis.coverage.expected, int(stand.ranks.max(initial=-1)) + 1)
    calls, left = _open_calls(stand, states, diagnosis)
    return Overview(
        size=size,
        newest_ns=max((w.newest_ns for w in fresh if w.newest_ns is not None), default=None),
        shapes=_shapes(stand, states),
        lag=matrix(stand, size),
        open_calls=calls,
        open_left=left,
    )


def open_call_of(finding: Finding, calls: Sequence[OpenCall]) -> OpenCall | None:
    """The open call a finding speaks of, if it is among ``calls``."""
    if finding.group is None:
        return None
    ref = finding.group
    same = [call for call in calls if (call.group.name, call.group.desc) == (ref.name, ref.desc)]
    inside = [call for call in same if set(call.group.members) <= set(ref.ranks)]
    exact = [call for call in inside if call.seq == finding.seq]
    return next(iter(exact or inside), None)


def _states(stand: Standing, diagnosis: Diagnosis) -> tuple[GroupState, ...]:
    waits = np.zeros(len(stand.groups), np.bool_)
    np.logical_or.at(waits, stand.group, stand.waits)
    named: dict[tuple[str, str], list[frozenset[int]]] = defaultdict(list)
    for finding in diagnosis.findings:
        if finding.group is not None and finding.fault_class in _FAULTS:
            named[(finding.group.name, finding.group.desc)].append(frozenset(finding.group.ranks))
    states = []
    for group, waiting in zip(stand.groups, waits.tolist(), strict=True):
        lists = named.get((group.name, group.desc), ())
        if any(ranks.issuperset(group.members) for ranks in lists):
            states.append(GroupState.STUCK)
        else:
            states.append(GroupState.WAITING if waiting else GroupState.OK)
    return tuple(states)


def _shapes(stand: Standing, states: Sequence[GroupState]) -> tuple[Shape, ...]:
    together: dict[tuple[str, int], dict[GroupState, list[GroupFacts]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for group, state in zip(stand.groups, states, strict=True):
        together[(group.role, len(group.members))][state].append(group)
    shapes = []
    for (role, size), by_state in together.items():
        counts = {state: len(by_state[state]) for state in GroupState}
        named = by_state[GroupState.STUCK] or by_state[GroupState.WAITING]
        named.sort(key=lambda group: (group.members, group.name))
        shapes.append(
            Shape(
                role,
                size,
                sum(counts.values()),
                counts[GroupState.OK],
                counts[GroupState.WAITING],
                counts[GroupState.STUCK],
                tuple(named[:NAMED_MAX]),
            )
        )
    return tuple(sorted(shapes, key=lambda shape: (-shape.size, shape.role)))


def _open_calls(
    stand: Standing, states: Sequence[GroupState], diagnosis: Diagnosis
) -> tuple[tuple[OpenCall, ...], int]:
    """One call per group with an open one: a finding's groups first, then the oldest."""
    waiting = _by_group(stand, np.flatnonzero(stand.waits))
    opened = {group: _opened(stand, rows) for group, rows in waiting.items()}
    keyed = sorted(waiting, key=lambda at: (states[at] is not GroupState.STUCK, opened[at], at))
    chosen = keyed[:OPEN_CALLS_MAX]
    members = _by_group(stand, np.flatnonzero(np.isin(stand.group, chosen)))
    wanted = _wanted(diagnosis)
    calls = [_open_call(stand, at, states[at], waiting[at], members[at], wanted) for at in chosen]
    return tuple(calls), len(keyed) - len(chosen)


def _wanted(diagnosis: Diagnosis) -> dict[tuple[str, str, int], Finding]:
    """The finding that names a call, by group: it knows which of several open calls counts."""
    return {
        (f.group.name, f.group.desc, min(f.group.ranks, default=0)): f
        for f in reversed(diagnosis.findings)
        if f.group is not None and f.seq is not None and f.fault_class in _FAULTS
    }


def _opened(stand: Standing, rows: Numbers) -> int:
    """When a group's oldest open call was issued, as far as a few members tell; for the order only."""
    seen = [_call_rows(stand, row)["created_ns"] for row in rows[:4].tolist()]
    known = [int(created.min()) for created in seen if len(created)]
    return min((at for at in known if at != NULL), default=1 << 62)


def _by_group(stand: Standing, rows: Numbers) -> dict[int, Numbers]:
    """``rows`` parted by their group, groups rising."""
    if not len(rows):
        return {}
    order = rows[np.argsort(stand.group[rows], kind="stable")]
    numbers, starts = np.unique(stand.group[order], return_index=True)
    return dict(zip(numbers.tolist(), np.split(order, starts[1:]), strict=True))


def _call_rows(stand: Standing, row: int) -> Rows:
    """Open calls of one rank in one group: ``tables.CALL``, rising; sends and receives where no other is."""
    window, facts = stand.windows[int(stand.window[row])], stand.facts[row]
    calls: Rows = window.calls[int(facts["first_call"]) : int(facts["end_call"])]
    open_calls: Rows = calls[~calls["finished"]]
    if len(open_calls):
        return open_calls
    p2p: Rows = window.p2p[window.p2p["group"] == int(stand.local[row])]
    return p2p


def _open_call(
    stand: Standing,
    number: int,
    state: GroupState,
    waiting: Numbers,
    members: Numbers,
    wanted: dict[tuple[str, str, int], Finding],
) -> OpenCall:
    group = stand.groups[number]
    firsts = stand.facts["first_open"][waiting]
    known = firsts[firsts != NULL]
    finding = wanted.get((group.name, group.desc, min(group.members, default=0)))
    seq = finding.seq if finding is not None else int(known.min()) if len(known) else None
    rows = _calls_at(stand, waiting[:_LOOKS_MAX], seq)
    joined, missing, silent = _parted(stand, number, members, seq)
    if not len(known):
        joined, missing = tuple(stand.rank[waiting].tolist()), ()
    if finding is not None and (finding.joined_ranks or finding.missing_ranks):
        no_dump = set(group.members) - set(stand.rank[members].tolist())
        joined = finding.joined_ranks
        missing = tuple(rank for rank in finding.missing_ranks if rank not in no_dump)
        silent = tuple(rank for rank in silent if rank not in {*joined, *missing})
    created = [int(call["created_ns"]) for _, call in rows if call["created_ns"] != NULL]
    timeouts = [int(call["timeout_ms"]) for _, call in rows if call["timeout_ms"] > 0]
    return OpenCall(
        group=group,
        state=state,
        seq=seq if len(known) else None,
        op=_op(rows),
        joined=joined,
        missing=missing,
        silent=silent,
        started=sum(int(call["state"]) == STARTED for _, call in rows),
        timed_out=sum(bool(call["retired"]) for _, call in rows),
        since_ns=min(created, default=None),
        timeout_ms=min(timeouts, default=None),
    )


def _calls_at(stand: Standing, rows: Numbers, seq: int | None) -> list[tuple[Window, Any]]:
    """Each member's open call of that number, or its oldest open one where no number is known."""
    found = []
    for row in rows.tolist():
        calls = _call_rows(stand, row)
        calls = calls if seq is None else calls[calls["sequence"] == seq]
        if len(calls):
            found.append((stand.windows[int(stand.window[row])], calls[0]))
    return found


def _parted(stand: Standing, number: int, members: Numbers, seq: int | None) -> tuple[tuple[int, ...], ...]:
    """Members that issued ``seq``, those that did not, and those of whom the dumps do not tell."""
    blind = (stand.behind[members] == UNKNOWN) & ~stand.waits[members]
    issued = (stand.behind[members] <= stand.front[number] - (seq or 0)) & ~blind
    ranks = stand.rank[members]
    telling = set(ranks[~blind].tolist())
    silent = tuple(rank for rank in stand.groups[number].members if rank not in telling)
    return tuple(ranks[issued].tolist()), tuple(ranks[~issued & ~blind].tolist()), silent


def _op(rows: Sequence[tuple[Window, Any]]) -> str:
    """The operation most members passed; the first by name on a tie."""
    votes: dict[str, int] = defaultdict(int)
    for window, call in rows:
        votes[window.call_signatures[int(call["signature"])].op] += 1
    return min(votes, key=lambda op: (-votes[op], op), default="")
