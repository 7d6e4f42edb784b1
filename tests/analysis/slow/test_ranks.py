"""Slow ranks: what stays is named with its step, what passes or was always there is not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterwatch.analysis.slow import ranks
from tests.analysis.slow.tables import residual


def slow(values: np.ndarray) -> list[int]:
    return np.flatnonzero(ranks.of_residual(values).is_slow).tolist()


def test_six_per_cent_on_one_rank_opens_within_ten_steps_and_tells_the_first() -> None:
    values = residual(steps=80)
    values[40:, 5] += np.log(1.06)
    assert slow(values[:50]) == [5]
    found = ranks.of_residual(values)
    assert (slow(values), int(found.onset[5]), int(found.bad_rows[5])) == ([5], 40, 40)
    assert found.excess[5] == pytest.approx(np.log(1.06), abs=0.005)


def test_one_that_was_always_slow_is_named_by_its_peers() -> None:
    values = residual()
    values[:, 5] += 0.06
    found = ranks.of_residual(values)
    assert slow(values) == [5] and found.onset[5] == 0


def test_every_second_week_of_steps_is_enough() -> None:
    values = residual(steps=100)
    for start in range(30, 100, 25):
        values[start : start + 12, 7] += 0.1
    assert slow(values) == [7]


def test_three_per_cent_that_come_and_go_are_told_by_the_ranks_own_history() -> None:
    values = residual(steps=100)
    for start in range(30, 100, 25):
        values[start : start + 12, 7] += np.log(1.03)
    assert slow(values) == [7]
    assert slow(values - 0.6 * (values > 0.02)) == []


@pytest.mark.parametrize("pause", [0.3, 5.0])
def test_pauses_of_any_length_open_nothing(pause: float) -> None:
    values = residual(steps=200)
    values[20::15, 3] += pause
    assert slow(values) == []


def test_silicon_that_differs_for_ever_is_no_fault_though_there_are_many() -> None:
    random = np.random.default_rng(4)
    values = residual(steps=60, ranks=16_384, noise=0.002) + random.normal(0.0, 0.015, 16_384)
    assert slow(values) == []


def test_a_change_against_own_history_is_seen_among_uneven_silicon() -> None:
    random = np.random.default_rng(4)
    values = residual(steps=80, ranks=4_096, noise=0.002) + random.normal(0.0, 0.015, 4_096)
    values[40:, 17] += 0.1
    found = ranks.of_residual(values)
    assert slow(values) == [17] and found.onset[17] == 40


def test_half_of_the_ranks_may_be_slow_together() -> None:
    values = residual()
    values[30:, :6] += 0.2
    assert slow(values) == list(range(6))


def test_what_is_not_known_neither_opens_nor_closes() -> None:
    values = residual()
    values[40:, 5] += 0.06
    values[::3, 5] = np.nan
    values[12] = np.nan
    assert slow(values) == [5]
    values[:, 5] = np.nan
    assert slow(values) == []


def test_a_job_that_is_watched_step_by_step_says_what_the_whole_log_says() -> None:
    values = residual(steps=90)
    values[50:, 2] += 0.08
    watched = ranks.Watched.of(16)
    for row in values:
        watched.add(row)
    centred = ranks.centred(values)
    whole = ranks.of_residual(values)
    last = watched.told(centred[-60:], np.zeros(60))
    assert np.flatnonzero(last.is_slow).tolist() == [2] == slow(values)
    assert last.onset[2] + 30 == whole.onset[2] == 50


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 40), st.integers(1, 9))
def test_any_numbers_at_all_are_survived(seed: int, steps: int, count: int) -> None:
    random = np.random.default_rng(seed)
    values = random.choice([0.0, np.nan, 1e300, -1e300, 1e-300, 0.5], (steps, count))
    found = ranks.of_residual(values)
    assert len(found.onset) == count and np.all(found.onset[found.is_slow] >= 0)
    assert np.isfinite(found.excess).all() and np.isfinite(found.score).all()
