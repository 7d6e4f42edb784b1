"""Windows, grids and gaps: every number that is not there has its reason."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterwatch.store.answers import (
    GAPS_MAX,
    SECOND_NS,
    Grid,
    Horizon,
    QueryRefused,
    Reason,
    Window,
    choose_step,
    find_gaps,
)

ALL = Horizon(0, 10**18)


def seconds(count: int, start_s: int = 1_000) -> Grid:
    return Grid(start_s * SECOND_NS, 1, count)


def test_a_grid_covers_its_window_with_whole_steps() -> None:
    grid = Grid.over(Window(61 * SECOND_NS, 121 * SECOND_NS), 60)
    assert (grid.start_ns, grid.count, grid.end_ns) == (60 * SECOND_NS, 2, 180 * SECOND_NS)
    assert grid.places(np.array([59, 60, 119, 120, 180]) * SECOND_NS).tolist() == [-1, 0, 0, 1, -1]


def test_an_empty_window_is_refused() -> None:
    with pytest.raises(QueryRefused, match="before"):
        Window(5, 5)


@given(st.lists(st.booleans(), min_size=1, max_size=40))
def test_gaps_are_exactly_what_is_not_there(present: list[bool]) -> None:
    grid = seconds(len(present))
    gaps = find_gaps(grid, np.array(present), ALL, collected=True)
    missing = {
        second
        for gap in gaps.told
        for second in range(gap.start_ns // SECOND_NS - 1_000, gap.end_ns // SECOND_NS - 1_000)
    }
    assert missing == {place for place, there in enumerate(present) if not there}
    assert {gap.reason for gap in gaps.told} <= {Reason.NO_DATA}


def test_each_gap_says_why() -> None:
    grid = seconds(10)
    present = np.zeros(10, np.bool_)
    present[4] = True
    horizon = Horizon(grid.start_ns + 2 * SECOND_NS, grid.start_ns + 8 * SECOND_NS)
    told = find_gaps(grid, present, horizon, collected=True).told
    lengths = [((gap.end_ns - gap.start_ns) // SECOND_NS, gap.reason) for gap in told]
    assert lengths == [(2, Reason.EXPIRED), (2, Reason.NO_DATA), (3, Reason.NO_DATA), (2, Reason.NOT_YET)]
    unknown = find_gaps(grid, np.zeros(10, np.bool_), ALL, collected=False).told
    assert [gap.reason for gap in unknown] == [Reason.NOT_COLLECTED]


def test_many_gaps_are_counted_not_listed() -> None:
    present = np.arange(2 * GAPS_MAX + 20) % 2 == 0
    gaps = find_gaps(seconds(len(present)), present, ALL, collected=True)
    assert (len(gaps.told), gaps.left_out) == (GAPS_MAX, 10)


def test_the_finest_step_that_fits_is_chosen() -> None:
    hour, steps = Window(0, 3_600 * SECOND_NS), (1, 10, 60)
    assert choose_step(hour, steps, 4_000, None) == 1
    assert choose_step(hour, steps, 400, None) == 10
    assert choose_step(hour, steps, 400, 60) == 60
    with pytest.raises(QueryRefused, match="10 s or coarser"):
        choose_step(hour, steps, 400, 1)
    with pytest.raises(QueryRefused, match="one of 1, 10, 60"):
        choose_step(hour, steps, 400, 7)
    with pytest.raises(QueryRefused, match="too long"):
        choose_step(hour, steps, 10, None)
