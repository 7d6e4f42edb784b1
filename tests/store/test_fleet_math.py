"""Numbers over slots and time, against numpy and against plain loops."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from clusterwatch.store import fleet_math

NUMBERS = st.one_of(st.just(np.nan), st.integers(-100, 100).map(float))
TABLES = arrays(np.float64, st.tuples(st.integers(1, 6), st.integers(1, 9)), elements=NUMBERS)


@given(TABLES)
def test_percentiles_are_numpys_over_what_is_there(table: NDArray[np.float64]) -> None:
    found = fleet_math.percentiles(table, (0, 1, 50, 99, 100))
    for row, numbers in zip(found, table, strict=True):
        there = numbers[~np.isnan(numbers)]
        if len(there):
            np.testing.assert_allclose(row, np.percentile(there, (0, 1, 50, 99, 100)))
        else:
            assert np.isnan(row).all()


@given(TABLES)
def test_means_and_growth_pass_over_what_is_missing(table: NDArray[np.float64]) -> None:
    mean = fleet_math.MeanOver(table.shape[1])
    gauge = fleet_math.GaugeGrowth(table.shape[1])
    for row in table:
        mean.add(row.astype(np.float32))
        gauge.add(row.astype(np.float32))
    for column, found, growth in zip(table.T, mean.result(), gauge.result(), strict=True):
        there = column[~np.isnan(column)]
        assert np.isnan(found) if not len(there) else np.isclose(found, there.mean())
        assert np.isnan(growth) if len(there) < 2 else np.isclose(growth, there[-1] - there[0])


@given(st.lists(st.one_of(st.none(), st.integers(0, 50)), min_size=1, max_size=12))
def test_a_counter_counts_on_over_a_restart(values: list[int | None]) -> None:
    counted, last, seen = 0, None, 0
    for value in values:
        if value is None:
            continue
        if last is not None:
            counted += value - last if value >= last else value
        last, seen = value, seen + 1
    growth = fleet_math.CounterGrowth(1)
    for value in values:
        growth.add(np.array([np.nan if value is None else value], np.float32))
    assert np.isnan(growth.result()[0]) if seen < 2 else growth.result()[0] == counted


@given(arrays(np.float64, st.integers(0, 12), elements=NUMBERS), st.integers(1, 14), st.booleans())
def test_the_largest_come_first_and_equal_ones_by_place(
    values: NDArray[np.float64], count: int, largest: bool
) -> None:
    known = [(value, place) for place, value in enumerate(values.tolist()) if not np.isnan(value)]
    known.sort(key=lambda one: (-one[0] if largest else one[0], one[1]))
    found = fleet_math.top_places(values, count, largest=largest)
    assert found.tolist() == [place for _, place in known[:count]]


def test_buckets_hold_low_mean_and_high_of_what_is_there() -> None:
    nan = np.nan
    found = fleet_math.in_buckets(np.array([1.0, nan, 3.0, nan, nan, nan]), 3)
    assert (found.low[0], found.mean[0], found.high[0]) == (1.0, 2.0, 3.0)
    assert np.isnan([found.low[1], found.mean[1], found.high[1]]).all()
