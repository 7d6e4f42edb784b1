"""Rings over three dimensions in which up to half of the ranks took the calls in another order."""

from __future__ import annotations

import pytest

from tests.cases.jobs import Call, Job, Program, Sync
from tests.cases.judged import judge, named
from tests.cases.meshes import line_of, mesh

CALLS = {
    "tp": ("all_reduce", ((2048,),)),
    "cp": ("_all_gather_base", ((256,),)),
    "dp": ("reduce", ((512,),)),
}


def job(order: tuple[str, ...], odd: tuple[int, ...], steps_before: int) -> Job:
    """Eight ranks make the calls of ``CALLS`` in their order; in the last step some do not."""
    made = mesh(tp=2, cp=2, dp=2)
    for rank in range(8):
        last = order if rank in odd else tuple(CALLS)
        for name in (*tuple(CALLS) * steps_before, *last):
            group = line_of(made, rank, name)
            assert group is not None
            moves: Program = [Call(group, *CALLS[name]), Sync()]
            made.programs[rank] += moves
    return made.run()


@pytest.mark.parametrize("steps_before", [0, 1, 4])
@pytest.mark.parametrize("order", [("dp", "tp", "cp"), ("dp", "cp", "tp"), ("cp", "tp", "dp")])
def test_no_rank_that_kept_the_order_is_named(order: tuple[str, ...], steps_before: int) -> None:
    odd = (0, 3, 6, 7)
    verdict, culprits, _ = named(judge(job(order, odd, steps_before)))
    assert verdict == "cross_group_cycle" and set(culprits) <= set(odd)


@pytest.mark.parametrize("steps_before", [1, 4])
def test_two_of_eight_are_named_by_the_others(steps_before: int) -> None:
    found = judge(job(("cp", "tp", "dp"), (0, 3), steps_before))
    assert named(found) == ("cross_group_cycle", [0, 3], [])
