"""When a change began: a step at its row, a ramp at its first row, and 0 for what was always so."""

from __future__ import annotations

import numpy as np
import pytest

from clusterwatch.analysis.slow import alarm

ROWS = np.arange(100)


def noise(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(0.0, 0.004, 100)


@pytest.mark.parametrize("seed", range(6))
def test_a_step_is_dated_to_its_row(seed: int) -> None:
    assert alarm.change_row(0.03 * (ROWS >= 40) + noise(seed), 20, 60) == 40


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("rise", [20, 40])
def test_a_ramp_is_dated_back_to_where_it_began(seed: int, rise: int) -> None:
    grows = 0.08 * np.clip((ROWS - 29) / rise, 0.0, 1.0)
    assert abs(alarm.change_row(grows + noise(seed), 30, 60) - 30) <= 3


def test_a_ramp_that_still_grows_at_the_end_is_dated_as_well() -> None:
    grows = 0.08 * np.clip((ROWS - 29) / 30, 0.0, 1.0) + noise(1)
    assert abs(alarm.change_row(grows[:52], 34, 52) - 30) <= 3


def test_rows_that_nobody_knows_move_nothing() -> None:
    values = 0.05 * (ROWS >= 40) + noise(2)
    values[::3] = np.nan
    assert alarm.change_row(values, 20, 60) in (40, 41)


def test_what_was_always_so_began_at_0() -> None:
    assert alarm.change_row(0.05 + noise(3), 0, 60) == 0
    assert alarm.change_row(np.full(100, np.nan), 0, 60) == 0
