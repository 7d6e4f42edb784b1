"""What a job does itself: a longer stage, and sequences that make another replica longest each step."""

from __future__ import annotations

import pytest

from clusterwatch.analysis.slow import steps, work, workload
from clusterwatch.simulate.step_job import SHAPES, Fault, Kind, StepJob, When
from tests.cases.slow_jobs import log_of


def told(*faults: Fault) -> workload.Workload:
    log = log_of(StepJob(SHAPES[16], faults, seed=3))
    table = steps.table(log.calls, log.layout, log.members)
    model = work.fit(table.work, table.usual, log.layout.stage, log.layout.replica)
    return workload.explain(table, model, model.residual)


def test_stages_alike_are_alike_though_the_first_computes_before_its_first_call() -> None:
    log = log_of(StepJob(SHAPES[16], (), seed=3))
    first, last = steps.table(log.calls, log.layout, log.members).stage_work.tolist()
    assert first == pytest.approx(last, rel=0.01)


@pytest.mark.parametrize("stage", [0, 1])
def test_a_stage_with_fifteen_per_cent_more_work_is_told_by_its_number(stage: int) -> None:
    found = told(Fault(Kind.STAGE, 1.15, When.START, place=stage)).stage
    assert found is not None and found[0] == stage and found[1] == pytest.approx(0.14, abs=0.02)


def test_sequences_of_unlike_length_are_told_and_a_job_without_them_is_not() -> None:
    found = told(Fault(Kind.SEQUENCE, 0.15, When.START))
    assert found.sequences is not None and found.skew is None
    assert told() == workload.Workload(None, None, None)
