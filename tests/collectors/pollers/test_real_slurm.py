"""A real Slurm: what its squeue says of a job that runs and of one that waits, and what its processes say."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from collectors.pollers.device import DeviceReading
from collectors.pollers.slurm_cluster import from_config
from tests.collectors.fakes import REPO
from tests.collectors.pollers.real_slurm import Cluster, cluster, until


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


def test_a_drained_node_and_a_failed_job_are_told_by_the_cluster_as_a_whole(
    slurm: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in slurm.environment.items():
        monkeypatch.setenv(name, text)
    poller = from_config({"name": "test"}, tmp_path)

    def look() -> DeviceReading:
        (told,) = poller.poll(0.0)
        return told

    first = look()
    assert first.state == "ok" and not first.reading.events
    assert {one.metric: one.value for one in first.reading.samples}["nodes_idle_count"] == 1
    script = tmp_path / "fails.sh"
    script.write_text("#!/bin/sh\nexit 3\n")
    job = slurm.run("sbatch", "--parsable", "-J", "tune", "-o", "/dev/null", str(script)).strip()
    ended = ("squeue", "-h", "-t", "all", "-j", job, "-o", "%T")
    assert until(lambda: slurm.run(*ended).strip() == "FAILED")
    slurm.run("scontrol", "update", f"nodename={slurm.host}", "state=drain", "reason=bad gpu 3")
    told = {event.kind: event for event in look().reading.events}
    assert told["job_ended"].entity == f"job/{job}"
    assert told["job_ended"].message == "tune ended FAILED with exit code 3 on 1 node"
    drained = dict(told["node_drained"].attributes)
    assert isinstance(drained.pop("since_s"), int)
    assert drained.pop("by")
    assert drained == {"node": slurm.host, "state": "drained", "reason": "bad gpu 3"}
    assert [event.kind for event in look().reading.events] == ["node_drained"]
