"""The jobs behind docs/verdict-table.md: one per hang that a trace alone can show, and healthy ones.

Written in NCCL's flavour by ``tests.cases``, which judges nothing. Where a rank is at fault it is never the
one that a tool would guess: neither the first nor the last, unless the row says so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from tests.cases.jobs import Batch, Call, Halt, Job, Move, Parts, Program, Sync
from tests.cases.meshes import interleaved, mesh, one_f_one_b, train, zero_bubble
from tests.cases.writer import Flavour

FAULTY: Final = 2
Dumps = dict[int, bytes]


@dataclass(frozen=True)
class Case:
    """``faulty`` is empty on a healthy job, None where no trace can tell who it is."""

    injected: str
    dumps: Callable[[], Dumps]
    faulty: frozenset[int] | None = frozenset({FAULTY})


def steady(world: int = 4, calls: int = 5, flavour: Flavour = Flavour()) -> Job:  # noqa: B008
    """Every rank makes the same all-reduces and waits for each."""
    job = Job(world, flavour)
    job.repeat(calls, Call(job.default), Sync())
    return job


def healthy(*more: Move) -> Dumps:
    job = steady()
    job.every(*(more or ()), Sync())
    return job.run().pickles()


def missing(*ranks: int, without: tuple[int, ...] = (), keep: int | None = None) -> Dumps:
    """Ranks that stop before a call which all others make."""
    job = steady(calls=5 if keep is None else 30)
    job.every(Halt(), ranks=ranks)
    job.every(Call(job.default))
    return job.run().pickles(without, keep=keep)


def other(rank: int = FAULTY, world: int = 4, **passed: object) -> Dumps:
    """One rank passes something else in the last call."""
    job = steady(world)
    for number in range(world):
        job.every(Call(job.default, **(passed if number == rank else {})), ranks=[number])  # type: ignore[arg-type]
    return job.run().pickles()


def swapped() -> Dumps:
    job = steady()
    pair: Program = [Call(job.default, "broadcast"), Call(job.default, "all_gather", ((8,),), ((32,),))]
    for rank in range(4):
        job.every(*(pair[::-1] if rank == FAULTY else pair), ranks=[rank])
    return job.run().pickles()


def crossed() -> Dumps:
    """One rank takes the calls of two groups in the other order."""
    job = steady()
    group = job.group("1", "dp", range(4))
    pair: Program = [Call(job.default), Sync(), Call(group), Sync()]
    for rank in range(4):
        job.every(*(pair[2:] + pair[:2] if rank == FAULTY else pair), ranks=[rank])
    return job.run().pickles()


def tensor(left_out: int = 0, extra: int = 0) -> Dumps:
    """Tensor groups of two and calls of all; a rank makes one call of its pair less, or one more."""
    job = Job(4)
    pairs = [job.group(str(number + 1), "tp", (2 * number, 2 * number + 1)) for number in range(2)]
    for rank in range(4):
        call: Program = [Call(pairs[rank // 2]), Sync()]
        everybody: Program = [Call(job.default, "all_gather"), Sync()]
        count = 2 - (left_out - extra if rank == FAULTY else 0)
        job.every(*([*call, *call, *everybody] * 3), *(call * count), *everybody, ranks=[rank])
    return job.run().pickles()


def in_mesh(rank: int, place: int) -> Dumps:
    job = train(mesh(tp=2, pp=2, dp=2))
    job.programs[rank].insert(place, Halt())
    return job.run().pickles()


def queued() -> Dumps:
    """One GPU starts nothing any more; its host goes on issuing. The recorder's timing is on."""
    job = steady(flavour=Flavour(timing=True))
    job.stuck_gpus, job.stuck_after = frozenset({FAULTY}), 5
    job.every(Call(job.default))
    return job.run().pickles()


def network() -> Dumps:
    """All join a call that never ends."""
    job = steady()
    job.never = frozenset({("0", 6)})
    job.every(Call(job.default), Sync())
    return job.run().pickles()


def stages(schedule: str = "1f1b", stop: int | None = None) -> Dumps:
    """A pipeline of four; ``stop``: place in the program of the faulty stage where it stands still."""
    job = mesh(pp=4)
    make = {"1f1b": one_f_one_b, "zero_bubble": zero_bubble}
    for rank in range(4):
        group = job.groups[1]
        job.programs[rank] += (
            interleaved(group, rank, 2, 6) if schedule == "interleaved" else make[schedule](group, rank, 6)
        )
    if stop is not None:
        job.programs[FAULTY].insert(stop, Halt())
    job.every(Call(job.default), Sync())
    return job.run().pickles()


def unequal_halves() -> Dumps:
    """The second stage sends less than the third receives."""
    job = mesh(pp=4)
    for rank in range(4):
        job.programs[rank] += one_f_one_b(job.groups[1], rank, 6)
    batches = [n for n, move in enumerate(job.programs[FAULTY]) if isinstance(move, Batch)]
    move = job.programs[FAULTY][batches[5]]
    assert isinstance(move, Batch)
    halves = tuple(replace(half, size=(32,)) if half.sends else half for half in move.halves)
    job.programs[FAULTY][batches[5]] = replace(move, halves=halves)
    return job.run().pickles()


def in_init() -> Dumps:
    job = steady()
    group = job.group("1", "tp", range(4))
    job.rings[FAULTY].groups.remove(group)
    job.every(Halt(), ranks=[FAULTY])
    job.every(Call(group), ranks=[0, 1, 3])
    return job.run().pickles()


def destroyed() -> Dumps:
    job = steady()
    job.every(Call(job.default), ranks=[0, 1, 3])
    job.run().rings[FAULTY].destroyed.add("0")
    return job.pickles()


def coalesced() -> Dumps:
    job = steady()
    members = tuple(Call(job.default, inputs=((size,),)) for size in (8, 16))
    job.every(Parts(job.default, "allreduce_coalesced", members), Sync())
    return job.run().pickles()


def uneven() -> Dumps:
    """An all-to-all of experts: every rank sends other sizes, and the totals add up."""
    job = steady()
    for rank in range(4):
        call = Call(job.default, "all_to_all", ((64 + 2 * rank,),), ((64 + 2 * (3 - rank),),))
        job.every(call, Sync(), ranks=[rank])
    return job.run().pickles()


CASES: Final[dict[str, Case]] = {
    "no_fault": Case("healthy: the same calls everywhere", healthy, frozenset()),
    "no_fault, rings cut": Case(
        "healthy: rings hold the newest 8 of 30 calls",
        lambda: steady(calls=30).run().pickles(keep=8), frozenset(),
    ),
    "no_fault, mesh": Case(
        "healthy: 8 ranks, tensor x data x pipeline, 3 steps",
        lambda: train(mesh(tp=2, pp=2, dp=2)).run().pickles(), frozenset(),
    ),
    "no_fault, 1F1B": Case("healthy: pipeline, batched exchange", stages, frozenset()),
    "no_fault, interleaved": Case(
        "healthy: pipeline with virtual stages", lambda: stages("interleaved"), frozenset()
    ),
    "no_fault, zero bubble": Case("healthy: ZB-H1 pipeline", lambda: stages("zero_bubble"), frozenset()),
    "no_fault, coalesced": Case("healthy: a coalesced call", coalesced, frozenset()),
    "no_fault, experts": Case("healthy: uneven all-to-all", uneven, frozenset()),
    "missing_rank": Case("rank 2 never issues the 6th call", lambda: missing(FAULTY)),
    "missing_rank, two": Case(
        "ranks 1 and 2 of 4 never issue it", lambda: missing(1, 2), frozenset({1, 2})
    ),
    "missing_rank, rings cut": Case("the same in rings of 8 calls", lambda: missing(FAULTY, keep=8)),
    "missing_rank, mesh": Case(
        "8 ranks, three dimensions; rank 5 stops in a step", lambda: in_mesh(5, 9), frozenset({5})
    ),
    "suspect_no_dump": Case("rank 2 died without a dump", lambda: missing(FAULTY, without=(FAULTY,))),
    "queued_not_started": Case("rank 2 issues, its GPU starts nothing", queued),
    "op_mismatch": Case("rank 2 issues a broadcast", lambda: other(op="broadcast")),
    "op_mismatch, left out": Case("rank 2 leaves out a call of its group of two", lambda: tensor(left_out=1)),
    "op_mismatch, extra": Case("rank 2 makes one call too many there", lambda: tensor(extra=1)),
    "order_mismatch": Case("rank 2 swaps two calls", swapped),
    "size_mismatch": Case("rank 2 passes 512 of 1024 elements", lambda: other(inputs=((512,),))),
    "size_mismatch, rank 0": Case(
        "rank 0 does", lambda: other(0, inputs=((512,),)), frozenset({0})
    ),
    "size_mismatch, of two": Case(
        "rank 1 does, in a world of two", lambda: other(1, 2, inputs=((512,),)), frozenset({1})
    ),
    "dtype_mismatch": Case("rank 2 passes BFloat16", lambda: other(dtype="BFloat16")),
    "p2p_unmatched": Case("stage 2 of a pipeline stops", lambda: stages(stop=9)),
    "p2p_unmatched, sizes": Case("stage 2 sends half of what is received", unequal_halves),
    "cross_group_cycle": Case("rank 2 takes two groups in the other order", crossed),
    "all_joined_not_finished": Case("the network stops; all have joined", network, None),
    "stuck_in_init": Case("rank 2 never makes a group", in_init),
    "destroyed_on_one_side": Case("rank 2 has destroyed the group", destroyed),
}  # fmt: skip
"""Verdict that fits -> job."""
