"""A rank that went on past a call: ranks in sibling groups tell which of two calls comes first."""

from __future__ import annotations

import pytest

from tests.cases.jobs import Call, Job, Program, Sync
from tests.cases.judged import judge, named
from tests.cases.writer import Flavour


def tensor_job(world: int = 4) -> Job:
    job = Job(world)
    for first in range(0, world, 2):
        job.group(str(first + 1), "tp", (first, first + 1))
    return job


def steps(job: Job, rank: int, tensor_calls: int = 2, count: int = 1) -> Program:
    tensor = Call(job.of(rank, "tp"))
    one: Program = [tensor, Sync()]
    return [*(one * tensor_calls), Call(job.default, "all_gather"), Sync()] * count


@pytest.mark.parametrize("before", [0, 1, 3])
def test_a_call_left_out_in_a_group_of_two_is_told_by_the_other_groups(before: int) -> None:
    job = tensor_job()
    for rank in range(4):
        whole = steps(job, rank, count=before + 1)
        job.every(*(whole[:-4] + whole[-2:] if rank == 2 else whole), ranks=[rank])
    assert named(judge(job.run())) == ("cross_group_cycle", [2], [])


@pytest.mark.parametrize("before", [1, 3])
def test_a_call_too_many_is_told_too_and_not_its_partner(before: int) -> None:
    job = tensor_job()
    for rank in range(4):
        whole = steps(job, rank, count=before + 1)
        extra: Program = [Call(job.of(rank, "tp")), Sync()] if rank == 2 else []
        job.every(*whole[:-2], *extra, *whole[-2:], ranks=[rank])
    found = judge(job.run())
    assert found["culprit_ranks"] == [2], found["summary"]


def test_stages_that_make_other_numbers_of_calls_bear_no_witness() -> None:
    job = tensor_job()
    for rank in range(4):
        whole = steps(job, rank, tensor_calls=2 if rank < 2 else 1, count=2)
        extra: Program = [Call(job.of(rank, "tp")), Sync()] if rank == 3 else []
        job.every(*whole[:-2], *extra, *whole[-2:], ranks=[rank])
    found = judge(job.run())
    assert 2 not in found["culprit_ranks"], found["summary"]


def test_without_a_sibling_group_nobody_is_named() -> None:
    job = Job(4)
    pair = job.group("1", "pair", (2, 3))
    job.every(Call(job.default, "all_gather"), Sync())
    job.every(Call(pair), Sync(), ranks=[3])
    job.every(Call(job.default, "all_gather"), Sync())
    found = judge(job.run())
    assert named(found) == ("cross_group_cycle", [], [2, 3])


@pytest.mark.parametrize("prefix", ["nccl", "gloo"])
def test_a_call_too_many_before_the_first_call_of_all(prefix: str) -> None:
    """On gloo the rank that never came there has not even a row for the group of all."""
    job = Job(4, Flavour(prefix))
    for first in (0, 2):
        job.group(str(first + 1), "tp", (first, first + 1))
    for rank in range(4):
        count = 4 if rank == 2 else 3
        one: Program = [Call(job.of(rank, "tp")), Sync()]
        job.every(*(one * count), Call(job.default, "barrier", ()), Sync(), ranks=[rank])
    assert judge(job.run())["culprit_ranks"] == [2]


def test_a_repeated_call_is_no_pattern_that_another_one_could_break() -> None:
    job = Job(2)
    pair = job.group("1", "pair", (0, 1))
    for rank in range(2):
        one: Program = [Call(pair), Sync()]
        job.every(*(one * (4 + rank)), Call(job.default, "barrier", ()), Sync(), ranks=[rank])
    assert named(judge(job.run())) == ("cross_group_cycle", [], [0, 1])
