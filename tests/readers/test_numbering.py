"""Files that are named by the number of a process on its host, or by a wrong number."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from clusterwatch.cli.main import main
from clusterwatch.readers import folder
from tests.cases.judged import analyzed, named
from tests.data.blocking_job import World
from tests.data.recorder import Job, parallel


def put(path: Path, job: Job, per_host: int, *, without: tuple[int, ...] = (), hosts: str = "ab") -> None:
    """Dumps named by local rank, a folder per host; the names of the hosts do not follow the ranks."""
    for rank in range(job.world):
        if rank not in without:
            host = path / f"host-{hosts[rank // per_host]}"
            host.mkdir(parents=True, exist_ok=True)
            (host / f"nccl_trace_rank_{rank % per_host}").write_bytes(job.pickled(rank))


def stuck(job: Job, missing: int, group: str = "0") -> Job:
    """All members but one wait in a call of ``group``."""
    for _ in range(4):
        job.all()
    job.all([r for r in job.groups[group][1] if r != missing], group, state="scheduled")
    return job


@pytest.mark.parametrize("hosts", ["ab", "ba"])
def test_crossing_groups_tell_the_ranks(tmp_path: Path, hosts: str) -> None:
    put(tmp_path, stuck(parallel("nccl"), 5), 4, hosts=hosts)
    found = analyzed(tmp_path)
    assert named(found) == ("missing_rank", [5], [])
    assert found["coverage"]["reported"] == 8
    assert any("told by the groups" in problem["reason"] for problem in found["problems"])


@pytest.mark.parametrize("hosts", ["ab", "ba"])
def test_groups_inside_each_host_tell_its_place(tmp_path: Path, hosts: str) -> None:
    job = Job(8)
    job.group("1", "tp", (0, 1, 2, 3))
    job.group("2", "tp", (4, 5, 6, 7))
    put(tmp_path, stuck(job, 6), 4, hosts=hosts)
    assert named(analyzed(tmp_path)) == ("missing_rank", [6], [])


def test_sends_tell_the_ranks(tmp_path: Path) -> None:
    job = Job(4)
    for rank in range(4):
        job.send(rank, (rank + 1) % 4)
        job.recv(rank, (rank - 1) % 4)
    put(tmp_path, stuck(job, 3), 2, hosts="ba")
    assert named(analyzed(tmp_path)) == ("missing_rank", [3], [])


def test_the_one_host_that_is_left_takes_the_place_that_is_left(tmp_path: Path) -> None:
    job = Job(6)
    job.group("1", "tp", (0, 1))
    job.group("2", "tp", (4, 5))
    put(tmp_path, stuck(job, 2), 2, hosts="cab")
    assert named(analyzed(tmp_path)) == ("missing_rank", [2], [])


def test_without_telling_groups_the_file_is_named_and_no_rank(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(tmp_path, stuck(Job(8), 6), 4)
    found = analyzed(tmp_path)
    assert named(found) == ("missing_rank", [], []) and found["exit_code"] == 2
    assert [c["host"] for c in found["culprits"]] == ["host-b/nccl_trace_rank_2"]
    assert found["joined_ranks"] == found["missing_ranks"] == []
    assert found["group"]["ranks"] == list(range(8)) and found["coverage"]["expected"] == 8
    assert any("no rank can be named" in problem["reason"] for problem in found["problems"])
    main(["analyze", str(tmp_path), "--stacks", "--html", str(tmp_path / "page.html")])
    assert "rank 2" not in capsys.readouterr().out.lower()
    page = (tmp_path / "page.html").read_text()
    assert "rank 6" not in page.lower() and "No dump holds a call" not in page


def test_a_gloo_job_names_the_file(tmp_path: Path) -> None:
    put(tmp_path, World("data_loader", 5).run(), 4)
    found = analyzed(tmp_path)
    assert named(found) == ("missing_rank", [], [])
    assert [c["host"] for c in found["culprits"]] == ["host-b/nccl_trace_rank_1"]
    assert found["group"]["ranks"] == []


def test_a_healthy_job_is_healthy_under_any_names(tmp_path: Path) -> None:
    job = Job(8)
    job.all()
    put(tmp_path, job, 4)
    assert (analyzed(tmp_path)["verdict"], analyzed(tmp_path)["exit_code"]) == ("no_fault", 0)


def test_a_process_without_a_dump_is_said_and_no_number_made_up(tmp_path: Path) -> None:
    put(tmp_path, stuck(Job(8), 6), 4, without=(6,))
    found = analyzed(tmp_path)
    assert found["culprit_ranks"] == found["suspect_ranks"] == []
    assert "a process that left no dump" in found["summary"]


def test_groups_that_tell_in_part_only_leave_the_job_without_a_name(tmp_path: Path) -> None:
    job = Job(8)
    job.group("1", "tp", (0, 1, 2, 3))
    job.group("2", "left", (4, 5, 6, 7))
    put(tmp_path, stuck(job, 6), 2, hosts="dbca")
    found = analyzed(tmp_path)
    assert (found["verdict"], found["exit_code"]) == ("not_enough_data", 3)
    assert found["culprit_ranks"] == found["suspect_ranks"] == []


def test_logs_that_speak_of_ranks_are_not_mixed_with_numbers_that_are_none(tmp_path: Path) -> None:
    put(tmp_path, stuck(Job(8), 6), 4)
    (tmp_path / "job.log").write_text(
        '[rank1]: Traceback (most recent call last):\n[rank1]:   File "/app/t.py", line 3, in f\n'
        "[rank1]: ValueError: x\n"
    )
    assert named(analyzed(tmp_path)) == ("rank_failed", [1], [])


@pytest.mark.parametrize("shift", [1, 4])
def test_names_that_the_groups_contradict_give_way(tmp_path: Path, shift: int) -> None:
    job = stuck(parallel("nccl"), 5)
    for rank in range(8):
        (tmp_path / f"nccl_trace_rank_{rank + shift}").write_bytes(job.pickled(rank))
    assert named(analyzed(tmp_path)) == ("missing_rank", [5], [])


def test_global_ranks_in_folders_of_hosts_stay_as_they_are(tmp_path: Path) -> None:
    job = stuck(Job(8), 6)
    for rank in range(8):
        host = tmp_path / f"host-{'ba'[rank // 4]}"
        host.mkdir(exist_ok=True)
        (host / f"nccl_trace_rank_{rank}").write_bytes(job.pickled(rank))
    found = folder.read(tmp_path)
    assert len(found.windows) == 8 and not found.problems and not found.unranked


def test_lists_of_members_that_lie_do_not_unname_a_job(tmp_path: Path) -> None:
    job = stuck(Job(4), 2)
    for rank in range(4):
        dump = job.dump(rank)
        dump["pg_config"]["1"] = {"name": "1", "desc": "odd", "ranks": "[0, 1]"}
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(dump, protocol=2))
    assert [window.rank for window in folder.read(tmp_path).windows] == [0, 1, 2, 3]


def test_the_folder_is_the_process_of_a_host(tmp_path: Path) -> None:
    job = stuck(parallel("nccl"), 5)
    for rank in range(8):
        path = tmp_path / f"node{7 - rank // 4}" / str(rank % 4)
        path.mkdir(parents=True)
        (path / "trace").write_bytes(job.pickled(rank))
    assert named(analyzed(tmp_path)) == ("missing_rank", [5], [])
