"""Input, checkpoint and pauses, each told apart from slow work."""

from __future__ import annotations

import numpy as np

from clusterwatch.analysis.slow import phases, ranks, work
from clusterwatch.analysis.slow.steps import StepTable
from tests.analysis.slow.tables import bare, layout, residual


def model_of(table: StepTable) -> work.Model:
    return work.fit(table.work, table.usual, table.layout.stage, table.layout.replica)


def test_a_rank_that_is_fed_late_is_named_with_its_step() -> None:
    table = bare(np.exp(residual()), layout())
    table.first_gap[35:, 6] += 0.06
    (found,) = phases.slow_inputs(table, model_of(table))
    assert (found.rank, found.onset) == (6, 35) and abs(found.excess_s - 0.06) < 0.002


def test_input_that_is_long_for_all_of_a_stage_is_nobodys() -> None:
    table = bare(np.exp(residual()), layout())
    table.first_gap[35:, :8] += 0.2
    assert phases.slow_inputs(table, model_of(table)) == []


def checkpoints(slow_from: int, factor: float) -> StepTable:
    gaps = np.full((80, 16), np.nan)
    gaps[19::20] = 0.3 * np.random.default_rng(5).normal(1.0, 0.04, (4, 16))
    gaps[slow_from:, 4:8] *= factor
    return bare(np.exp(residual()), layout(), rare_gap=gaps)


def test_a_host_that_writes_slowly_is_named_at_its_first_slow_checkpoint() -> None:
    (found,) = phases.slow_storage(checkpoints(30, 8.0))
    assert (found.node, found.ranks, found.onset) == (1, (4, 5, 6, 7), 39)
    (found,) = phases.slow_storage(checkpoints(0, 2.0))
    assert (found.node, found.writes) == (1, 4)


def test_a_slow_writer_among_few_hosts_that_vary_is_named_and_the_others_are_not() -> None:
    for seed in range(8):
        gaps, random = np.full((100, 16), np.nan), np.random.default_rng(seed)
        gaps[19::20] = np.repeat(0.3 * np.exp(random.normal(0.0, 0.08, (5, 4))), 4, axis=1)
        table = bare(np.exp(residual(100)), layout(), rare_gap=gaps)
        assert phases.slow_storage(table) == []
        gaps[:, 8:12] *= 2.0
        assert [one.node for one in phases.slow_storage(table)] == [2]


def test_writes_that_vary_are_no_fault() -> None:
    assert phases.slow_storage(checkpoints(0, 1.15)) == []


def test_pauses_of_many_at_different_steps_are_told_and_not_those_of_one() -> None:
    values = residual(100)
    random = np.random.default_rng(6)
    where = random.random(values.shape) < 0.03
    table = bare(np.exp(values + 0.4 * where), layout())
    told = phases.pauses(table, model_of(table).residual, np.zeros(16, np.bool_))
    assert told is not None and told.rank_ratio > 0.8
    assert not ranks.of_residual(model_of(table).residual).is_slow.any()
    first = residual(100)
    first[0, ::2] += 0.5
    table = bare(np.exp(first), layout())
    assert phases.pauses(table, model_of(table).residual, np.zeros(16, np.bool_)) is None
    one = residual(100)
    one[::9, 3] += 0.5
    table = bare(np.exp(one), layout())
    assert phases.pauses(table, model_of(table).residual, np.zeros(16, np.bool_)) is None
