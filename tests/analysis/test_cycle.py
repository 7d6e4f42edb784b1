"""Rings of waiting through several groups."""

from __future__ import annotations

from tests.analysis.looks import look, said
from tests.data.recorder import Job


def test_names_the_rank_whose_order_deviates_from_the_majority() -> None:
    job = Job(4)
    job.group("1", "dp", (0, 1, 2, 3))
    job.all()
    job.all(group="1")
    job.all(ranks=(0, 1, 3), state="scheduled")
    job.call(2, "1", state="scheduled")
    found = look(job)
    assert said(found) == ("cross_group_cycle", (2,), ())
    assert len(found.findings) == 1


def test_an_even_ring_names_suspects_only() -> None:
    job = Job(3)
    for number, pair in enumerate(((0, 1), (1, 2), (0, 2))):
        job.group(str(number + 1), f"pair{number}", pair)
    job.all()
    job.call(0, "1", state="scheduled")
    job.call(1, "2", state="scheduled")
    job.call(2, "3", state="scheduled")
    found = look(job)
    assert said(found) == ("cross_group_cycle", (), (0, 1, 2))


def test_two_ranks_in_two_groups_cannot_be_told_apart() -> None:
    job = Job(2)
    job.group("1", "a", (0, 1))
    job.group("2", "b", (0, 1))
    job.call(0, "1", state="scheduled")
    job.call(1, "2", state="scheduled")
    assert said(look(job)) == ("cross_group_cycle", (), (0, 1))


def test_a_chain_that_ends_is_no_cycle() -> None:
    job = Job(3)
    job.group("1", "a", (0, 1))
    job.group("2", "b", (1, 2))
    job.all()
    job.call(0, "1", state="scheduled")
    job.call(1, "2", state="scheduled")
    assert said(look(job)) == ("missing_rank", (2,), ())


def test_who_waits_for_the_ring_is_downstream_of_it() -> None:
    job = Job(5)
    job.group("1", "dp", (0, 1, 2, 3))
    job.group("2", "side", (3, 4))
    job.all()
    job.all(group="1", ranks=(2,), state="scheduled")
    job.all(ranks=(0, 1, 3), state="scheduled")
    job.call(4, "2", state="scheduled")
    found = look(job)
    assert len(found.findings) == 1 or all(4 not in f.culprit_ranks for f in found.findings)
