"""A verdict without ranks: files in their place, and no number left anywhere."""

from __future__ import annotations

import json
import re

from clusterwatch.analysis import Observation, diagnose
from clusterwatch.analysis.window import reduce
from collectors.formats.flight_recorder import decode
from tests.data.recorder import Job

SOURCES = {rank: f"host-{'xyz'[rank // 2]}/trace_{'ab'[rank % 2]}" for rank in range(6)}


def judged(job: Job, without: int | None = None) -> dict[str, object]:
    windows = [reduce(decode(job.pickled(r), r, SOURCES[r])) for r in range(6) if r != without]
    return diagnose(Observation(windows=tuple(windows), unranked=SOURCES)).to_dict()


def stuck(missing: tuple[int, ...] = (4,)) -> Job:
    job = Job(6)
    job.all()
    job.all([rank for rank in range(6) if rank not in missing], state="scheduled")
    return job


def test_the_file_of_the_missing_process_is_named() -> None:
    found = judged(stuck())
    assert found["verdict"] == "missing_rank" and found["culprit_ranks"] == []
    assert found["culprits"] == [
        {"rank": None, "host": "host-z/trace_a", "gpu": None, "gpu_uuid": None, "pid": None}
    ]
    assert "host-z/trace_a" in str(found["summary"])


def test_two_missing_processes_are_two_culprits_in_json() -> None:
    culprits = judged(stuck((1, 4)))["culprits"]
    assert isinstance(culprits, list) and [c["host"] for c in culprits] == [
        "host-x/trace_b",
        "host-z/trace_a",
    ]


def test_no_made_up_number_is_left() -> None:
    found = judged(stuck())
    texts = json.dumps({key: found[key] for key in ("summary", "why", "stacks", "node")})
    assert not re.search(r"ranks? \d", texts)
    assert found["joined_ranks"] == found["missing_ranks"] == []


def test_a_healthy_job_keeps_its_words() -> None:
    job = Job(6)
    job.all()
    assert (
        judged(job)["summary"]
        == diagnose(
            Observation(windows=tuple(reduce(decode(job.pickled(r), r, "")) for r in range(6)))
        ).worst.summary
    )
