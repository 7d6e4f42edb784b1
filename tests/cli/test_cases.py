"""The given cases with their answers, where the folder is there: real torch dumps, real NCCL dumps."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from clusterwatch.analysis import Observation, diagnose
from clusterwatch.readers import folder

CASES = Path(__file__).parents[3] / "shared" / "cases"


def found_folders() -> list[Any]:
    dumps = sorted(path for path in CASES.glob("fr/*") if path.is_dir())
    dumps += sorted(CASES.glob("torch-gloo/*/pickle")) + sorted(CASES.glob("torch-gloo/*/json"))
    return [pytest.param(path, id=str(path.relative_to(CASES))) for path in dumps] or [
        pytest.param(None, marks=pytest.mark.skip("no cases beside this checkout"))
    ]


def answer(path: Path) -> dict[str, Any]:
    found = folder.read(path)
    return diagnose(Observation(windows=found.windows, problems=found.problems)).to_dict()


@pytest.mark.parametrize("path", found_folders())
def test_gives_the_expected_answer(path: Path) -> None:
    file = next(p for p in (path / "expected.json", path.parent / "expected.json") if p.exists())
    expected = json.loads(file.read_text())
    given = answer(path)
    assert given["verdict"] == expected["verdict"]
    assert given["culprit_ranks"] == expected["culprit_ranks"]
    assert given["suspect_ranks"] == expected.get("suspect_ranks", [])
    group = given["group"] or {}
    for key, value in (("pg", group.get("name")), ("group_desc", group.get("desc"))):
        assert expected.get(key, value) == value
    for key in ("seq", "op"):
        assert expected.get(key, given[key]) == given[key]


@pytest.mark.parametrize("name", ["gpu_error_1st", "lock_gil_1st"])
def test_names_both_faulty_ranks_of_the_real_nccl_jobs(name: str) -> None:
    path = CASES / "nccl-real" / name
    if not path.exists():
        pytest.skip("no cases beside this checkout")
    truth = re.search(r"Fault ranks: \[(.*)\]", (path / "fault_injection.log").read_text())
    assert truth is not None
    given = answer(path)
    assert given["culprit_ranks"] == [int(rank) for rank in truth[1].split(",")]
    assert len(given["findings"]) == 2
