"""A made fault is judged right, and the same from columns, from pickles and from JSON."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clusterwatch.analysis import Observation, diagnose
from clusterwatch.analysis.model import Diagnosis
from clusterwatch.readers import folder
from clusterwatch.simulate.trace_files import write_json, write_pickles
from clusterwatch.simulate.traces import Fault, Kind, Layout, StepShape, TraceJob, Truth

TENSOR = Layout(tensor=8, data=4)
STAGES = Layout(pipeline=4, data=4)
FIVE = Layout(tensor=4, context=2, pipeline=4, data=4, expert=2)


def job(layout: Layout, *kinds: Kind, seed: int = 0, **more: Any) -> TraceJob:
    return TraceJob(layout, tuple(Fault(kind) for kind in kinds), steps=12, seed=seed, **more)


def judged(path: Path) -> Diagnosis:
    found = folder.read(path, processes=1)
    known = found.stale_ranks
    return diagnose(
        Observation(
            windows=found.windows, world_size=found.world_size, stale_ranks=known, problems=found.problems
        )
    )


def answer(diagnosis: Diagnosis) -> list[dict[str, Any]]:
    return [finding.to_dict() for finding in diagnosis.findings]


def says(found: Diagnosis, truth: Truth) -> bool:
    return any(
        (f.verdict, f.culprit_ranks, f.suspect_ranks)
        == (truth.verdict, truth.culprit_ranks, truth.suspect_ranks)
        and (truth.group is None or (f.group is not None and (f.group.name, f.group.desc) == truth.group))
        and (truth.seq is None or (f.seq, f.op) == (truth.seq, truth.op))
        for f in found.findings
    )


CASES = [
    *((TENSOR, kind) for kind in Kind if kind is not Kind.P2P_UNMATCHED),
    *((FIVE, kind) for kind in Kind),
    (STAGES, Kind.P2P_UNMATCHED),
    (STAGES, Kind.MISSING_RANK),
    (Layout(pipeline=2), Kind.P2P_UNMATCHED),
]


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(("layout", "kind"), CASES)
def test_a_made_fault_is_named(layout: Layout, kind: Kind, seed: int) -> None:
    made = job(layout, kind, seed=seed)
    found = diagnose(Observation(traces=tuple(made.traces()), world_size=layout.world))
    assert all(says(found, truth) for truth in made.expected), [f.summary for f in found.findings]


@pytest.mark.parametrize("moving", [False, True])
@pytest.mark.parametrize("layout", [TENSOR, STAGES, FIVE])
def test_a_healthy_job_has_no_fault(layout: Layout, moving: bool) -> None:
    found = diagnose(Observation(traces=tuple(job(layout, moving=moving).traces())))
    assert found.worst.verdict == "no_fault"


def test_two_faults_at_once_are_both_named() -> None:
    made = job(TENSOR, Kind.MISSING_RANK, Kind.SIZE_MISMATCH)
    found = diagnose(Observation(traces=tuple(made.traces())))
    assert all(says(found, truth) for truth in made.expected), [f.summary for f in found.findings]
    assert len(found.findings) == 2


def downstream(made: TraceJob, truth: Truth) -> bool:
    """Whether the fault never came to be: a member of a call that the network would stop waits for another
    fault and has not issued it, so nobody has joined in full and only the other fault can be told.
    """
    if truth.verdict != Kind.ALL_JOINED_NOT_FINISHED or truth.seq is None:
        return False
    told = [
        group for trace in made.traces() for group in trace.groups if (group.name, group.desc) == truth.group
    ]
    return any((group.last_enqueued or 0) < truth.seq for group in told)


def together(seed: int) -> TraceJob:
    """Two or three faults at once, each in a replica of its own."""
    random = np.random.default_rng([seed, 11])
    layouts = [TENSOR, FIVE, Layout(pipeline=4, data=6), Layout(tensor=2, context=4, pipeline=2, data=8)]
    while True:
        layout = layouts[int(random.integers(len(layouts)))]
        kinds = random.choice(np.array(list(Kind)), int(random.integers(2, 4)), replace=False)
        made = job(layout, *map(Kind, kinds), seed=int(random.integers(1000)))
        try:
            assert made.expected
        except ValueError:  # the layout has no place for them
            continue
        return made


@pytest.mark.parametrize("seed", [*range(14), 25, 27, 30, 46, 47, 50, 52])
def test_faults_at_once_are_findings_of_their_own_and_name_nobody_else(seed: int) -> None:
    made = together(seed)
    found = diagnose(Observation(traces=tuple(made.traces()), world_size=made.layout.world))
    told = {truth.verdict: says(found, truth) for truth in made.expected}
    hidden = {truth.verdict for truth in made.expected if downstream(made, truth)}
    assert {kind for kind, seen in told.items() if not seen} == hidden and any(told.values()), told
    guilty = {rank for truth in made.expected for rank in truth.culprit_ranks}
    assert {rank for finding in found.findings for rank in finding.culprit_ranks} <= guilty
    assert len(found.findings) == sum(told.values())


def test_a_call_that_the_network_stops_is_told_beside_another_fault() -> None:
    made = job(STAGES, Kind.ALL_JOINED_NOT_FINISHED, Kind.DTYPE_MISMATCH, seed=5)
    found = diagnose(Observation(traces=tuple(made.traces()), world_size=made.layout.world))
    assert all(says(found, truth) for truth in made.expected) and len(found.findings) == 2


@pytest.mark.parametrize("kind", list(Kind))
def test_columns_pickles_and_json_give_one_answer(kind: Kind, tmp_path: Path) -> None:
    made = job(STAGES if kind is Kind.P2P_UNMATCHED else TENSOR, kind)
    for name in ("pickle", "json"):
        (tmp_path / name).mkdir()
    write_pickles(tmp_path / "pickle", made.traces())
    write_json(tmp_path / "json", made.traces())
    direct = diagnose(Observation(traces=tuple(made.traces()), world_size=made.layout.world))
    pickles, texts = judged(tmp_path / "pickle"), judged(tmp_path / "json")
    assert answer(pickles) == answer(texts)
    assert [f.verdict for f in pickles.findings] == [f.verdict for f in direct.findings]
    for one, other in zip(pickles.findings, direct.findings, strict=True):
        assert (one.culprit_ranks, one.suspect_ranks, one.group, one.seq, one.op) == (
            other.culprit_ranks, other.suspect_ranks, other.group, other.seq, other.op
        )  # fmt: skip


LAYOUTS = [
    Layout(tensor=8, data=2),
    Layout(tensor=4, pipeline=2, data=4),
    FIVE,
    Layout(pipeline=4, data=3),
    Layout(tensor=2, context=2, pipeline=3, data=4, expert=4),
    Layout(data=6),
    Layout(context=4, data=4, expert=2),
]
SHAPES: list[dict[str, Any]] = [
    {"steps": 9},
    {"ring": 260},
    {"steps": 9, "open_only": True},
    {"steps": 7, "shape": StepShape(layers=2, microbatches=3, batched_p2p=False), "timing": True},
]


@pytest.mark.long
@pytest.mark.limit_s(600)
@pytest.mark.parametrize("kind", list(Kind))
def test_no_innocent_rank_is_named_whatever_the_job(kind: Kind) -> None:
    """Whichever word the verdict has, a page goes to nobody but the rank that something is wrong with."""
    wrong, jobs = [], 0
    for layout in LAYOUTS:
        for shape, seed in itertools.product(SHAPES, range(4)):
            made = TraceJob(layout, (Fault(kind),), seed=seed, **shape)
            try:
                (truth,) = made.expected
            except ValueError:  # the layout has no place for such a fault
                continue
            found = diagnose(Observation(traces=tuple(made.traces()), world_size=layout.world))
            named = {rank for finding in found.findings for rank in finding.culprit_ranks}
            jobs += 1
            if not named <= {*truth.culprit_ranks, *truth.suspect_ranks}:
                wrong.append((layout, shape, seed, truth, found.worst.summary))
    assert jobs
    assert not wrong
