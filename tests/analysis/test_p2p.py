"""Sends and receives: pairs, batches, wrong peers, healthy pipelines."""

from __future__ import annotations

from tests.analysis.looks import look, said
from tests.data.recorder import Job


def exchange(rounds: int = 3) -> Job:
    job = Job(4)
    job.all()
    for _ in range(rounds):
        job.send(0, 1)
        job.recv(1, 0)
    return job


def test_names_the_rank_that_never_received() -> None:
    job = exchange()
    job.send(0, 1, state="scheduled")
    found = look(job)
    assert said(found) == ("p2p_unmatched", (1,), ())
    assert (found.worst.op, found.worst.seq) == ("send 0->1", 4)


def test_names_the_rank_that_never_sent() -> None:
    job = exchange()
    job.recv(1, 0, state="scheduled")
    found = look(job)
    assert said(found) == ("p2p_unmatched", (0,), ())
    assert (found.worst.op, found.worst.seq) == ("recv 1<-0", 4)


def test_names_the_rank_that_addressed_the_wrong_peer() -> None:
    job = exchange()
    job.send(0, 2, state="scheduled")
    job.recv(1, 0, state="scheduled")
    found = look(job)
    assert said(found) == ("p2p_unmatched", (0,), ()) and found.worst.cause == "wrong_peer"


def test_a_second_receiver_that_waits_its_turn_is_not_a_wrong_peer() -> None:
    job = exchange()
    job.send(0, 2)
    job.recv(2, 0)
    job.send(0, 2, state="scheduled")
    job.recv(1, 0, state="scheduled")
    job.recv(2, 0, state="scheduled")
    assert look(job).worst.cause != "wrong_peer"


def test_a_pair_of_other_sizes_is_told_and_names_both() -> None:
    job = exchange()
    job.send(0, 1, state="scheduled", size=(64,))
    job.recv(1, 0, state="scheduled", size=(32,))
    found = look(job)
    assert said(found) == ("p2p_unmatched", (), (0, 1)) and found.worst.cause == "wrong_size"


def test_a_pair_that_both_made_and_neither_finished_names_nobody() -> None:
    job = exchange()
    job.send(0, 1, state="scheduled")
    job.recv(1, 0, state="scheduled")
    assert said(look(job)) == ("all_joined_not_finished", (), ())


def test_numbers_in_a_name_are_group_ranks() -> None:
    job = Job(8)
    job.group("1", "pp", (3, 7))
    job.all()
    job.recv(7, 3, "1", state="scheduled")
    assert said(look(job)) == ("p2p_unmatched", (3,), ())


def pipeline(job: Job, rounds: int, stages: int = 4) -> None:
    for _ in range(rounds):
        for rank in range(stages):
            moves = [("recv", rank - 1)] if rank > 0 else []
            moves += [("send", rank + 1)] if rank < stages - 1 else []
            moves += [("send", rank - 1)] if rank > 0 else []
            moves += [("recv", rank + 1)] if rank < stages - 1 else []
            job.batch(rank, moves)


def test_a_healthy_pipeline_of_batches_is_no_fault() -> None:
    job = Job(4)
    pipeline(job, 6)
    assert said(look(job)) == ("no_fault", (), ())


def test_an_open_batch_waits_for_the_stage_that_made_none() -> None:
    job = Job(4)
    pipeline(job, 3)
    job.batch(0, [("send", 1), ("recv", 1)], state="scheduled")
    job.batch(2, [("recv", 1), ("send", 3), ("send", 1), ("recv", 3)], state="scheduled")
    job.batch(3, [("recv", 2), ("send", 2)], state="scheduled")
    assert said(look(job)) == ("p2p_unmatched", (1,), ())


def test_a_stage_that_waits_in_a_collective_is_not_the_root() -> None:
    job = Job(4)
    job.group("1", "tp", (1, 2))
    job.all()
    job.recv(0, 1, state="scheduled")
    job.call(1, "1", state="scheduled")
    found = look(job)
    assert said(found) == ("missing_rank", (2,), ())
    assert found.worst.downstream.ranks == 2


def test_names_the_rank_that_receives_from_the_wrong_peer() -> None:
    job = exchange()
    job.send(0, 1, state="scheduled")
    job.recv(1, 2, state="scheduled")
    found = look(job)
    assert said(found) == ("p2p_unmatched", (1,), ()) and found.worst.cause == "wrong_peer"


def test_without_an_earlier_exchange_the_two_ends_are_suspects() -> None:
    job = Job(4)
    job.all()
    job.send(0, 2, state="scheduled")
    job.recv(1, 0, state="scheduled")
    assert said(look(job)) == ("p2p_unmatched", (), (0, 2))
