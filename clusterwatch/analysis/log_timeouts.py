"""What watchdog time-outs tell: in which call the job stood still, and which rank is behind it.

In: ``Told`` time-outs and progress lines of one attempt. Out: ``Stall``, or None. A rank that never issued
the call cannot time out in it; but the first rank to time out also ends the others, so silence alone is no
proof. Only the number of its last enqueued call is.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from clusterwatch.analysis.log_actors import Told

_TORCH_OPS: Final = {
    "ALLREDUCE": "all_reduce", "ALLREDUCE_COALESCED": "allreduce_coalesced", "BROADCAST": "broadcast",
    "ALLGATHER": "all_gather", "_ALLGATHER_BASE": "_all_gather_base",
    "ALLGATHER_COALESCED": "all_gather_coalesced",
    "REDUCE": "reduce", "REDUCE_SCATTER": "reduce_scatter", "_REDUCE_SCATTER_BASE": "_reduce_scatter_base",
    "GATHER": "gather", "SCATTER": "scatter", "ALLTOALL": "all_to_all", "ALLTOALL_BASE": "all_to_all",
    "BARRIER": "barrier", "SEND": "send", "RECV": "recv", "COALESCED": "coalesced",
}  # fmt: skip
"""OpType of a watchdog line -> the recorder's word. Source: torch's c10d Work.cpp, opTypeToString."""
_SAME_SIZES: Final = frozenset({
    "ALLREDUCE", "BROADCAST", "REDUCE", "_ALLGATHER_BASE", "_REDUCE_SCATTER_BASE", "ALLREDUCE_COALESCED",
})  # fmt: skip
"""Calls in which every member must pass as many elements."""

_POINT_TO_POINT: Final = frozenset({"SEND", "RECV", "RECVANYSOURCE", "COALESCED"})


@dataclass(frozen=True, slots=True)
class Stall:
    """The oldest call in which ranks timed out, per group and number."""

    pg: str | None
    desc: str
    seq: int
    op: str
    waiting: tuple[int, ...]
    """ranks that timed out in it"""
    unnamed: int
    """time-outs of processes whose rank is not known"""
    behind: tuple[int, ...]
    """ranks whose last enqueued call is an earlier one"""
    odd: tuple[int, ...]
    """ranks that issued another operation, or other sizes, under this number"""
    odd_kind: str
    """``op_mismatch`` or ``size_mismatch`` when ``odd`` or ``divided``"""
    divided: bool
    """ranks differ and no majority tells who is wrong"""
    waited_ms: int | None
    lines: tuple[Told, ...]
    behind_lines: tuple[Told, ...]
    earlier: tuple[Told, ...] = ()
    """time-outs of other ranks in earlier calls of the group: their peers have left these"""


def stall(told: Sequence[Told]) -> Stall | None:
    """The call with most time-outs; at equal numbers the one of most members, then the lowest number."""
    calls: dict[tuple[str, int], list[Told]] = defaultdict(list)
    for one in told:
        seq = one.event.number("seq")
        if one.event.kind == "watchdog_timeout" and seq is not None:
            calls[_group(one), seq].append(one)
    if not calls:
        return None
    (group, seq), lines = min(calls.items(), key=lambda item: (-len(item[1]), item[0][1], item[0][0]))
    waiting = {one.actor.rank for one in lines if one.actor.rank is not None}
    late = _behind(told, group, seq, waiting)
    kind, odd, divided = _differing(lines)
    first = lines[0].event
    return Stall(
        pg=first.word("pg"),
        desc=group.partition("(")[2].rstrip(")") or group,
        seq=seq,
        op=_TORCH_OPS.get(first.word("op") or "", (first.word("op") or "call").lower()),
        waiting=tuple(sorted(waiting)),
        unnamed=len({one.actor.key for one in lines if one.actor.rank is None}),
        behind=tuple(sorted(late)),
        odd=odd,
        odd_kind=kind,
        divided=divided,
        waited_ms=max((one.event.number("ran_ms") or 0 for one in lines), default=0) or None,
        lines=tuple(sorted(lines, key=_place)),
        behind_lines=tuple(late[rank] for rank in sorted(late)),
        earlier=_earlier(calls, group, seq, waiting),
    )


def _earlier(
    calls: Mapping[tuple[str, int], Sequence[Told]], group: str, seq: int, waiting: set[int]
) -> tuple[Told, ...]:
    """The oldest time-out of each rank that timed out in an earlier call only."""
    found: dict[int, Told] = {}
    for (name, number), lines in sorted(calls.items()):
        if name != group or number >= seq:
            continue
        for one in lines:
            if one.actor.rank is not None and one.actor.rank not in waiting:
                found.setdefault(one.actor.rank, one)
    return tuple(found[rank] for rank in sorted(found))


def _place(one: Told) -> tuple[int, int, str, int]:
    rank = one.actor.rank
    return (rank is None, rank or 0, one.source, one.event.line)


def _group(one: Told) -> str:
    """A group's name over processes: its GUID, since ids differ between processes."""
    return one.event.word("guid") or one.event.word("pg") or ""


def _behind(told: Sequence[Told], group: str, seq: int, waiting: set[int]) -> dict[int, Told]:
    """Ranks whose newest progress line of the group says that they had not issued ``seq``."""
    newest: dict[int, Told] = {}
    for one in told:
        if one.event.kind == "progress" and _group(one) == group and one.actor.rank is not None:
            known = newest.get(one.actor.rank)
            if known is None or (one.event.number("enqueued") or 0) > (known.event.number("enqueued") or 0):
                newest[one.actor.rank] = one
    return {
        rank: one
        for rank, one in newest.items()
        if rank not in waiting and 0 <= (one.event.number("enqueued") or 0) < seq
    }


def _differing(lines: Sequence[Told]) -> tuple[str, tuple[int, ...], bool]:
    """Ranks that passed something else under the same number; by majority of at least three."""
    if not _group(lines[0]):
        return "", (), False  # numbers of different groups may coincide
    for kind, signature in (("op_mismatch", _operation), ("size_mismatch", _sizes)):
        of_rank = {o.actor.rank: signature(o) for o in lines if o.actor.rank is not None}
        counts = Counter(of_rank.values())
        if len(counts) < 2:
            continue
        (usual, most), *_ = counts.most_common()
        odd = tuple(sorted(rank for rank, what in of_rank.items() if what != usual))
        if most > len(of_rank) / 2 and len(of_rank) >= 3:
            return kind, odd, False
        return kind, tuple(sorted(of_rank)), True
    return "", (), False


def _operation(one: Told) -> tuple[str | int | None, ...]:
    op = one.event.word("op")
    return ("p2p" if op in _POINT_TO_POINT else op,)


def _sizes(one: Told) -> tuple[str | int | None, ...]:
    event = one.event
    if event.word("op") not in _SAME_SIZES:
        return ()
    return (event.number("numel_in"), event.number("numel_out"), event.word("shape"))
