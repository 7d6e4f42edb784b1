"""Calls whose number cannot be read: the dump is named, and the number makes no finding of its own."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from clusterwatch.analysis import Diagnosis, Observation, diagnose
from clusterwatch.analysis.unnumbered import FILLED_MAX
from collectors.formats.flight_recorder import decode
from tests.cases.jobs import Halt, Job
from tests.cases.judged import Verdict, judge_bytes, named
from tests.cases.meshes import mesh, train

HUGE = 10**40


def stalled() -> Job:
    """Rank 2 stops in its second step; the newest calls of the others are open."""
    job = train(mesh(tp=2, dp=2), steps=3)
    job.programs[2].insert(9, Halt())
    return job.run()


def spoilt(
    job: Job, rank: int, spoil: Callable[[list[dict[str, Any]]], None], as_json: bool, version: str
) -> Verdict:
    dumps = {}
    for ring in job.rings:
        dump = ring.dump(version)
        if ring.rank == rank:
            dump["entries"] = [dict(entry) for entry in dump["entries"]]
            spoil(dump["entries"])
        dumps[ring.rank] = json.dumps(dump).encode() if as_json else pickle.dumps(dump, protocol=2)
    return judge_bytes(dumps)


@pytest.mark.parametrize(
    ("as_json", "number"),
    [*((True, one) for one in (HUGE, -HUGE, None, "many")), *((False, one) for one in (-1, None, "many"))],
)
@pytest.mark.parametrize("version", ["2.10", "2.3"])
@pytest.mark.parametrize("at", [-1, -2, 3, 0])
def test_one_is_told_from_the_calls_around_it(as_json: bool, version: str, at: int, number: object) -> None:
    def spoil(entries: list[dict[str, Any]]) -> None:
        entries[at]["collective_seq_id"] = number

    found = spoilt(stalled(), 1, spoil, as_json, version)
    whole = spoilt(stalled(), 1, lambda entries: None, as_json, version)
    assert named(found) == named(whole) == ("missing_rank", [2], [])
    assert len(found["findings"]) == 1 and found["downstream"] == whole["downstream"]


def problems_of(job: Job, rank: int, keep: int) -> tuple[Diagnosis, list[str]]:
    """What is said where only the first ``keep`` calls of a rank have their number."""
    dumps = job.pickles()
    dump = job.rings[rank].dump()
    for entry in dump["entries"][keep:]:
        entry["collective_seq_id"] = HUGE
    dumps[rank] = json.dumps(dump).encode()
    traces = tuple(decode(data, number, f"file_{number}") for number, data in dumps.items())
    found = diagnose(Observation(traces=traces))
    return found, [f"{problem.source}: {problem.reason}" for problem in found.problems]


def test_the_dump_is_named() -> None:
    job = stalled()
    _, told = problems_of(job, 1, len(job.rings[1].entries) - 1)
    assert len(told) == 1 and told[0].startswith("file_1: 1 call of ")


def test_a_dump_of_many_is_not_used() -> None:
    job = train(mesh(tp=2, dp=2), steps=FILLED_MAX // 5)
    found, told = problems_of(job.run(), 1, 0)
    assert len(told) == 1 and told[0].endswith("the dump is not used")
    assert found.coverage.reported == 3 and not any(f.culprit_ranks for f in found.findings)


def test_a_whole_dump_names_no_problem() -> None:
    job = stalled()
    assert problems_of(job, 1, len(job.rings[1].entries))[1] == []
