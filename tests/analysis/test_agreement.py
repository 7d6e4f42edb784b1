"""Which calls of a group its members passed alike, without one object per rank."""

from __future__ import annotations

from itertools import zip_longest

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterwatch.analysis import Observation
from clusterwatch.analysis.agreement import BAND, Agreement
from clusterwatch.analysis.groups import World, build
from tests.analysis.looks import traces
from tests.data.recorder import Job


def world(job: Job) -> World:
    return build(Observation(traces=traces(job)))


@given(st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=12), min_size=2, max_size=4))
@settings(max_examples=60, deadline=None)
def test_says_what_a_plain_comparison_says(sizes: list[list[int]]) -> None:
    """``sizes``: what each rank passes in its calls, one after the other; rings of different lengths."""
    job = Job(len(sizes))
    for rank, calls in enumerate(sizes):
        for size in calls:
            job.call(rank, size=(size,))
    made = world(job)
    agreement = Agreement(made)
    number = next(group.number for group in made.groups if group.desc == "default_pg")
    for sequence in range(1, 14):
        passed = {calls[sequence - 1] for calls in sizes if len(calls) >= sequence}
        alike = agreement.agreed(np.array([number]), sequence)[0] != 0
        assert alike == (len(passed) == 1)
        assert agreement.holders(number, sequence) == sum(len(calls) >= sequence for calls in sizes)
    columns = zip_longest(*sizes)
    assert (number in agreement.groups_that_differ()) == any(
        len({*column} - {None}) > 1 for column in columns
    )


def test_launches_that_ran_far_ahead_are_compared_where_they_stand_still() -> None:
    """Rank 0 has launched hundreds of calls beyond the one in which rank 1 passed another size."""
    job = Job(2)
    for _ in range(20):
        job.all()
    job.call(1, size=(7,), state="scheduled")
    for _ in range(10 * BAND):
        job.call(0, state="scheduled")
    made = world(job)
    assert made.groups[0].number in Agreement(made).groups_that_differ()
