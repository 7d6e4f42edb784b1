"""The graph of waiting: held-up ranks, stuck calls, queued work, and calls made early."""

from __future__ import annotations

from tests.analysis.looks import look, said
from tests.data.recorder import Job, name_of, parallel, steps


def test_a_rank_that_waits_for_a_stuck_call_through_others_is_not_missing() -> None:
    """Ranks 0 and 1 are stuck in a call both joined; 2 sits in an exchange with 1, so 3 waits for 2."""
    job = Job(4)
    job.group("1", "tp", (0, 1))
    job.group("2", "dp", (2, 3))
    job.all()
    job.all(group="1", state="scheduled")
    job.recv(2, 1, state="scheduled")
    job.send(1, 2, state="scheduled")
    job.call(3, "2", state="scheduled")
    found = look(job)
    assert said(found) == ("all_joined_not_finished", (), ())
    assert found.worst.group is not None and found.worst.group.desc == "tp"


def test_a_missing_rank_is_named_though_a_group_beside_it_is_stuck() -> None:
    job = Job(4)
    job.group("1", "tp", (0, 1))
    job.group("2", "dp", (2, 3))
    job.all()
    job.all(group="1", state="scheduled")
    job.call(3, "2", state="scheduled")
    assert (2,) in [finding.culprit_ranks for finding in look(job).findings]


def test_an_exchange_with_a_rank_without_a_dump_makes_that_one_the_suspect() -> None:
    """Rank 1 waits for the silent rank 0 in a receive, so that it lacks the call of rank 2."""
    job = Job(4)
    job.group("1", "tp", (1, 2))
    job.all()
    job.recv(1, 0, state="scheduled")
    job.call(2, "1", state="scheduled")
    assert said(look(job, without=(0,))) == ("suspect_no_dump", (), (0,))


def test_work_queued_behind_a_started_call_is_not_the_root() -> None:
    """Rank 1's kernel of the tensor call never starts; rank 0's later call is merely behind its own."""
    job = Job(4, timing=True)
    job.group("1", "tp", (0, 1))
    job.group("2", "dp", (0, 2, 3))
    job.all()
    job.call(0, "1", state="started")
    job.call(1, "1", state="scheduled")
    job.call(0, "2", state="scheduled")
    job.all(group="2", ranks=(2, 3), state="started")
    found = look(job)
    assert said(found) == ("queued_not_started", (1,), ()) and len(found.findings) == 1


def test_a_call_made_before_those_that_were_due_is_another_order_not_a_call_too_many() -> None:
    """Rank 5 goes to the world's barrier before its second tensor call, as no other rank does."""
    job = parallel("nccl")
    for _ in range(5):
        steps(job, 1)
        job.all(op="barrier", size=None)
    job.call(5, name_of(job, "tp", 5))
    job.call(4, name_of(job, "tp", 4))
    job.call(5, op="barrier", size=None, state="scheduled")
    job.call(4, name_of(job, "tp", 4), state="scheduled")
    steps(job, 1, ranks=(0, 1, 2, 3))
    for rank in (6, 7):
        for _ in range(2):
            job.call(rank, name_of(job, "tp", rank))
        job.call(rank, name_of(job, "dp", rank), size=(4096,), state="scheduled")
    job.all(ranks=range(4), op="barrier", size=None, state="scheduled")
    found = look(job)
    assert said(found) == ("cross_group_cycle", (5,), ())


def test_who_waits_for_a_ring_through_a_joined_call_is_not_its_own_fault() -> None:
    """Ranks 1, 2 and 3 wait for each other in a ring; 0 has joined a call with 1, and 4 waits for 0."""
    job = Job(5)
    job.group("1", "tp", (0, 1))
    job.group("2", "side", (0, 4))
    job.all()
    job.recv(1, 2, state="scheduled")
    job.recv(2, 3, state="scheduled")
    job.recv(3, 1, state="scheduled")
    job.all(group="1", state="scheduled")
    job.call(4, "2", state="scheduled")
    found = look(job)
    assert said(found) == ("p2p_unmatched", (), (1, 2, 3)) and len(found.findings) == 1
