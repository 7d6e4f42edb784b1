"""``clusterwatch analyze`` on folders that hold job logs, beside dumps or alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from clusterwatch.cli import main
from tests.analysis.log_texts import timeout, traceback
from tests.cases.jobs import Call, Halt, Job
from tests.cases.judged import analyzed, named


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Dumps of a job whose rank 2 lacks the call that the others wait in."""
    job = Job(4)
    for _ in range(5):
        job.every(Call(job.default))
    job.programs[2].append(Halt())
    job.every(Call(job.default))
    return job.run().write(tmp_path / "job")


def test_a_timeout_in_the_open_call_proves_the_stall(folder: Path) -> None:
    alone = analyzed(folder)
    assert named(alone) == ("missing_rank", [2], []) and alone["confidence"] <= 0.5
    (folder / "job.log").write_text(timeout(0, seq=alone["seq"]))
    proven = analyzed(folder)
    assert named(proven) == ("missing_rank", [2], []) and proven["confidence"] > 0.7
    assert any("watchdog gave up" in line for line in proven["why"])


def test_a_timeout_in_another_call_proves_nothing(folder: Path) -> None:
    (folder / "job.log").write_text(timeout(0, seq=analyzed(folder)["seq"] + 50))
    assert analyzed(folder)["confidence"] <= 0.5


def test_the_missing_ranks_exception_is_the_cause_in_one_finding(folder: Path) -> None:
    (folder / "rank2.log").write_text(traceback("ValueError: shard 17 is empty"))
    found = analyzed(folder)
    assert named(found) == ("rank_failed", [2], []) and len(found["findings"]) == 1
    assert (found["cause"], found["op"], found["joined_ranks"]) == ("ValueError", "all_reduce", [0, 1, 3])
    assert found["exit_code"] == 2


def test_logs_alone(tmp_path: Path) -> None:
    (tmp_path / "rank2.log").write_text(traceback("torch.OutOfMemoryError: CUDA out of memory. Tried 2 GiB"))
    (tmp_path / "rank0.log").write_text("step 1\n")
    found = analyzed(tmp_path)
    assert named(found) == ("out_of_memory", [2], []) and found["problems"] == []
    assert found["coverage"]["reported"] == 2


def test_the_size_of_a_job_that_no_log_tells_is_not_made_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "job.log").write_text(
        "slurmstepd: error: *** JOB 7 ON node1 CANCELLED AT 2026-12-01T10:00:01 DUE TO TIME LIMIT ***\n"
    )
    assert main.main(["analyze", str(tmp_path)]) == 2
    printed = capsys.readouterr().out
    assert "0 of 0" not in printed and "0 ranks reported; the size of the job is not known" in printed


def test_torchelastics_error_files_tell_who_was_first(tmp_path: Path) -> None:
    for local, (error, second) in enumerate(
        [("RuntimeError: Connection closed by peer", 4), ("ValueError: shard 7 is empty", 2)]
    ):
        path = tmp_path / "run_x" / "attempt_0" / str(local)
        path.mkdir(parents=True)
        extra = {"py_callstack": traceback(error), "timestamp": str(1_790_000_000 + second)}
        (path / "error.json").write_text(json.dumps({"message": {"message": error, "extraInfo": extra}}))
        (path / "stderr.log").write_text("step 1\n")
    found = analyzed(tmp_path)
    assert named(found) == ("rank_failed", [1], []) and found["cause"] == "ValueError"
    assert found["problems"] == []


def test_an_error_file_of_another_program_is_nobodys_problem(tmp_path: Path) -> None:
    (tmp_path / "rank3").mkdir()
    (tmp_path / "rank3" / "error.json").write_text('{"errors": []}')
    (tmp_path / "rank0.log").write_text("step 1\n")
    assert analyzed(tmp_path)["problems"] == []


def test_healthy_logs_alone_are_no_proof(tmp_path: Path) -> None:
    (tmp_path / "rank0.log").write_text("step 1\n")
    found = analyzed(tmp_path)
    assert (found["verdict"], found["exit_code"]) == ("not_enough_data", 3)


def test_a_log_of_a_rank_that_the_complete_dumps_do_not_have_is_of_another_job(tmp_path: Path) -> None:
    job = Job(4)
    for _ in range(5):
        job.every(Call(job.default))
    whole = job.run().write(tmp_path / "job")
    log = whole / "other.log"
    log.write_text(traceback("ValueError: bad", "[rank37]: "))
    found = analyzed(whole)
    assert found["verdict"] == "no_fault"
    assert any("another job" in problem["reason"] for problem in found["problems"])
    log.write_text(traceback("ValueError: bad", "[rank3]: "))
    assert named(analyzed(whole)) == ("rank_failed", [3], [])
    log.write_text(traceback("ValueError: bad", "[rank37]: "))
    next(file for file in whole.iterdir() if file.name.endswith("_3")).unlink()
    assert 37 in named(analyzed(whole))[1]


def test_names_of_empty_files_tell_how_many_ranks_there_are(tmp_path: Path) -> None:
    job = Job(4)
    for _ in range(5):
        job.every(Call(job.default))
    whole = job.run().write(tmp_path / "job")
    for file in whole.iterdir():
        if not file.name.endswith("_1"):
            file.write_bytes(b"")
    coverage = analyzed(whole)["coverage"]
    assert (coverage["expected"], coverage["reported"]) == (4, 1)
