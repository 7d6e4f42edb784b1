"""The odd one out by majority, by sibling groups, by pattern, or nobody."""

from __future__ import annotations

from typing import Any

import pytest

from clusterwatch.analysis import Observation, diagnose
from tests.analysis.looks import look, said, traces
from tests.data.blocking_job import World
from tests.data.recorder import Job


def four(backend: str = "nccl", calls: int = 5) -> Job:
    job = Job(4, backend)
    for _ in range(calls):
        job.all()
    return job


@pytest.mark.parametrize(
    ("verdict", "usual", "odd"),
    [
        ("op_mismatch", {}, {"op": "all_gather", "out": (4096,)}),
        ("size_mismatch", {}, {"size": (512,)}),
        ("dtype_mismatch", {}, {"dtype": "BFloat16"}),
        ("size_mismatch", {"op": "_all_gather_base", "out": (4096,)}, {"size": (512,), "out": (2048,)}),
        ("size_mismatch", {"op": "_reduce_scatter_base", "out": (256,)}, {"size": (2048,), "out": (512,)}),
        ("size_mismatch", {"op": "scatter", "out": (16,)}, {"out": (8,)}),
        ("size_mismatch", {"op": "gather"}, {"size": (8,)}),
    ],
)
def test_names_the_odd_one_by_majority(verdict: str, usual: dict[str, Any], odd: dict[str, Any]) -> None:
    job = four()
    for rank in range(4):
        job.call(rank, **{**usual, **(odd if rank == 2 else {}), "state": "scheduled"})
    found = look(job)
    assert said(found) == (verdict, (2,), ())
    assert found.worst.seq == 6 and found.worst.decisive and found.worst.confidence > 0.9


@pytest.mark.parametrize(
    "calls",
    [
        [{"op": "all_to_all", "size": (a,), "out": (b,)} for a, b in ((10, 12), (12, 10), (8, 9), (9, 8))],
        [{"op": "_broadcast_oop", "size": (n,)} for n in (1, 2, 3, 4)],
        [{"op": "gather", "size": (4,), "out": (16,) if n == 0 else (0,)} for n in range(4)],
        [{"op": "scatter", "size": (16,) if n == 0 else (0,), "out": (4,)} for n in range(4)],
        [{"size": shape} for shape in ((1024,), (2, 512), (512, 2), (32, 32))],
    ],
)
@pytest.mark.parametrize("state", ["scheduled", "completed"])
def test_legal_differences_are_no_mismatch(calls: list[dict[str, Any]], state: str) -> None:
    job = four()
    for rank, what in enumerate(calls):
        job.call(rank, **what, state=state)
    assert "mismatch" not in look(job).worst.verdict


def test_two_ranks_alone_name_suspects_only() -> None:
    job = Job(2)
    job.call(0, state="scheduled")
    job.call(1, op="broadcast", state="scheduled")
    assert said(look(job)) == ("op_mismatch", (), (0, 1))


def test_an_even_split_names_suspects_only() -> None:
    job = Job(4)
    job.all(ranks=(0, 1), state="scheduled")
    job.all(ranks=(2, 3), size=(7,), state="scheduled")
    assert said(look(job)) == ("size_mismatch", (), (0, 1, 2, 3))


def test_the_pairs_own_pattern_decides_between_two_ranks() -> None:
    job = Job(2)
    for _ in range(4):
        job.all(op="all_gather")
        job.all()
    job.call(0, op="all_gather", state="scheduled")
    job.call(1, op="broadcast", state="scheduled")
    assert said(look(job)) == ("op_mismatch", (1,), ())


def test_one_call_repeated_decides_nothing_between_two_ranks() -> None:
    job = Job(2)
    for _ in range(4):
        job.all()
    job.call(0, state="scheduled")
    job.call(1, op="broadcast", state="scheduled")
    assert said(look(job)) == ("op_mismatch", (), (0, 1))


@pytest.mark.parametrize(("fault", "verdict"), [("wrong_op", "op_mismatch"), ("wrong_size", "size_mismatch")])
@pytest.mark.parametrize("rank", [0, 3, 5, 6])
def test_sibling_groups_decide_between_two_ranks(fault: str, verdict: str, rank: int) -> None:
    found = look(World(fault, rank, at_step=0).run())
    assert said(found) == (verdict, (rank,), ())
    assert found.worst.group is not None and found.worst.group.desc == "tp"
    assert any("sibling" in line for line in found.worst.why)


def test_swapped_calls_are_one_finding() -> None:
    job = four()
    for rank in range(4):
        first: dict[str, Any] = {"op": "broadcast", "size": (10,)}
        second: dict[str, Any] = {}
        for what in (first, second) if rank == 2 else (second, first):
            job.call(rank, **what, state="scheduled")
    found = look(job)
    assert said(found) == ("order_mismatch", (2,), ())
    assert found.worst.seq == 6 and len(found.findings) == 1


def test_another_call_without_the_swap_is_no_order_mismatch() -> None:
    job = four()
    for rank in range(4):
        job.call(rank, op="broadcast" if rank == 2 else "all_reduce", state="scheduled")
        job.call(rank, op="all_gather", state="scheduled")
    assert said(look(job)) == ("op_mismatch", (2,), ())


def test_a_call_left_out_is_told_as_such() -> None:
    job = four()
    plan = ["reduce", "broadcast", "gather", "scatter", "barrier"]
    for rank in range(4):
        for op in plan[1:] if rank == 1 else plan:
            job.call(rank, op=op, state="scheduled")
    found = look(job)
    assert said(found) == ("op_mismatch", (1,), ()) and found.worst.cause == "skipped_call"


def test_an_old_mismatch_that_the_job_survived_is_no_fault() -> None:
    job = Job(4)
    job.call(0, size=(9,))
    job.all(ranks=(1, 2, 3))
    for _ in range(3):
        job.all()
    assert said(look(job)) == ("no_fault", (), ())


def test_all_to_all_totals_that_do_not_add_up_name_who_leaves_an_even_split() -> None:
    job = four()
    for rank in range(4):
        job.call(
            rank, op="all_to_all", size=(2048,) if rank == 1 else (4096,), out=(4096,), state="scheduled"
        )
    assert said(look(job)) == ("size_mismatch", (1,), ())


def test_uneven_totals_without_an_even_split_name_nobody() -> None:
    job = four()
    for rank, sent in enumerate((10, 20, 30, 40)):
        job.call(rank, op="all_to_all", size=(sent,), out=(26,), state="scheduled")
    verdict, named, _ = said(look(job))
    assert verdict == "size_mismatch" and named == ()


def test_a_wrong_size_is_seen_though_the_partner_died_of_it() -> None:
    """gloo aborts the neighbour that gets more than it asked for: it leaves no dump."""
    job = World("wrong_size", 5).run()
    assert said(look(job, without=(4,))) == ("size_mismatch", (5,), ())


def test_a_call_like_its_siblings_is_not_blamed_for_a_partner_without_a_dump() -> None:
    job = World("killed", 4).run()
    assert said(look(job, without=(4,))) == ("suspect_no_dump", (), (4,))


def staged(history: int) -> Job:
    """Eight pairs; in the newest call the last stage, pair 7, reduces where the others gather, as ever."""
    job = Job(16)
    for number in range(8):
        job.group(str(number + 1), "cp", (2 * number, 2 * number + 1))
    job.all()
    for number in range(8):
        for _ in range(history):
            job.all(group=str(number + 1))
            if number == 7:
                job.all(group=str(number + 1), op="reduce")
            else:
                job.all(group=str(number + 1), op="broadcast")
        job.all(group=str(number + 1))
        job.all(group=str(number + 1), op="reduce" if number == 7 else "broadcast", state="scheduled")
    return job


@pytest.mark.parametrize(("history", "keep"), [(3, 60), (3, 1), (0, 1)])
def test_a_stage_with_a_program_of_its_own_is_not_blamed_when_its_partner_left_no_dump(
    history: int, keep: int
) -> None:
    rings = tuple(ring for ring in traces(staged(history), keep=keep) if ring.rank != 15)
    found = diagnose(Observation(traces=rings, world_size=16))
    assert 14 not in found.to_dict()["culprit_ranks"]
