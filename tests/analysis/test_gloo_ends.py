"""gloo marks a call that failed as retired, like one that ended: what a newest call may still tell."""

from __future__ import annotations

from tests.cases.jobs import Call, Job, Sync
from tests.cases.judged import Verdict, judge, named
from tests.cases.writer import START_NS, Flavour

GLOO = Flavour("gloo")


def steady(calls: int = 3) -> Job:
    job = Job(4, GLOO)
    job.repeat(calls, Call(job.default), Sync())
    return job


def raised(job: Job, without: tuple[int, ...] = ()) -> Verdict:
    """The verdict once every rank has raised out of what was open."""
    for rank, ring in enumerate(job.run().rings):
        for entry in job.open_entries(rank):
            ring.finish(entry, START_NS)
    return judge(job, without)


def test_a_newest_call_of_unequal_sizes_has_failed_though_it_ended() -> None:
    job = steady()
    for rank in range(4):
        job.every(Call(job.default, inputs=((65 if rank == 2 else 64,),)), ranks=[rank])
    assert named(raised(job)) == ("size_mismatch", [2], [])


def test_a_wrong_size_is_found_behind_a_later_call_that_failed_for_want_of_a_member() -> None:
    job = steady()
    for rank in range(4):
        job.every(Call(job.default, "gather", ((65 if rank == 2 else 64,),), ()), ranks=[rank])
    job.every(Call(job.default, "barrier", ()), ranks=[1, 2, 3])
    assert named(raised(job, without=(0,))) == ("size_mismatch", [2], [])


def test_a_rank_alone_in_a_call_is_a_suspect_like_those_who_never_came() -> None:
    job = steady(2)
    job.every(Call(job.default), ranks=[2])
    found = judge(job.run())
    assert named(found) == ("missing_rank", [], [0, 1, 2, 3])


def test_one_suspect_alone_is_not_one_of_several() -> None:
    job = Job(4, GLOO)
    group = job.group("1", "again", range(4))
    job.repeat(2, Call(group), Sync())
    job.every(Call(group), Sync())
    job.programs[2].pop()
    job.programs[2].pop()
    for rank in (1, 3):
        for entry in job.run().open_entries(rank):
            job.rings[rank].finish(entry, START_NS)
    found = judge(job, without=(2,))
    assert named(found) == ("suspect_no_dump", [], [2])
    assert "One of rank 2" not in found["summary"]
