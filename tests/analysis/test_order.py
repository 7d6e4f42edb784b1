"""Two calls of two groups in different order on the ranks that share them."""

from __future__ import annotations

from tests.analysis.looks import look, said
from tests.data.recorder import Job


def issued(orders: list[str]) -> Job:
    """Four ranks in two groups; each issues both calls, in the order given by rank."""
    job = Job(len(orders))
    job.group("1", "dp", tuple(range(len(orders))))
    job.all()
    job.all(group="1")
    for rank, order in enumerate(orders):
        for group in order:
            job.call(rank, "0" if group == "w" else "1", state="scheduled")
    return job


def test_names_the_rank_that_swapped_two_groups() -> None:
    found = look(issued(["wd", "wd", "dw", "wd"]))
    assert said(found) == ("order_mismatch", (2,), ())
    assert len(found.findings) == 1 and found.worst.seq == 2


def test_an_even_split_names_suspects_only() -> None:
    assert said(look(issued(["wd", "dw"]))) == ("order_mismatch", (), (0, 1))


def test_one_order_everywhere_is_no_swap() -> None:
    assert said(look(issued(["wd", "wd", "wd"]))) == ("all_joined_not_finished", (), ())
