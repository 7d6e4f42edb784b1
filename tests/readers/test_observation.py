"""What ``analyze`` takes in: folders as they lie, messages for what cannot be had, an interrupt."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from clusterwatch.cli.main import main
from clusterwatch.readers.observation import observe
from tests.data.recorder import Job

Captured = pytest.CaptureFixture[str]


def job(world: int = 4, seconds: float = 0.0, calls: int = 3) -> Job:
    made = Job(world)
    made.wait(seconds)
    for _ in range(calls):
        made.all()
    return made


def put(where: Path, made: Job, ranks: range | None = None) -> None:
    where.mkdir(parents=True, exist_ok=True)
    for rank in ranks or range(made.world):
        (where / f"nccl_trace_rank_{rank}").write_bytes(made.pickled(rank))


def test_an_empty_folder_and_one_without_dumps_are_said(tmp_path: Path, capsys: Captured) -> None:
    assert main(["analyze", str(tmp_path)]) == 3
    assert "the folder is empty" in capsys.readouterr().out
    for name in ("readme.md", "train.py", "model.bin"):
        (tmp_path / name).write_text("x")
    assert main(["analyze", str(tmp_path), "--json"]) == 3
    told = json.loads(capsys.readouterr().out)
    assert told["verdict"] == "not_enough_data"
    assert [problem["reason"] for problem in told["problems"]] == ["none of the 3 files is a dump"]


def test_a_pipe_as_the_path_is_no_input(tmp_path: Path, capsys: Captured) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert main(["analyze", str(tmp_path / "pipe")]) == 66
    assert "is a pipe, socket or device" in capsys.readouterr().err


def test_a_folder_without_permission_is_no_input(
    tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: str) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "scandir", refused)
    assert main(["analyze", str(tmp_path)]) == 66
    assert "Permission denied" in capsys.readouterr().err


def test_a_hostile_path_is_printed_safely(capsys: Captured) -> None:
    assert main(["analyze", "/nowhere/\x1b[31m"]) == 66
    assert "\x1b" not in capsys.readouterr().err


def test_stale_ranks_come_into_the_coverage(tmp_path: Path, capsys: Captured) -> None:
    put(tmp_path, job(8))
    put(tmp_path, job(8, seconds=86_400), range(1, 8))
    main(["analyze", str(tmp_path), "--json"])
    told = json.loads(capsys.readouterr().out)
    assert told["coverage"] == {"expected": 8, "reported": 8, "stale": 1, "truncated": 0}
    assert [(p["source"], p["rank"]) for p in told["problems"]] == [("nccl_trace_rank_0", 0)]


def test_another_jobs_verdict_is_told_and_kept_apart(tmp_path: Path, capsys: Captured) -> None:
    put(tmp_path / "a", job(8, calls=20))
    small = job(4, seconds=0.0025, calls=20)
    for rank in (0, 1, 2):
        small.call(rank, state="scheduled")
    put(tmp_path / "b", small)
    assert main(["analyze", str(tmp_path), "--json"]) == 2
    told = json.loads(capsys.readouterr().out)
    assert told["verdict"] == "missing_rank" and told["culprit_ranks"] == [3]
    assert told["coverage"]["expected"] == 4
    assert {(p["source"], p["reason"][:27]) for p in told["problems"]} == {
        ("a", "files of another job, of 8 "),
        ("a", "that job on its own: no_fau"),
    }


@pytest.mark.parametrize("later_s", [0, 60, 600, 7_200])
@pytest.mark.parametrize("names", [("a", "b"), ("b", "a"), ("day/one", "day/two")])
def test_a_hung_job_is_judged_beside_a_newer_healthy_one(
    tmp_path: Path, capsys: Captured, later_s: float, names: tuple[str, str]
) -> None:
    hung = job(4)
    for rank in (0, 1, 3):
        hung.call(rank, state="scheduled")
    put(tmp_path / names[0], hung)
    put(tmp_path / names[1], job(4, seconds=later_s + 0.0025))
    (tmp_path / names[1] / "train.log").write_text("[rank1]: ValueError: bad\n")
    assert main(["analyze", str(tmp_path), "--json"]) == 2
    told = json.loads(capsys.readouterr().out)
    assert (told["verdict"], told["culprit_ranks"]) == ("missing_rank", [2])
    assert any("that job on its own: no_fault" in problem["reason"] for problem in told["problems"])


def test_a_restart_in_a_folder_of_its_own_wins_and_the_earlier_hang_is_told(
    tmp_path: Path, capsys: Captured
) -> None:
    hung = job(4)
    for rank in (0, 1, 3):
        hung.call(rank, state="scheduled")
    put(tmp_path / "attempt_0", hung)
    put(tmp_path / "attempt_1", job(4, seconds=600))
    assert main(["analyze", str(tmp_path), "--json"]) == 0
    problems = json.loads(capsys.readouterr().out)["problems"]
    assert any("earlier run show a hang: missing_rank. Rank 2" in problem["reason"] for problem in problems)


def test_earlier_dumps_of_the_same_processes_are_no_other_job(tmp_path: Path, capsys: Captured) -> None:
    made = job(4)
    for rank in (0, 1, 3):
        made.call(rank, state="scheduled")
    put(tmp_path / "look1", made)
    made.call(2)
    for rank in (0, 1, 3):
        made.rings[rank].entries[-1] |= {"state": "completed", "retired": True}
    made.all()
    put(tmp_path / "look2", made)
    assert main(["analyze", str(tmp_path), "--json"]) == 0
    problems = json.loads(capsys.readouterr().out)["problems"]
    assert not any("show a hang" in problem["reason"] for problem in problems)


def test_the_newest_stack_of_each_rank_is_kept(tmp_path: Path) -> None:
    made = job(2)
    for rank in range(2):
        made.rings[rank].entries[0]["frames"] = [{"name": "old", "filename": "job.py", "line": 1}]
        made.rings[rank].entries[-1]["frames"] = [
            {"name": "inner", "filename": "job.py", "line": 3},
            {"name": "outer", "filename": "job.py", "line": 9},
        ]
    put(tmp_path, made)
    stacks = observe(tmp_path).stacks
    assert [stack.threads[0].frames for stack in stacks] == [("outer (job.py:9)", "inner (job.py:3)")] * 2


STOPS_IN_THE_MIDDLE = """
import sys
from clusterwatch.cli.main import main
from clusterwatch.readers import dumps
load = dumps.load
def held(blob, what, **rest):
    open(sys.argv[1]).read()
    return load(blob, what, **rest)
dumps.load = held
sys.exit(main(["analyze", sys.argv[2]]))
"""
"""``analyze``, of which every process waits, at its first file, for a pipe that nobody writes to."""


def reader_of(pipe: Path, running: subprocess.Popen[str]) -> int:
    """The pipe's other end, open for writing, once a process reads it."""
    deadline = time.monotonic() + 60
    while running.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError):  # ENXIO: nobody reads yet
            return os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        time.sleep(0.01)
    raise AssertionError(f"nobody reads: {running.communicate()}")


def test_an_interrupt_ends_all_processes(tmp_path: Path) -> None:
    pipe, folder = tmp_path / "pipe", tmp_path / "dumps"
    os.mkfifo(pipe)
    put(folder, job(16))
    for rank in range(16):  # of a size that is shared out over processes
        with (folder / f"nccl_trace_rank_{rank}").open("ab") as file:
            file.truncate(512 * 1024)
    running = subprocess.Popen(
        [sys.executable, "-c", STOPS_IN_THE_MIDDLE, str(pipe), str(folder)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True, text=True,
    )  # fmt: skip
    writing = reader_of(pipe, running)
    try:
        copies = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
        assert bool(copies) == (len(os.sched_getaffinity(0)) > 1)
        os.killpg(running.pid, signal.SIGINT)
        out, err = running.communicate(timeout=30)
    finally:
        os.close(writing)
        if running.poll() is None:
            os.killpg(running.pid, signal.SIGKILL)
    assert running.returncode == 130 and out == "" and "Traceback" not in err
    with pytest.raises(ProcessLookupError):
        os.killpg(running.pid, 0)


def test_a_world_size_below_what_the_dumps_tell_is_said(tmp_path: Path, capsys: Captured) -> None:
    put(tmp_path, job(8))
    assert main(["analyze", str(tmp_path), "--world-size", "4", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["coverage"]["expected"] == 8
    assert [p["reason"] for p in told["problems"] if p["source"] == "--world-size"] == [
        "4 is less than the 8 ranks told here: not used"
    ]
    main(["analyze", str(tmp_path), "--world-size", "8", "--json"])
    assert json.loads(capsys.readouterr().out)["problems"] == []


def test_the_folder_is_looked_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, job())
    (tmp_path / "job.log").write_text("step 1\n")
    looked: list[str] = []
    scandir = os.scandir

    def counted(path: str) -> object:
        looked.append(path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", counted)
    observe(tmp_path)
    assert looked == [str(tmp_path)]


def test_that_there_is_no_dump_is_nobodys_problem_beside_logs(tmp_path: Path) -> None:
    (tmp_path / "no dump here.log").write_text("step 1\n")
    (tmp_path / "nccl_dump_1.tar.bz2").write_text("x")
    problems = observe(tmp_path).problems
    assert [problem.source for problem in problems] == ["nccl_dump_1.tar.bz2"]
