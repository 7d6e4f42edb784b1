"""The model of work takes off what the step, the stage and the replica need."""

from __future__ import annotations

import numpy as np
import pytest

from clusterwatch.analysis.slow import work
from tests.analysis.slow.tables import layout, residual


def fit(log_work: np.ndarray) -> work.Model:
    told = layout()
    return work.fit(np.exp(log_work), np.ones_like(log_work), told.stage, told.replica)


def test_effects_of_step_and_replica_leave_no_residual() -> None:
    told, random = layout(), np.random.default_rng(2)
    effect = random.normal(0.0, 0.3, (50, 4))[:, told.replica] + random.normal(0.0, 0.2, (50, 1))
    model = fit(residual(50) + effect)
    assert model.has_replicas and np.abs(model.residual).max() < 0.02


def test_a_slow_rank_keeps_its_excess_though_it_sits_in_a_stage_and_a_replica() -> None:
    values = residual(50)
    values[:, 9] += 0.3
    assert np.median(fit(values).residual[:, 9]) == pytest.approx(0.3, abs=0.01)


def test_a_node_that_holds_half_of_a_stage_keeps_its_excess() -> None:
    values = residual(50)
    values[:, :4] += 0.5
    model = fit(values)
    assert np.median(model.residual[:, :4]) == pytest.approx(0.5, abs=0.02)
    assert abs(np.median(model.residual[:, 4:])) < 0.01


def test_replicas_of_one_rank_are_not_taken_off() -> None:
    values = residual(50, 8)
    values[:, 3] += 0.2
    alone = np.arange(8)
    model = work.fit(np.exp(values), np.ones_like(values), np.zeros(8, np.int64), alone)
    assert not model.has_replicas and np.median(model.residual[:, 3]) == pytest.approx(0.2, abs=0.01)


@pytest.mark.parametrize("bad", [0.0, -1.0, np.nan, np.inf])
def test_absurd_work_is_unknown(bad: float) -> None:
    told, values = layout(), np.exp(residual(20))
    values[3, 4] = bad
    model = work.fit(values, np.ones_like(values), told.stage, told.replica)
    assert np.isnan(model.residual[3, 4]) and np.isfinite(model.residual).sum() == values.size - 1
