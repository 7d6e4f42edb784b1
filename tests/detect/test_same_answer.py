"""One engine: rings that come over the wire and the same rings in a folder are judged alike."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from clusterwatch.cli.main import main
from tests.data import recorder
from tests.detect.answers import answer
from tests.detect.fake_job import FakeJob

SAME = (
    "verdict",
    "class",
    "cause",
    "culprit_ranks",
    "suspect_ranks",
    "seq",
    "op",
    "joined_ranks",
    "missing_ranks",
)

FAULTS: dict[str, dict[str, Any] | None] = {
    "a rank that never joins": None,
    "another operation": {"op": "all_gather", "out": (8192,)},
    "another size": {"size": (77,)},
    "another type": {"dtype": "Double"},
}


def rings(odd: int, backend: str, what: dict[str, Any] | None) -> recorder.Job:
    """Eight ranks after five finished calls; all but ``odd`` wait in the sixth, ``odd`` did ``what``."""
    job = recorder.Job(8, backend)
    for _ in range(5):
        job.all()
    job.wait(8.0)
    for rank in range(8):
        if rank != odd:
            job.call(rank, state="scheduled")
        elif what is not None:
            job.call(rank, state="scheduled", **what)
    return job


def offline(ran: recorder.Job, folder: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    for rank in range(8):
        (folder / f"nccl_trace_rank_{rank}").write_bytes(ran.pickled(rank))
    main(["analyze", str(folder), "--json"])
    answered: dict[str, Any] = json.loads(capsys.readouterr().out)
    return answered


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
@pytest.mark.parametrize("fault", FAULTS)
def test_the_live_system_and_analyze_say_the_same(
    fake_job: FakeJob, tmp_path: Path, capsys: pytest.CaptureFixture[str], fault: str, backend: str
) -> None:
    ran = rings(5, backend, FAULTS[fault])
    fake_job.wait_for(*([5] if FAULTS[fault] is None else []))
    fake_job.seconds_until("suspected", 6)
    answer(fake_job, ran)
    fake_job.tick()
    live, told = fake_job.incident().diagnosis, offline(ran, tmp_path, capsys)
    assert {name: live[name] for name in SAME} == {name: told[name] for name in SAME}
    assert (live["group"]["name"], live["group"]["ranks"]) == (told["group"]["name"], told["group"]["ranks"])
    assert told["culprit_ranks"] == [5]
