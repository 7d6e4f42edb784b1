"""Made training jobs with one part at fault, or with nothing but noise: the exact part, or nobody.

The jobs come from a model of its own (``clusterwatch.simulate.step_job``). The whole matrix, with more seeds
and sizes, is ``clusterwatch bench detect``.
"""

from __future__ import annotations

from itertools import product

import pytest

from clusterwatch.simulate.step_job import SHAPES, Condition, Fault, Kind, StepJob, When
from tests.cases.judged import Verdict
from tests.cases.slow_jobs import judged

SEEDS = (11, 12)
PARTS = [
    *(Fault(Kind.GPU, size, when) for size, when in product((1.06, 1.3), When)),
    *(Fault(Kind.NIC, size, when) for size, when in product((0.8, 0.5, 0.25), (When.START, When.ONSET))),
    *(Fault(Kind.NVLINK, size) for size in (0.5, 0.25)),
    *(Fault(Kind.SWITCH, size) for size in (0.7, 0.35)),
    *(Fault(Kind.HOST, size) for size in (10, 14)),
    *(Fault(Kind.LOADER, size) for size in (10, 60, 300)),
    *(Fault(Kind.STORAGE, size) for size in (2, 8)),
    *(Fault(kind) for kind in (Kind.ABSENT, Kind.QUEUED, Kind.INSIDE, Kind.ORDER)),
]
NOBODY = [
    *(Fault(Kind.GC, size, When.START) for size in (0.01, 0.06)),
    Fault(Kind.STAGE, 1.4, When.START),
    Fault(Kind.REPLICA, 1.3, When.START),
    Fault(Kind.SEQUENCE, 0.35, When.START),
]
UNEVEN = (Fault(Kind.STAGE, 1.3, When.START), Fault(Kind.SEQUENCE, 0.25, When.START))


def label(value: object) -> str | None:
    if isinstance(value, Fault):
        return f"{value.kind}-{value.size}-{value.when}"
    return str(value) if isinstance(value, Condition) else None


def right(job: StepJob, verdict: Verdict) -> None:
    truth, told = job.truth, verdict["summary"]
    assert sorted(verdict["culprit_ranks"]) in map(sorted, truth["acceptable"]), told
    assert verdict["class"] == truth["class"], told
    for part in ("node", "link", "switch"):
        assert truth[part] in (None, verdict[part]), told


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("fault", PARTS, ids=label)
def test_names_exactly_the_part_at_fault(fault: Fault, seed: int) -> None:
    job = StepJob(SHAPES[16], (fault,), seed=seed)
    verdict = judged(job)
    right(job, verdict)
    told = verdict["onset_step"], job.truth["start_step"]
    if fault.kind in (Kind.GPU, Kind.NIC, Kind.LOADER) and fault.when is not When.RAMP:
        assert abs(told[0] - told[1]) <= 1, verdict["summary"]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("fault", NOBODY, ids=label)
def test_what_the_job_does_itself_is_explained_and_blames_nobody(fault: Fault, seed: int) -> None:
    verdict = judged(StepJob(SHAPES[16], (fault,), seed=seed))
    assert (verdict["verdict"], verdict["culprit_ranks"]) == (str(fault.kind), []), verdict["summary"]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("condition", [None, *Condition], ids=label)
def test_healthy_jobs_blame_nobody(condition: Condition | None, seed: int) -> None:
    conditions = frozenset() if condition is None else frozenset((condition,))
    verdict = judged(StepJob(SHAPES[16], (), conditions, seed))
    assert (verdict["class"], verdict["culprit_ranks"]) == ("none", []), verdict["summary"]


def test_few_gpus_that_differ_for_ever_are_nobodys_fault() -> None:
    verdict = judged(StepJob(SHAPES[16], (), frozenset((Condition.SILICON,)), 17))
    assert (verdict["class"], verdict["culprit_ranks"]) == ("none", []), verdict["summary"]


@pytest.mark.parametrize("condition", [c for c in Condition if c is not Condition.SILENT_RANK], ids=label)
@pytest.mark.parametrize("fault", [Fault(Kind.GPU, 1.15), Fault(Kind.NIC, 0.4)], ids=label)
def test_a_fault_is_found_under_what_else_happens(fault: Fault, condition: Condition) -> None:
    job = StepJob(SHAPES[16], (fault,), frozenset((condition,)), seed=13)
    right(job, judged(job))


@pytest.mark.parametrize("uneven", UNEVEN, ids=label)
def test_a_fault_is_found_inside_an_imbalanced_job(uneven: Fault) -> None:
    job = StepJob(SHAPES[16], (Fault(Kind.GPU, 1.15), uneven), seed=14)
    verdict = judged(job)
    assert verdict["culprit_ranks"] in job.truth["acceptable"], verdict["summary"]
    assert str(uneven.kind) in [one["verdict"] for one in verdict["findings"]]


def test_two_faults_at_once_are_two_findings() -> None:
    job = StepJob(SHAPES[16], (Fault(Kind.GPU, 1.3, place=2), Fault(Kind.NIC, 0.25, place=13)), seed=15)
    verdict = judged(job)
    assert verdict["culprit_ranks"] == [2, 13], verdict["summary"]
    assert {one["verdict"] for one in verdict["findings"]} == {"slow_gpu", "slow_nic"}


@pytest.mark.parametrize(
    "fault",
    [Fault(Kind.GPU, 1.06), Fault(Kind.NIC, 0.5), Fault(Kind.SWITCH, 0.35), Fault(Kind.QUEUED)],
    ids=label,
)
def test_larger_jobs_as_well(fault: Fault) -> None:
    job = StepJob(SHAPES[64], (fault,), seed=16)
    right(job, judged(job))
