"""Faults of made jobs: what is done to which rank at which call, and what a good analysis says to it.

In: kinds of fault, a layout with the programs of its stages, a seed. Out: ``Plan`` per fault and ``Truth``.
Words of kinds are those of verdicts (DESIGN, "Words for verdicts").
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

import numpy as np

from clusterwatch.simulate.traces_layout import Layout
from clusterwatch.simulate.traces_program import Call, Move, Program
from clusterwatch.simulate.traces_stall import Obstacles
from collectors.formats.columns import Signature


class Kind(StrEnum):
    """What can go wrong in a made job."""

    MISSING_RANK = "missing_rank"
    QUEUED_NOT_STARTED = "queued_not_started"
    OP_MISMATCH = "op_mismatch"
    ORDER_MISMATCH = "order_mismatch"
    SIZE_MISMATCH = "size_mismatch"
    DTYPE_MISMATCH = "dtype_mismatch"
    P2P_UNMATCHED = "p2p_unmatched"
    CROSS_GROUP_CYCLE = "cross_group_cycle"
    ALL_JOINED_NOT_FINISHED = "all_joined_not_finished"
    NO_DUMP = "suspect_no_dump"
    STALE_DUMP = "suspect_stale_dump"


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing gone wrong. What is None is chosen by the job's seed."""

    kind: Kind
    rank: int | None = None
    role: str | None = None
    """of the group whose call it happens in"""


@dataclass(frozen=True, slots=True)
class Truth:
    """What is so, in the words of a verdict. None where the verdict does not depend on it."""

    verdict: str
    culprit_ranks: tuple[int, ...] = ()
    suspect_ranks: tuple[int, ...] = ()
    group: tuple[str, str] | None = None
    """name and description"""
    seq: int | None = None
    op: str | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """A fault with its place: ``place`` and ``other`` are calls of the step in the rank's program."""

    kind: Kind
    rank: int
    place: int
    other: int | None = None
    said: Signature | None = None
    """what the rank passes in place of what it should"""
    strange: Move | None = None
    """where the rank's send goes instead"""


_NAMING_ROLES: Final = ("tp", "dp", "cp", "default_pg")
"""Roles whose groups are asked for a majority; the first with more than two members is taken."""
_SUSPECTS: Final = frozenset({Kind.NO_DUMP, Kind.STALE_DUMP})
_ABSENT: Final = frozenset({Kind.MISSING_RANK, *_SUSPECTS})
_SAYS_OTHER: Final = frozenset({Kind.OP_MISMATCH, Kind.SIZE_MISMATCH, Kind.DTYPE_MISMATCH})


def plan(
    faults: Sequence[Fault], layout: Layout, programs: Sequence[Program], random: np.random.Generator
) -> tuple[Plan, ...]:
    """Places for the faults. Several come at the first call of their group, so that none hides another.

    Raises:
        ValueError: the layout has no place for such a fault.
    """
    free = list(random.permutation(layout.world).tolist())
    taken = {fault.rank for fault in faults}
    plans: list[Plan] = []
    for fault in faults:
        rank = fault.rank
        if rank is None:
            rank = next((r for r in free if r not in taken and _fits(fault.kind, layout, r, plans)), None)
            if rank is None:
                raise ValueError(f"{layout} has no place left for a {fault.kind}")
            taken.add(rank)
        program = programs[layout.stage(rank)]
        plans.append(_placed(fault, layout, rank, program, random if len(faults) == 1 else None))
    return tuple(plans)


def _fits(kind: Kind, layout: Layout, rank: int, plans: Sequence[Plan]) -> bool:
    """Where the fault can be, and where no earlier one keeps the rank from coming to it."""
    if kind is Kind.P2P_UNMATCHED and layout.stage(rank) >= max(layout.pipeline - 2, 1):
        return False  # nobody two stages ahead: the stray send would go where sends often go
    role = _naming_role(layout)
    return all(
        _replica(layout, rank) != _replica(layout, made.rank) and rank not in layout.peers(role, made.rank)
        for made in plans
    )


def _replica(layout: Layout, rank: int) -> int:
    """Number of a part of the job that waits for nobody else within a step: replicas that share experts."""
    return rank // (layout.tensor * layout.context) % layout.data // layout.expert


def _naming_role(layout: Layout) -> str:
    return next((role for role in _NAMING_ROLES if layout.size(role) > 2), "default_pg")


def _placed(
    fault: Fault, layout: Layout, rank: int, program: Program, random: np.random.Generator | None
) -> Plan:
    kind, calls = fault.kind, program.calls
    if kind is Kind.P2P_UNMATCHED:
        return _astray(layout, rank, calls)
    if kind is Kind.CROSS_GROUP_CYCLE:
        return _crossed(layout, rank, calls)
    role = fault.role or _naming_role(layout)
    places = [place for place, call in enumerate(calls) if call.role == role and not call.is_p2p]
    if kind is Kind.ORDER_MISMATCH:
        places = [place for place in places if _swap(program, place) is not None]
    if not places:
        raise ValueError(f"{layout} has no call of {role!r} for a {kind}")
    place = places[0 if random is None else int(random.integers(len(places)))]
    if kind is Kind.ORDER_MISMATCH:
        return Plan(kind, rank, place, other=_swap(program, place))
    said = _said(kind, calls[place].signature) if kind in _SAYS_OTHER else None
    return Plan(kind, rank, place, said=said)


def _swap(program: Program, place: int) -> int | None:
    """The next call of the same group, if it is another one and is issued before the CPU waits."""
    calls = program.calls
    later = (n for n in range(place + 1, len(calls)) if calls[n].role == calls[place].role)
    other = next(later, None)
    if other is None or calls[other].signature == calls[place].signature:
        return None
    return other if other <= program.next_blocking[place] else None


def _said(kind: Kind, usual: Signature) -> Signature:
    if kind is Kind.OP_MISMATCH:
        return replace(usual, op="broadcast" if usual.op == "all_reduce" else "all_reduce")
    if kind is Kind.DTYPE_MISMATCH:
        other = ("BFloat16",) if usual.input_dtypes == ("Float",) else ("Float",)
        return replace(usual, input_dtypes=other, output_dtypes=other)
    sent = tuple((2 * shape[0], *shape[1:]) for shape in usual.input_sizes)
    received = tuple((2 * shape[0], *shape[1:]) for shape in usual.output_sizes)
    return replace(usual, input_sizes=sent, output_sizes=received)


def _astray(layout: Layout, rank: int, calls: Sequence[Call]) -> Plan:
    """A send that goes to a stage that does not expect it; with two stages, one that is never made."""
    stage = layout.stage(rank)
    place = next((n for n, call in enumerate(calls) if call.moves == (("send", stage + 1),)), None)
    if place is None:
        raise ValueError(f"rank {rank} of {layout} sends nothing forward")
    if layout.pipeline > 2:
        wrong = stage + 2 if stage + 2 < layout.pipeline else stage - 1
        return Plan(Kind.P2P_UNMATCHED, rank, place, strange=("send", wrong))
    if set(layout.roles) - {"default_pg", "pp"}:
        raise ValueError(f"in {layout} others than the receiver wait for a send that is never made")
    return Plan(Kind.P2P_UNMATCHED, rank, place)


def _crossed(layout: Layout, rank: int, calls: Sequence[Call]) -> Plan:
    """Two calls in a row that the CPU waits for, the second in a group that holds all of the first."""
    for place, call in enumerate(calls[:-1]):
        after = calls[place + 1]
        if call.role == "tp" and call.blocking and after.blocking and layout.size("tp") > 2:
            return Plan(Kind.CROSS_GROUP_CYCLE, rank, place, other=place + 1)
    raise ValueError(f"{layout} has no tensor group of more than two for a cycle with a majority")


def obstacles(plans: Sequence[Plan]) -> Obstacles:
    """What the faults do to the run of the calls."""
    found = Obstacles()
    for item in plans:
        if item.kind in _ABSENT or (item.kind is Kind.P2P_UNMATCHED and item.strange is None):
            found.limit[item.rank] = item.place
        elif item.kind is Kind.QUEUED_NOT_STARTED:
            found.held[item.rank] = item.place
        elif item.kind is Kind.CROSS_GROUP_CYCLE:
            found.swapped[item.rank] = (item.place, item.place + 1)
        elif item.strange is not None:
            found.alone.append((item.rank, item.place))
        else:
            found.stuck.append((item.rank, item.place))
    return found


def truth(item: Plan, layout: Layout, programs: Sequence[Program], step: int) -> Truth:
    """The verdict on a fault that comes in ``step`` (steps count from 0)."""
    if item.kind is Kind.CROSS_GROUP_CYCLE:
        return Truth(str(item.kind), (item.rank,))
    stage = layout.stage(item.rank)
    call = programs[stage].calls[item.place]
    name = str(layout.first_name[call.role] + int(layout.group_index[call.role][item.rank]))
    seq, op = _number(programs[stage], item.place, step), call.signature.op
    if item.kind is Kind.P2P_UNMATCHED:
        partner = programs[stage + 1]
        place = next(
            n
            for n, other in enumerate(partner.calls)
            if other.is_p2p and other.number == call.number and other.moves[0][1] == stage
        )
        seq, op = _number(partner, place, step), f"recv {stage + 1}<-{stage}"
    named = () if item.kind in _SUSPECTS or item.kind is Kind.ALL_JOINED_NOT_FINISHED else (item.rank,)
    suspects = (item.rank,) if item.kind in _SUSPECTS else ()
    return Truth(str(item.kind), named, suspects, (name, call.role), seq, op)


def _number(program: Program, place: int, step: int) -> int:
    """Number of a call in its group: the collective one, for sends and receives the p2p one."""
    entries, at = program.entries, int(program.first_entry[place])
    if program.calls[place].is_p2p:
        return int(entries.p2p_sequence[at] + step * entries.p2p_stride[at])
    return int(entries.sequence[at] + step * entries.sequence_stride[at])
