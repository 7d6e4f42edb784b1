"""A job restarted with fewer ranks on other hosts, its old dumps beside the new ones in one folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cases.jobs import Call, Halt, Job, Sync
from tests.cases.judged import analyzed, named

OLD_WORLD, NEW_WORLD = 8, 6
HOSTED = "{host}_rank_{rank}"
OF_THE_RUN = "{run}/{host}/trace_rank_{rank}"
OLD_HOSTS, NEW_HOSTS = ("gpu-11", "gpu-12"), ("gpu-12", "gpu-14")
"""Four ranks on each: the first host is lost, so a rank number moves to another host."""
_TIMES = ("time_created_ns", "time_discovered_started_ns", "time_discovered_completed_ns")


def run(world: int, halted: int | None, after_s: int) -> Job:
    job = Job(world)
    job.repeat(5, Call(job.default), Sync())
    if halted is not None:
        job.programs[halted].append(Halt())
        job.every(Call(job.default))
    job.run()
    for rank in range(world):
        for entry in job.rings[rank].entries:
            for name in _TIMES:
                entry[name] = entry[name] and entry[name] + (after_s * 1000 + 7 * rank) * 1_000_000
    return job


def put(folder: Path, job: Job, name: str, label: str, hosts: tuple[str, str], without: int = -1) -> None:
    for rank, data in job.pickles().items():
        if rank != without:
            path = folder / name.format(run=label, host=hosts[rank // 4], rank=rank)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)


def restarted(folder: Path, name: str, halted: int | None, after_s: int, without: int = -1) -> Path:
    """The old run lacked rank 1; the new one lacks ``halted``, or nobody; ``without`` left no new file."""
    put(folder, run(OLD_WORLD, 1, 0), name, "attempt0", OLD_HOSTS)
    put(folder, run(NEW_WORLD, halted, after_s), name, "attempt1", NEW_HOSTS, without)
    return folder


names = pytest.mark.parametrize("name", [HOSTED, OF_THE_RUN, "{run}/trace_rank_{rank}"])
gaps = pytest.mark.parametrize("after_s", [120, 86_400])


@names
@gaps
def test_a_rank_that_the_new_run_lacks_is_named(tmp_path: Path, name: str, after_s: int) -> None:
    found = analyzed(restarted(tmp_path, name, 4, after_s))
    assert named(found) == ("missing_rank", [4], [])
    assert found["coverage"]["expected"] == NEW_WORLD
    assert sum("stale" in problem["reason"] for problem in found["problems"]) == OLD_WORLD


@names
@gaps
def test_a_healthy_new_run_names_nobody(tmp_path: Path, name: str, after_s: int) -> None:
    found = analyzed(restarted(tmp_path, name, None, after_s))
    assert found["culprit_ranks"] == found["suspect_ranks"] == []
    assert found["exit_code"] == 0
    assert found["coverage"]["expected"] == NEW_WORLD


@names
@gaps
def test_an_old_file_does_not_stand_in_for_a_rank_of_the_new_run(
    tmp_path: Path, name: str, after_s: int
) -> None:
    found = analyzed(restarted(tmp_path, name, 4, after_s, without=4))
    assert set(found["culprit_ranks"]) | set(found["suspect_ranks"]) == {4}
    assert found["coverage"]["expected"] == NEW_WORLD
