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

import functools
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from clusterwatch.analysis.signature import ALL_PARTY, TOTALS, comparable, element_count, plain
from clusterwatch.analysis.stacks import user_frame
from clusterwatch.analysis.tables import (
    CALL,
    GROUP,
    PAIR,
    SIGNATURE,
    TAIL,
    CallTexts,
    Marks,
    Numbers,
    Rows,
    ToldGroup,
    Window,
    digest,
)
from collectors.formats import columns
from collectors.formats.columns import COMPLETED, NULL, STARTED, Signature, TraceColumns
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
    return _Reduction(trace).window()


@functools.lru_cache(maxsize=16_384)
def _signature_row(signature: Signature) -> tuple[int, int, int, int, int, bool]:
    op = plain(signature.op)
    sent = received = NULL
    shapes: object = signature.input_sizes
    if op in TOTALS:
        sent, received = element_count(signature.input_sizes), element_count(signature.output_sizes)
        if not (signature.input_sizes and signature.output_sizes):
            sent = received = NULL
    if op.startswith("alltoall"):
        shapes = ()  # legal to differ from step to step
    return (
        digest(comparable(signature)),
        digest(comparable(signature, coalesced=True)),
        digest(signature.op, shapes),
        sent,
        received,
        op in ALL_PARTY,
    )


@functools.lru_cache(maxsize=16_384)
def _site_of(frames: tuple[str, ...]) -> str:
    return user_frame(reversed(frames))


class _Members:
    """Runs and digest of a member list, by identity: ranks of a job share one object, hashed once."""

    def __init__(self) -> None:
        self._held: dict[int, tuple[tuple[int, ...], bytes, int]] = {}
        self._room = _MEMBERS_HELD_MAX

    def of(self, ranks: tuple[int, ...]) -> tuple[bytes, int]:
        known = self._held.get(id(ranks))
        if known is not None and known[0] is ranks:
            return known[1], known[2]
        if len(ranks) > self._room:
            self._held.clear()
            self._room = _MEMBERS_HELD_MAX
        self._room -= len(ranks) + 1
        told = ranks if max(ranks, default=0) < limits.RANKS_PER_GROUP_MAX else ()  # no job has such a rank
        runs = columns.member_runs(told)
        number = digest(runs if _rising(told) else columns.member_runs(tuple(sorted(told))))
        self._held[id(ranks)] = (ranks, runs, number)
        return runs, number


_MEMBERS_HELD_MAX: Final = 4_000_000
_MEMBERS: Final = _Members()


def _rising(ranks: tuple[int, ...]) -> bool:
    numbers = np.fromiter(ranks, np.int64, len(ranks))
    return bool((numbers[1:] > numbers[:-1]).all())


@functools.lru_cache(maxsize=65_536)
def group_key(name: str, desc: str, members: int) -> int:
    return digest(name, desc, members)


class _Reduction:
    """One pass over the columns of a dump. Rows are entries (N) until ``_calls`` picks the kept ones."""

    def __init__(self, trace: TraceColumns) -> None:
        self.trace = trace
        entries = trace.entries
        self.gloo = trace.backend == "gloo"
        self.group = _array(entries.group, np.int32)
        self.sequence = _array(entries.sequence, np.int64)
        self.p2p_sequence = _array(entries.p2p_sequence, np.int64)
        self.signature = _array(entries.signature, np.int32)
        self.state = _array(entries.state, np.int8)
        self.retired = _array(entries.retired, np.int8) == 1
        self.created = _array(entries.created_ns, np.int64)
        if self.gloo:  # there ``state`` stays "scheduled" for ever
            self.finished = self.retired
        else:
            completed = _array(entries.completed_ns, np.int64)
            self.finished = (self.state == COMPLETED) | (completed != NULL)
        kinds = [(s.is_p2p, s.op == "coalesced", plain(s.op) in ALL_PARTY) for s in trace.signatures]
        self.kinds = np.array(kinds, np.bool_).reshape(-1, 3)
        self.is_p2p = self.kinds[self.signature, 0] if len(self.group) else np.zeros(0, np.bool_)
        self.groups = np.zeros(len(trace.groups), GROUP)

    def window(self) -> Window:
        trace, entries = self.trace, self.trace.entries
        told = self._groups()
        calls = self._collectives()
        halves, pairs = self._p2p()
        tail = np.flatnonzero(~self.is_p2p & (self.sequence != NULL))[-TAIL_CALLS:]
        kept = _Kept(self, (calls, halves, pairs, tail))
        created = self.created[self.created != NULL]
        open_at = [rows["at"].min() for rows in (kept.calls[~kept.calls["finished"]], kept.p2p) if len(rows)]
        started = (self.state == STARTED).any() or (_array(entries.started_ns, np.int64) > 0).any()
        return Window(
            rank=trace.rank,
            source=trace.source,
            version=trace.version,
            backend=trace.backend,
            taken_ns=trace.taken_ns,
            newest_ns=int(created.max()) if len(created) else None,
            oldest_ns=int(created.min()) if len(created) else None,
            longest_gap_ns=max(0, int(np.diff(created).max())) if len(created) > 1 else 0,
            entry_count=len(entries),
            truncated=trace.truncated,
            timed=bool(started),
            any_finished=bool((self.retired | (self.state == COMPLETED)).any()),
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
        )

    def _groups(self) -> list[ToldGroup]:
        told = []
        for row, group in zip(self.groups, self.trace.groups, strict=True):
            runs, members = _MEMBERS.of(group.ranks)
            told.append(ToldGroup(group.name, group.desc, runs))
            row["key"] = group_key(group.name, group.desc, members)
            row["told"] = bool(runs)
        _fill_status(self.groups, self.trace.groups)
        for name in ("low", "high", "first_open", "first_open_ns", "first_open_at", "shared_end"):
            self.groups[name] = NULL
        return told

    def _collectives(self) -> _Chosen:
        """The calls to keep, by group and sequence; fills ``groups``."""
        rows = np.flatnonzero(~self.is_p2p & (self.sequence != NULL))
        if not len(rows):
            return _Chosen(rows, rows)
        narrow = np.int16 if len(self.groups) < 2**15 else np.int32  # sorted by counting, in one pass
        rows = rows[np.argsort(self.group[rows].astype(narrow), kind="stable")]
        group, sequence = self.group[rows], self.sequence[rows]
        same = group[1:] == group[:-1]
        if (same & (sequence[1:] < sequence[:-1])).any():  # threads may record a little out of order
            rows = rows[np.lexsort((sequence, group))]
            group, sequence = self.group[rows], self.sequence[rows]
        changes = ~same | (sequence[1:] != sequence[:-1])
        ends = np.append(np.flatnonzero(changes), len(rows) - 1)
        parts = np.diff(ends, prepend=-1)
        rows, group, sequence = rows[ends], group[ends], sequence[ends]
        starts = np.append(0, np.flatnonzero(group[1:] != group[:-1]) + 1)
        return _Chosen(rows, parts).only(self._keep(rows, group, sequence, starts))

    def _keep(self, rows: Numbers, group: Numbers, sequence: Numbers, starts: Numbers) -> Marks:
        """Which calls stay: the newest, those around the first open one, and open ones; fills ``groups``."""
        count = len(rows)
        ends = np.append(starts[1:], count)
        place = np.arange(count)
        number = np.repeat(np.arange(len(starts)), ends - starts)
        is_open = ~self.finished[rows]
        first_open = np.minimum.reduceat(np.where(is_open, place, count), starts)
        has_open = first_open < ends
        around = place - first_open[number]
        nth_open = np.cumsum(is_open)
        nth_open = nth_open - (nth_open[starts] - is_open[starts])[number]
        keep = ends[number] - place <= NEWEST_CALLS
        keep |= has_open[number] & (around >= -BEFORE_OPEN) & (around <= AFTER_OPEN)
        keep |= is_open & (nth_open <= OPEN_CALLS_MAX)
        shared = ~is_open & self.kinds[self.signature[rows], 2]
        held = group[starts]
        kept_ends = np.cumsum(np.add.reduceat(keep, starts))
        self._put(held, "low", sequence[starts])
        self._put(held, "high", sequence[ends - 1])
        oldest = np.minimum(first_open, count - 1)
        self._put(held, "first_open", np.where(has_open, sequence[oldest], NULL))
        self._put(held, "first_open_at", np.where(has_open, rows[oldest], NULL))
        self._put(held, "first_open_ns", np.where(has_open, self.created[rows[oldest]], NULL))
        self._put(held, "first_open_state", self.state[rows[oldest]])
        self._put(held, "shared_end", np.maximum.reduceat(np.where(shared, sequence, NULL), starts))
        self._put(held, "call_count", ends - starts)
        self._put(held, "open_count", np.add.reduceat(is_open, starts, dtype=np.int64))
        timed_out = is_open & self.retired[rows]
        self._put(held, "timed_out_count", np.add.reduceat(timed_out, starts, dtype=np.int64))
        self._put(held, "first_call", np.append(0, kept_ends[:-1]))
        self._put(held, "end_call", kept_ends)
        return keep

    def _put(self, held: Numbers, name: str, values: NDArray[Any]) -> None:
        self.groups[name][held] = values

    def _p2p(self) -> tuple[Numbers, Numbers]:
        """Entries of open sends and receives, and one entry per different finished one.

        A member of a batch stays "scheduled" for ever: its closing entry tells (public issue 137969).
        """
        rows = np.flatnonzero(self.is_p2p)
        if not len(rows):
            return rows, rows
        closing = self.kinds[self.signature[rows], 1]
        batch = (self.group[rows].astype(np.int64) << 40) + self.p2p_sequence[rows]
        closed = batch[closing & self.finished[rows]]
        halves = ~closing
        is_open = halves & ~self.finished[rows] & ~np.isin(batch, closed)
        if self.trace.backend in UNCLOSED_BATCHES and not closing.any():
            is_open &= not self.trace.truncated and len(rows) <= P2P_OPEN_MAX  # else halves cannot be paired
        for name, marks in (("p2p_count", halves), ("p2p_open_count", is_open)):
            self.groups[name] = np.bincount(self.group[rows[marks]], minlength=len(self.groups))
        done = rows[halves & ~is_open]
        pair = self.group[done].astype(np.int64) * len(self.kinds) + self.signature[done]
        _, first = np.unique(pair[::-1], return_index=True)
        newest = np.sort(len(done) - 1 - first)[-P2P_PAIRS_MAX:]
        return rows[is_open][:P2P_OPEN_MAX], done[newest]


@dataclass(frozen=True, slots=True)
class _Chosen:
    """Entries that tell the state of a call, and of how many entries each call is."""

    rows: Numbers
    parts: Numbers

    def only(self, keep: Marks) -> _Chosen:
        return _Chosen(self.rows[keep], self.parts[keep])


class _Kept:
    """The kept rows as tables, with signatures and sites numbered anew: only what is kept is in them."""

    def __init__(self, ring: _Reduction, chosen: tuple[_Chosen, Numbers, Numbers, Numbers]) -> None:
        calls, halves, pairs, tail = chosen
        self.ring = ring
        newest = np.arange(len(ring.group))[-1:]
        every = np.concatenate([calls.rows, halves, pairs, tail, newest])
        stack = _array(ring.trace.entries.stack, np.int32)
        self.used, self.number_of = _renumbered(ring.signature[every], len(ring.trace.signatures))
        sited = np.concatenate([calls.rows, halves, tail, newest])
        stacks, self.stack_number = _renumbered(stack[sited][stack[sited] != NULL], len(ring.trace.stacks))
        self.stack = stack
        places = [_site_of(ring.trace.stacks[index]) for index in stacks.tolist()]
        numbers: dict[str, int] = {}
        site_of = [numbers.setdefault(place, len(numbers)) if place else NULL for place in places]
        self.site_of = np.array([*site_of, NULL], np.int32)
        self.site_table = tuple(numbers)
        self.signature_table = tuple(ring.trace.signatures[index] for index in self.used.tolist())
        self.signature_rows: Rows = np.array(list(map(_signature_row, self.signature_table)), SIGNATURE)
        self.calls = self._rows(calls.rows, ring.sequence, calls.parts)
        self.p2p = self._rows(halves, ring.p2p_sequence, np.ones(len(halves)))
        self.pairs: Rows = np.zeros(len(pairs), PAIR)
        self.pairs["group"] = ring.group[pairs]
        self.pairs["signature"] = self.number_of[ring.signature[pairs]]
        self.tail: Rows = np.zeros(len(tail), TAIL)
        self.tail["sequence"], self.tail["group"] = ring.sequence[tail], ring.group[tail]
        self.tail["signature"], self.tail["site"] = self.number_of[ring.signature[tail]], self._sites(tail)
        self.last = self._last(int(newest[0])) if len(newest) else None

    def _sites(self, rows: Numbers) -> NDArray[np.int32]:
        places: NDArray[np.int32] = self.site_of[self.stack_number[self.stack[rows]]]
        return places

    def _rows(self, rows: Numbers, sequence: Numbers, parts: NDArray[Any]) -> Rows:
        ring = self.ring
        made: Rows = np.zeros(len(rows), CALL)
        made["sequence"], made["created_ns"], made["at"] = sequence[rows], ring.created[rows], rows
        made["timeout_ms"] = _array(ring.trace.entries.timeout_ms, np.int64)[rows]
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
        roles = [digest(group.desc or group.name) for group in self.ring.trace.groups]
        sites = [*map(digest, self.site_table), 0]
        tokens = np.array(roles, np.uint64)[self.tail["group"]] * _MIX_A
        tokens = (tokens + self.signature_rows["token"][self.tail["signature"]]) * _MIX_B
        tokens += np.array(sites, np.uint64)[self.tail["site"]]
        return int.from_bytes(blake2b(tokens.tobytes(), digest_size=8).digest(), "little")

    def texts(self) -> bytes:
        stacks, stack = self.ring.trace.stacks, self.stack
        newest = stacks[stack[-1]] if len(stack) and stack[-1] != NULL else ()
        kept = newest[: limits.FRAMES_PER_STACK_MAX]
        return msgspec.msgpack.encode(CallTexts(self.signature_table, self.site_table, kept))


_MIX_A: Final = np.uint64(0x9E3779B97F4A7C15)
_MIX_B: Final = np.uint64(0xC2B2AE3D27D4EB4F)
"""Odd 64-bit constants: multiplying by one loses nothing."""


def _array(column: Any, dtype: Any) -> NDArray[Any]:
    return np.frombuffer(column, dtype) if len(column) else np.zeros(0, dtype)


def _renumbered(indices: NDArray[Any], count: int) -> tuple[Numbers, Numbers]:
    """The different ``indices``, rising, and for each old index (and ``NULL``, the last) its new one."""
    used = np.zeros(count + 1, np.bool_)
    used[indices] = True
    number_of = np.cumsum(used) - 1
    number_of[-1] = NULL
    return np.flatnonzero(used), number_of


def _fill_status(rows: Rows, groups: tuple[TraceGroup, ...]) -> None:
    for name in ("last_enqueued", "last_started", "last_completed"):
        told = (getattr(group, name) for group in groups)
        rows[name] = [NULL if number is None else number for number in told]
