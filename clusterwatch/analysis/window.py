"""What the engine needs of one rank's ring, whatever its length: bounded, flat, picklable.

In: ``TraceColumns``. Out: ``Window``. Cost: one pass in numpy, about 0.6 ms for 2,000 entries of 8 groups; a
window takes 5 to 20 kB whatever the ring holds, so memory follows ranks x groups. A reader may reduce in a
worker process and hand the windows to ``diagnose(Observation(windows=...))``: signatures, call sites and
groups carry digests that are equal in every process, so windows compare without being decoded.

Names that stay for users of the engine: ``World.windows``, ``World.groups``, ``World.size``,
``World.no_dump``, ``World.groups_of(rank)``; ``Group.name/desc/members/ordered/views/high/role/ref``;
``View.rank/window/low/high/open/timed_out/p2p_open/issued()/entry()/first_open`` and, of an entry that
``entry()`` gives, ``View.op/state/retired/created_ns/site/recorded``. ``Group.views`` builds a ``View`` when
it is asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from clusterwatch.analysis.ring import Ring, column
from clusterwatch.analysis.shared_tables import (
    MEMBERS,
    call_texts,
    group_key,
    site_of_stack,
    text_digest,
)
from clusterwatch.analysis.tables import (
    CALL,
    GROUP,
    PAIR,
    TAIL,
    Marks,
    Numbers,
    Rows,
    ToldGroup,
    Window,
)
from collectors.formats.columns import COMPLETED, NULL, TraceColumns
from collectors.formats.trace import TraceGroup
from collectors.wire import limits

__all__ = ["Window", "reduce"]

NEWEST_CALLS: Final = 16
"""Newest calls of a group that are kept."""
BEFORE_OPEN: Final = 8
AFTER_OPEN: Final = 24
"""Calls kept around the first open one: what went wrong is there, however far the launches ran ahead."""
OPEN_CALLS_MAX: Final = 64
"""Open calls kept per group, the oldest; all are counted."""
P2P_OPEN_MAX: Final = 256
"""Open sends and receives kept per rank, the oldest; all are counted."""
P2P_PAIRS_MAX: Final = 256
"""Different finished sends and receives remembered per rank: who its usual peers are."""
UNCLOSED_BATCHES: Final = frozenset({"xccl"})
"""Recorders that write no closing entry after a batch, so nothing tells its end."""
TAIL_CALLS: Final = 400
"""Newest collective calls of a rank, of all groups, by signature and call site: its pattern."""


def reduce(trace: TraceColumns) -> Window:
    """The window of one dump.

    Cost: O(entries) in numpy; about 0.6 ms for 2,000 entries, 0.3 ms for 50.
    """
    return _Reduction(Ring(trace)).window()


class _Reduction:
    """One pass over the columns of a dump. Rows are entries (N) until ``_calls`` picks the kept ones."""

    def __init__(self, ring: Ring) -> None:
        self.ring = ring
        self.groups = np.repeat(_NO_CALLS, len(ring.trace.groups))

    def window(self) -> Window:
        ring, trace = self.ring, self.ring.trace
        told = self._groups()
        calls = self._collectives()
        halves, pairs = self._p2p()
        tail = ring.collective[-TAIL_CALLS:]
        kept = _Kept(ring, (calls, halves, pairs, tail))
        created = ring.created[ring.created != NULL]
        open_at = [at.min() for at in (calls.rows[~ring.finished[calls.rows]], halves) if len(at)]
        return Window(
            rank=trace.rank,
            source=trace.source,
            version=trace.version,
            backend=trace.backend,
            taken_ns=trace.taken_ns,
            newest_ns=int(created.max()) if len(created) else None,
            oldest_ns=int(created.min()) if len(created) else None,
            longest_gap_ns=max(0, int((created[1:] - created[:-1]).max())) if len(created) > 1 else 0,
            entry_count=len(trace.entries),
            truncated=ring.truncated,
            timed=ring.timed,
            any_finished=bool((ring.retired | (ring.state == COMPLETED)).any()),
            oldest_open_at=int(min(open_at)) if open_at else None,
            last=kept.last,
            tail_key=kept.tail_key(),
            group_bytes=self.groups.tobytes(),
            call_bytes=kept.calls.tobytes(),
            p2p_bytes=kept.p2p.tobytes(),
            pair_bytes=kept.pairs.tobytes(),
            tail_bytes=kept.tail.tobytes(),
            signature_bytes=kept.signature_rows.tobytes(),
            group_texts=msgspec.msgpack.encode(told),
            call_texts=kept.texts(),
            unnumbered=ring.unnumbered,
            passed_over=ring.passed_over,
        )

    def _groups(self) -> list[ToldGroup]:
        told, keys, groups = [], [], self.ring.trace.groups
        for group in groups:
            runs, members = MEMBERS.of(group.ranks)
            told.append(ToldGroup(group.name, group.desc, runs))
            keys.append(group_key(group.name, group.desc, members))
        self.groups["key"] = keys
        self.groups["told"] = [bool(group.runs) for group in told]
        _fill_status(self.groups, groups)
        return told

    def _collectives(self) -> _Chosen:
        """The calls to keep, by group and sequence; fills ``groups``."""
        ring = self.ring
        rows, sequence, group = ring.ordered
        if not len(rows):
            return _Chosen(rows, rows)
        same = group[1:] == group[:-1]
        if (same & (sequence[1:] < sequence[:-1])).any():  # threads may record a little out of order
            rows = rows[np.lexsort((sequence, group))]
            group, sequence = ring.group[rows], ring.sequence[rows]
        ends = _ends(~same | (sequence[1:] != sequence[:-1]))
        last = ends - 1
        rows, group, sequence = rows[last], group[last], sequence[last]
        keep = self._keep(rows, group, sequence, _ends(group[1:] != group[:-1]))
        return _Chosen(rows[keep], (ends - _starts(ends))[keep])

    def _keep(self, rows: Numbers, group: NDArray[Any], sequence: Numbers, ends: Numbers) -> Marks:
        """Which calls stay: the newest, those around the first open one, and open ones; fills ``groups``."""
        ring, count, starts = self.ring, len(rows), _starts(ends)
        place = np.arange(count)
        number = np.repeat(np.arange(len(starts)), ends - starts)
        is_open = ~ring.finished[rows]
        first_open = np.minimum.reduceat(np.where(is_open, place, count), starts)
        has_open = first_open < ends
        around = place - first_open[number]
        nth_open = np.cumsum(is_open)
        nth_open = nth_open - (nth_open[starts] - is_open[starts])[number]
        keep = ends[number] - place <= NEWEST_CALLS
        keep |= has_open[number] & (around >= -BEFORE_OPEN) & (around <= AFTER_OPEN)
        keep |= is_open & (nth_open <= OPEN_CALLS_MAX)
        shared = ~is_open & ring.table.all_party[ring.signature[rows]]
        if ring.trace.backend == "gloo":  # marks a call as over when it failed too, and then makes no other
            shared &= rows != len(ring.group) - 1
        held = group[starts]
        kept = np.add.reduceat(keep, starts, dtype=np.int64)
        kept_ends = kept.cumsum()
        self._put(held, "low", sequence[starts])
        self._put(held, "high", sequence[ends - 1])
        oldest = np.minimum(first_open, count - 1)
        self._put(held, "first_open", np.where(has_open, sequence[oldest], NULL))
        self._put(held, "first_open_at", np.where(has_open, rows[oldest], NULL))
        self._put(held, "first_open_ns", np.where(has_open, ring.created[rows[oldest]], NULL))
        self._put(held, "first_open_state", ring.state[rows[oldest]])
        self._put(held, "shared_end", np.maximum.reduceat(np.where(shared, sequence, NULL), starts))
        self._put(held, "call_count", ends - starts)
        self._put(held, "open_count", np.add.reduceat(is_open, starts, dtype=np.int64))
        timed_out = is_open & ring.retired[rows]
        self._put(held, "timed_out_count", np.add.reduceat(timed_out, starts, dtype=np.int64))
        self._put(held, "first_call", kept_ends - kept)
        self._put(held, "end_call", kept_ends)
        return keep

    def _put(self, held: Numbers, name: str, values: NDArray[Any]) -> None:
        self.groups[name][held] = values

    def _p2p(self) -> tuple[Numbers, Numbers]:
        """Entries of open sends and receives, and one entry per different finished one.

        A member of a batch stays "scheduled" for ever: its closing entry tells (public issue 137969).
        """
        ring = self.ring
        rows = ring.p2p
        if not len(rows):
            return rows, rows
        closing = ring.table.closing[ring.signature[rows]]
        halves, finished = ~closing, ring.finished[rows]
        is_open = halves & ~finished
        if closing.any():
            batch = (ring.group[rows].astype(np.int64) << 40) + ring.p2p_sequence[rows]
            is_open &= ~_contained(batch, batch[closing & finished])
        elif ring.trace.backend in UNCLOSED_BATCHES:
            is_open &= not ring.truncated and len(rows) <= P2P_OPEN_MAX  # else halves cannot be paired
        for name, marks in (("p2p_count", halves), ("p2p_open_count", is_open)):
            self.groups[name] = np.bincount(ring.group[rows[marks]], minlength=len(self.groups))
        done = rows[halves & ~is_open]
        pair = ring.group[done].astype(np.int64) * len(ring.table.table) + ring.signature[done]
        _, first = np.unique(pair[::-1], return_index=True)
        newest = np.sort(len(done) - 1 - first)[-P2P_PAIRS_MAX:]
        return rows[is_open][:P2P_OPEN_MAX], done[newest]


_NO_CALLS: Final = np.zeros(1, GROUP)
"""A group that no call is in."""
for _name in ("low", "high", "first_open", "first_open_ns", "first_open_at", "shared_end"):
    _NO_CALLS[_name] = NULL


def _ends(changes: Marks) -> Numbers:
    """Where each run of equal neighbours ends (exclusive); ``changes``, one shorter: the next one differs."""
    at = changes.nonzero()[0]
    ends = np.empty(len(at) + 1, np.int64)
    ends[:-1] = at + 1
    ends[-1] = len(changes) + 1
    return ends


def _starts(ends: Numbers) -> Numbers:
    starts = np.zeros_like(ends)
    starts[1:] = ends[:-1]
    return starts


def _contained(values: Numbers, some: Numbers) -> Marks:
    """Which of ``values`` are among ``some``: by search, a tenth of what ``numpy.isin`` takes on so few."""
    if not len(some):
        return np.zeros(len(values), np.bool_)
    some = np.sort(some)
    at = np.minimum(some.searchsorted(values), len(some) - 1)
    found: Marks = some[at] == values
    return found


@dataclass(frozen=True, slots=True)
class _Chosen:
    """Entries that tell the state of a call, and of how many entries each call is."""

    rows: Numbers
    parts: Numbers


class _Kept:
    """The kept rows as tables, with signatures and sites numbered anew: only what is kept is in them."""

    def __init__(self, ring: Ring, chosen: tuple[_Chosen, Numbers, Numbers, Numbers]) -> None:
        calls, halves, pairs, tail = chosen
        self.ring = ring
        newest = np.arange(len(ring.group))[-1:]
        every = np.concatenate([calls.rows, halves, pairs, tail, newest])
        self.stack = column(ring.trace.entries.stack, np.int32)
        self.used, self.number_of = _renumbered(ring.signature[every], len(ring.trace.signatures))
        self.site_table, self.site_of = self._numbered(np.concatenate([calls.rows, halves, tail, newest]))
        self.signature_rows: Rows = ring.table.rows[self.used]
        self.calls = self._rows(calls.rows, ring.sequence, calls.parts)
        self.p2p = self._rows(halves, ring.p2p_sequence, np.ones(len(halves)))
        self.pairs: Rows = np.zeros(len(pairs), PAIR)
        self.pairs["group"] = ring.group[pairs]
        self.pairs["signature"] = self.number_of[ring.signature[pairs]]
        self.tail: Rows = np.zeros(len(tail), TAIL)
        self.tail["sequence"], self.tail["group"] = ring.sequence[tail], ring.group[tail]
        self.tail["signature"], self.tail["site"] = self.number_of[ring.signature[tail]], self._sites(tail)
        self.last = self._last(int(newest[0])) if len(newest) else None

    def _numbered(self, rows: Numbers) -> tuple[tuple[str, ...], NDArray[np.int32]]:
        """The different call sites of some entries, and for each stack (``NULL``: the last) its place."""
        stacks = self.ring.trace.stacks
        site_of = np.full(len(stacks) + 1, NULL, np.int32)
        numbers: dict[str, int] = {}
        if stacks:
            used = np.zeros(len(stacks) + 1, np.bool_)
            used[self.stack[rows]] = True
            for index in used[:-1].nonzero()[0].tolist():
                if place := site_of_stack(stacks[index]):
                    site_of[index] = numbers.setdefault(place, len(numbers))
        return tuple(numbers), site_of

    def _sites(self, rows: Numbers) -> NDArray[np.int32]:
        places: NDArray[np.int32] = self.site_of[self.stack[rows]]
        return places

    def _rows(self, rows: Numbers, sequence: Numbers, parts: NDArray[Any]) -> Rows:
        ring = self.ring
        made: Rows = np.zeros(len(rows), CALL)
        made["sequence"], made["created_ns"], made["at"] = sequence[rows], ring.created[rows], rows
        made["timeout_ms"] = column(ring.trace.entries.timeout_ms, np.int64)[rows]
        made["group"], made["signature"] = ring.group[rows], self.number_of[ring.signature[rows]]
        made["site"], made["parts"] = self._sites(rows), parts
        made["state"], made["retired"] = ring.state[rows], ring.retired[rows]
        made["finished"] = ring.finished[rows]
        return made

    def _last(self, at: int) -> tuple[int, int, int | None, int]:
        ring = self.ring
        sequence = int(ring.sequence[at])
        return (
            int(ring.group[at]),
            int(self.number_of[ring.signature[at]]),
            None if sequence == NULL else sequence,
            int(self._sites(np.array([at]))[0]),
        )

    def tail_key(self) -> int:
        """Roles, not groups: ranks of different groups that run one program have one key."""
        if not len(self.tail):
            return 0
        roles = [text_digest(group.desc or group.name) for group in self.ring.trace.groups]
        sites = [*map(text_digest, self.site_table), 0]
        tokens = np.array(roles, np.uint64)[self.tail["group"]] * _MIX_A
        tokens = (tokens + self.signature_rows["token"][self.tail["signature"]]) * _MIX_B
        tokens += np.array(sites, np.uint64)[self.tail["site"]]
        return int.from_bytes(blake2b(tokens.tobytes(), digest_size=8).digest(), "little")

    def texts(self) -> bytes:
        stacks, stack = self.ring.trace.stacks, self.stack
        newest = stacks[stack[-1]] if len(stack) and stack[-1] != NULL else ()
        kept = newest[: limits.FRAMES_PER_STACK_MAX]
        return call_texts(self.ring.table, self.used.tobytes(), self.site_table, kept)


_MIX_A: Final = np.uint64(0x9E3779B97F4A7C15)
_MIX_B: Final = np.uint64(0xC2B2AE3D27D4EB4F)
"""Odd 64-bit constants: multiplying by one loses nothing."""


def _renumbered(indices: NDArray[Any], count: int) -> tuple[Numbers, Numbers]:
    """The different ``indices``, rising, and for each old index (and ``NULL``, the last) its new one."""
    used = np.zeros(count + 1, np.bool_)
    used[indices] = True
    number_of = np.cumsum(used) - 1
    number_of[-1] = NULL
    return used.nonzero()[0], number_of


def _fill_status(rows: Rows, groups: tuple[TraceGroup, ...]) -> None:
    for name in ("last_enqueued", "last_started", "last_completed"):
        told = [getattr(group, name) for group in groups]
        rows[name] = [NULL if number is None else number for number in told]
