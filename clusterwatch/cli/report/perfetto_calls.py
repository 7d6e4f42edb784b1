"""Calls of one ring as spans of time, and their places on threads.

A viewer draws the spans of a thread only if any two are apart or one is inside the other. Calls of a group
run one after the other, but are issued ahead, so a call without a known start is drawn from the end of the
call before it; what still overlaps gets a further thread of the same group.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from clusterwatch.analysis.sentence import noun
from collectors.formats.columns import COMPLETED, NULL, STATES, Signature, TraceColumns

LANES_MAX: Final = 32
"""Threads of one group; calls that overlap more than that are counted and left out."""
_NO_END_NS: Final = 1_000
"""Length of a finished call whose end nobody recorded (gloo never does)."""
_CLOSING: Final = "coalesced"
"""The entry that ends a batch of sends and receives: the members' own states mean nothing."""


@dataclass(frozen=True, slots=True)
class Call:
    """One entry of a ring, ready to be drawn."""

    group: str
    desc: str
    thread: str
    is_p2p: bool
    label: str
    sequence: int | None
    begin_ns: int
    end_ns: int
    is_open: bool
    details: dict[str, Any]
    """what the viewer shows of it"""


def calls_of(trace: TraceColumns, end_ns: int) -> tuple[list[Call], int]:
    """Every call with a time, in record order, and the number of those without.

    Args:
        end_ns: where open calls are drawn to.
    """
    ring = _Ring(trace)
    found: list[Call] = []
    ends: dict[tuple[int, bool], int] = defaultdict(int)
    for at in range(len(trace.entries)):
        if trace.entries.created_ns[at] == NULL:
            continue
        call = ring.call(at, end_ns, ends[ring.track(at)])
        if not call.is_open:
            ends[ring.track(at)] = max(ends[ring.track(at)], call.end_ns)
        found.append(call)
    return found, len(trace.entries) - len(found)


class _Ring:
    """Reads entries of one dump; a call of several entries ends when its last one does."""

    def __init__(self, trace: TraceColumns) -> None:
        self.trace = trace
        self.entries = trace.entries
        self.gloo = trace.backend == "gloo"
        self.names = [_thread_name(group.name, group.desc, group.ranks) for group in trace.groups]
        self.telling: dict[tuple[int, bool, int], int] = {}
        for at in range(len(self.entries)):
            if not self._signature(at).is_p2p or self._signature(at).op == _CLOSING:
                self.telling[self._key(at)] = at

    def _signature(self, at: int) -> Signature:
        return self.trace.signatures[self.entries.signature[at]]

    def track(self, at: int) -> tuple[int, bool]:
        return self.entries.group[at], self._signature(at).is_p2p

    def _key(self, at: int) -> tuple[int, bool, int]:
        p2p = self._signature(at).is_p2p
        number = self.entries.p2p_sequence[at] if p2p else self.entries.sequence[at]
        return self.entries.group[at], p2p, number

    def call(self, at: int, end_ns: int, free_ns: int) -> Call:
        """The entry as a span; ``free_ns``: when the group's finished calls before it had ended."""
        entries, signature = self.entries, self._signature(at)
        tells = self.telling.get(self._key(at), at)
        created, started = entries.created_ns[at], entries.started_ns[at]
        is_open, end = self._end(tells, max(created, started), end_ns)
        begin, origin = (started, "start") if started >= created else (created, "creation")
        if origin == "creation" and created < free_ns <= end:
            begin, origin = free_ns, "end of the call before"
        group = self.trace.groups[entries.group[at]]
        sequence = entries.p2p_sequence[at] if signature.is_p2p else entries.sequence[at]
        return Call(
            group.name,
            group.desc,
            self.names[entries.group[at]] + (", send and receive" if signature.is_p2p else ""),
            signature.is_p2p,
            signature.op if sequence == NULL else f"{signature.op} {sequence}",
            None if sequence == NULL else sequence,
            min(begin, end),
            end,
            is_open,
            self._details(at, tells, is_open, origin),
        )

    def _end(self, at: int, begin_ns: int, end_ns: int) -> tuple[bool, int]:
        """Whether the call is open, and where it ends; without a recorded end, at once."""
        entries = self.entries
        completed, duration = entries.completed_ns[at], entries.duration_ns[at]
        over = bool(entries.retired[at]) if self.gloo else entries.state[at] == COMPLETED or completed != NULL
        if not over:
            return True, max(end_ns, begin_ns)
        if completed != NULL:
            return False, max(completed, begin_ns)
        return False, begin_ns + (duration if duration != NULL else _NO_END_NS)

    def _details(self, at: int, tells: int, is_open: bool, origin: str) -> dict[str, Any]:
        entries, signature = self.entries, self._signature(at)
        group = self.trace.groups[entries.group[at]]
        ended = entries.completed_ns[tells] != NULL or entries.duration_ns[tells] != NULL
        details: dict[str, Any] = {
            "op": signature.op,
            "seq": None if entries.sequence[at] == NULL else entries.sequence[at],
            "p2p_seq": entries.p2p_sequence[at] if signature.is_p2p else None,
            "state": STATES[entries.state[tells]],
            "retired": bool(entries.retired[tells]),
            "open": is_open,
            "end": None if is_open or ended else "not recorded",
            "drawn_from": origin,
            "group": group.name,
            "role": group.desc,
            "input": _shapes(signature.input_sizes, signature.input_dtypes),
            "output": _shapes(signature.output_sizes, signature.output_dtypes),
            "created_ns": str(entries.created_ns[at]),
            "record": entries.record_id[at],
        }
        if entries.stack[at] != NULL:
            details["called_from"] = next(iter(self.trace.stacks[entries.stack[at]]), None)
        return {key: value for key, value in details.items() if value not in (None, "")}


def _thread_name(name: str, desc: str, ranks: tuple[int, ...]) -> str:
    members = f", {noun(ranks, 3)}" if ranks else ""
    return f"{desc or 'group'} {name}{members}" if desc != name else f"{name}{members}"


def _shapes(sizes: Iterable[tuple[int, ...]], dtypes: Iterable[str]) -> str:
    """``Float[4096, 8]; Float[16]``."""
    kinds = [*dtypes]
    told = [f"{kinds[at] if at < len(kinds) else ''}{list(size)}" for at, size in enumerate(sizes)]
    return "; ".join(told[:4]) + (f"; and {len(told) - 4} more" if len(told) > 4 else "")


def laid_out(calls: Iterable[Call]) -> tuple[list[tuple[str, list[Call]]], int]:
    """Threads with their calls by rising begin, groups in order of first use; and what found no place."""
    threads: dict[str, list[Call]] = defaultdict(list)
    for call in calls:
        threads[call.thread].append(call)
    placed: list[tuple[str, list[Call]]] = []
    left_out = 0
    for label, mine in threads.items():
        lanes: list[list[Call]] = []
        stacks: list[list[int]] = []
        for call in sorted(mine, key=lambda call: (call.begin_ns, -call.end_ns)):
            lane = _lane(stacks, call)
            if lane is None:
                left_out += 1
            elif lane == len(lanes):
                lanes.append([call])
            else:
                lanes[lane].append(call)
        names = [label, *(f"{label}, overlapping {n}" for n in range(1, len(lanes)))]
        placed += zip(names, lanes, strict=True)
    return placed, left_out


def _lane(stacks: list[list[int]], call: Call) -> int | None:
    """The first lane where the call is apart from, or inside of, what is there; open ends are on a stack."""
    for number, ends in enumerate(stacks):
        while ends and ends[-1] <= call.begin_ns:
            ends.pop()
        if not ends or ends[-1] >= call.end_ns:
            ends.append(call.end_ns)
            return number
    if len(stacks) == LANES_MAX:
        return None
    stacks.append([call.end_ns])
    return len(stacks) - 1
