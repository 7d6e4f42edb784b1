"""The given slow jobs with their truths, where the folder is there: logs through the command, real traces
through the model of work."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clusterwatch.analysis.slow import ranks, work
from tests.cases.judged import analyzed

CASES = Path(__file__).parents[3] / "shared" / "cases"
WORK = ("forward-compute", "backward-compute")


def found(pattern: str) -> list[Any]:
    folders = sorted(path.parent for path in CASES.glob(pattern))
    return [pytest.param(path, id=path.name) for path in folders] or [
        pytest.param(None, marks=pytest.mark.skip("no cases beside this checkout"))
    ]


def truth_of(path: Path) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((path / "truth.json").read_text())
    return told


@pytest.mark.parametrize("path", found("straggler/*/truth.json"))
def test_collective_logs(path: Path) -> None:
    truth, told = truth_of(path), analyzed(path)
    assert sorted(told["culprit_ranks"]) in map(sorted, truth["acceptable"]), told["summary"]
    assert told["class"] == truth["class"], told["summary"]
    for part in ("node", "link", "switch"):
        assert truth[part] in (None, told[part]), told["summary"]
    if truth["class"] not in ("none", "workload", "software"):
        assert told["onset_step"] == truth["start_step"], told["summary"]


@pytest.mark.parametrize("path", found("straggler-inspector/*/truth.json"))
def test_inspector_logs(path: Path) -> None:
    told, (process,) = analyzed(path / "logs"), truth_of(path)["culprit_procs"]
    host, _, pid = process.partition("-pid")
    assert [(one["host"], one["pid"]) for one in told["culprits"]] == [(host, int(pid))], told["summary"]


@pytest.mark.parametrize("path", found("straggler-real/bytedance-*/truth.json"))
def test_real_traces(path: Path) -> None:
    """Own work of each (replica, stage) is what its forward and backward passes took."""
    with gzip.open(path / "ops.csv.gz", "rt", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["optype"] in WORK]
    steps = sorted({int(row["step"]) for row in rows})
    stages = 1 + max(int(row["stage"]) for row in rows)
    replicas = 1 + max(int(row["dp_rank"]) for row in rows)
    work_s = np.zeros((len(steps), replicas * stages))
    for row in rows:
        place = int(row["dp_rank"]) * stages + int(row["stage"])
        work_s[steps.index(int(row["step"])), place] += float(row["dur_us"]) / 1e6
    stage, replica = np.arange(replicas * stages) % stages, np.arange(replicas * stages) // stages
    usual = np.stack([np.median(work_s[:, stage == one]) for one in stage])
    model = work.fit(work_s, np.broadcast_to(usual, work_s.shape), stage, replica)
    slow = np.flatnonzero(ranks.of_residual(model.residual).is_slow).tolist()
    named = [{"dp_rank": one // stages, "stage": one % stages} for one in slow]
    assert named == truth_of(path)["culprit_workers"]
