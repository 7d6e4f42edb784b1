"""Each 2**power-th step, alike on all ranks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.hook.rhythm import SLACK_RATIO, Rhythm


@pytest.mark.parametrize(("apart", "power"), [(0.1, 0), (1.0, 0), (1.1, 1), (8.0, 3), (8.1, 4), (1e9, 10)])
def test_the_smallest_power_that_is_enough_is_taken(apart: float, power: int) -> None:
    rhythm = Rhythm(0, 10)
    assert rhythm.settle(apart) == (apart <= 1024)
    assert rhythm.power == power


def test_near_a_border_it_stays_where_it_is() -> None:
    rhythm = Rhythm(0, 10)
    rhythm.settle(8.1)
    for apart in (7.9, 8.1, 6.0, 8.1):
        rhythm.settle(apart)
        assert rhythm.power == 4
    rhythm.settle(8 / SLACK_RATIO)
    assert rhythm.power == 3


@given(st.lists(st.floats(0.01, 500), min_size=2, max_size=6))
def test_whatever_ranks_settle_on_they_share_the_steps_of_the_rarest(aparts: list[float]) -> None:
    rhythms = [Rhythm(3, 10) for _ in aparts]
    for rhythm, apart in zip(rhythms, aparts, strict=True):
        rhythm.settle(apart)
    chosen = [{step for step in range(1, 2049) if rhythm.holds(step)} for rhythm in rhythms]
    rarest = min(chosen, key=len)
    assert len(rarest) >= 2 and set.intersection(*chosen) == rarest
