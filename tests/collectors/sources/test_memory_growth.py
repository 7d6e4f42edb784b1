"""Growth of memory: robust against peaks, silent until it knows, a forecast only of what rises steadily."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.sources.memory_growth import LOOKS_MAX, Growth

GIB = 2**30
MIB = 2**20


def grown(values: list[float], step_s: float = 60.0) -> Growth:
    growth = Growth()
    for number, value in enumerate(values):
        growth.add(number * step_s, value)
    return growth


def test_a_steady_leak_has_a_slope_and_an_end() -> None:
    growth = grown([GIB + number * 60 * MIB for number in range(10)])
    assert growth.per_s() == (MIB, "ok")
    assert growth.full_in_s(600 * MIB) == (600.0, "ok")
    assert growth.full_in_s(-5.0) == (0.0, "ok")


def test_one_peak_does_not_bend_the_line() -> None:
    values = [GIB + number * 60.0 * MIB for number in range(10)]
    values[9] += 50 * GIB
    slope, _ = grown(values).per_s()
    assert slope is not None and abs(slope - MIB) < 0.5 * MIB


def test_a_sawtooth_and_a_plateau_are_no_growth() -> None:
    assert grown([GIB, 3 * GIB] * 5).full_in_s(GIB) == (None, "not_growing")
    assert grown([GIB] * 10).full_in_s(GIB) == (None, "not_growing")
    assert grown([GIB + number * MIB for number in range(10)]).full_in_s(GIB) == (None, "not_growing")


def test_too_few_looks_and_a_clock_that_went_back_are_unknown() -> None:
    assert grown([1.0] * 5).per_s() == (None, "too_few_looks")
    assert grown([1.0] * 10, step_s=10.0).per_s() == (None, "too_few_looks")
    growth = grown([1.0] * 10)
    growth.add(5.0, 1.0)
    assert growth.per_s() == (None, "too_few_looks")


def test_what_is_older_than_the_window_is_forgotten() -> None:
    growth = grown([float(GIB * max(0, 10 - number)) for number in range(30)])
    assert growth.per_s() == (0.0, "ok")


@settings(max_examples=30)
@given(st.lists(st.floats(0, 2.0**50), min_size=6, max_size=LOOKS_MAX), st.floats(-(2.0**40), 2.0**40))
def test_more_memory_everywhere_is_the_same_slope_and_no_forecast_is_negative(
    values: list[float], free: float
) -> None:
    slope, _ = grown(values).per_s()
    lifted, _ = grown([value + GIB for value in values]).per_s()
    assert slope is not None and lifted is not None and abs(slope - lifted) < 1.0
    left_s, _ = grown(values).full_in_s(free)
    assert left_s is None or left_s >= 0.0
