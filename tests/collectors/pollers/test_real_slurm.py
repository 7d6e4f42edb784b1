"""A real Slurm: what its squeue says of a job that runs and of one that waits, and what its processes say."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.collectors.fakes import REPO
from tests.collectors.pollers.real_slurm import Cluster, cluster


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[Cluster]:
    with cluster(tmp_path) as running:
        yield running


def events(slurm: Cluster) -> dict[tuple[str, str], Any]:
    """(entity, kind) -> event, of this machine as it is."""
    done = subprocess.run(
        [sys.executable, "-m", "collectors", "once", "--stdout", "--sources", "slurm,scheduler_env"],
        cwd=REPO, env=slurm.environment, capture_output=True, timeout=60, check=True,
    )  # fmt: skip
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return {(line["entity"], line["kind"]): line for line in lines}


def test_a_running_job_is_told_by_queue_and_processes_and_a_waiting_one_is_not(
    slurm: Cluster, tmp_path: Path
) -> None:
    runs = slurm.submit(tmp_path, "tune-8b", "-t", "12:00:00")
    slurm.wait_for(runs, "RUNNING")
    waits = slurm.submit(tmp_path, "later")
    slurm.wait_for(waits, "PENDING")
    found = events(slurm)
    job = found[f"job/{runs}", "job"]
    assert job["message"] == "tune-8b running on 1 node"
    assert job["attributes"] == {
        "nodes": 1, "gpus": 0, "restarts": 0, "state": "RUNNING", "node_index": 0, "time_limit_s": 43_200,
        "switch": None,
    }  # fmt: skip
    assert found[f"job/{runs}/rank/0", "rank_map"]["attributes"]["local_rank"] == 0
    assert (f"job/{waits}", "job") not in found


def test_a_controller_that_is_gone_is_told(slurm: Cluster, tmp_path: Path) -> None:
    gone = dict(slurm.environment)
    text = (tmp_path / "slurm.conf").read_text()
    port = next(line for line in text.splitlines() if line.startswith("SlurmctldPort="))
    (tmp_path / "gone.conf").write_text(text.replace(port, "SlurmctldPort=1") + "MessageTimeout=2\n")
    gone["SLURM_CONF"] = str(tmp_path / "gone.conf")
    found = events(Cluster(gone, slurm.host))
    assert "controller" in found["host", "scheduler_error"]["message"]
