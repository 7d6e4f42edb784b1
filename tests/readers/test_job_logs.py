"""Which files are logs, what their names tell, and how they are read."""

from __future__ import annotations

import gzip
import os
import tarfile
import tracemalloc
import zipfile
from pathlib import Path
from typing import Literal

import pytest

from clusterwatch.readers import job_logs
from collectors.formats.job_log_prefix import Label

TRACE = b'Traceback (most recent call last):\n  File "/app/train.py", line 12, in f\nValueError: x\n'


@pytest.mark.parametrize(
    "name",
    ["job.log", "rank3.out", "slurm-4711.out", "slurm-4711_3.err", "attempt_0/3/stderr.log", "stdout",
    "a/stderr",
     "train.log.1", "job.log.txt", "dmesg", "messages", "node1.tar.gz:logs/rank3.log", "log_rank3.txt"],
)  # fmt: skip
def test_names_of_logs(name: str) -> None:
    assert job_logs.is_log_name(name)


@pytest.mark.parametrize(
    "name",
    ["nccl_trace_rank_3", "README.md", "model.safetensors", "train.py", "dialog", "catalog.json", "blog.txt"],
)
def test_names_of_other_files(name: str) -> None:
    assert not job_logs.is_log_name(name)


@pytest.mark.parametrize(
    ("name", "label", "attempt"),
    [
        ("logs/run_x/attempt_2/3/stderr.log", Label(local_rank=3), 2),
        ("attempt_0/11/stdout.log", Label(local_rank=11), 0),
        ("slurm-4711_3.out", Label(task=3), None),
        ("slurm-4711.out", Label(), None),
        ("rank3.log", Label(rank=3), None),
        ("out/train_rank-003.log", Label(rank=3), None),
        ("local_rank_3.log", Label(local_rank=3), None),
        ("task_5.err", Label(task=5), None),
        ("node012.log", Label(), None),
        ("franka3.log", Label(), None),
        ("train-20261202.log", Label(), None),
    ],
)
def test_what_a_name_tells(name: str, label: Label, attempt: int | None) -> None:
    found = job_logs.origin(name)
    assert (found.who, found.attempt) == (label, attempt)


def test_a_folder_gives_its_logs_only(tmp_path: Path) -> None:
    (tmp_path / "n1").mkdir()
    (tmp_path / "n1" / "rank3.log").write_bytes(TRACE)
    (tmp_path / "rank4.log.gz").write_bytes(gzip.compress(TRACE))
    (tmp_path / "notes.md").write_bytes(TRACE)
    (tmp_path / "core.log").write_bytes(b"\x80\x04" + b"\x00\x01" * 500)
    (tmp_path / "loop.log").symlink_to(tmp_path / "n1" / "rank3.log")
    found = job_logs.read(tmp_path)
    assert [log.source for log in found.logs] == ["n1/rank3.log", "rank4.log"]
    assert all(log.events[0].kind == "traceback" for log in found.logs)
    assert not found.problems


def test_one_file_is_read_whatever_its_name(tmp_path: Path) -> None:
    (tmp_path / "what-happened").write_bytes(TRACE)
    (log,) = job_logs.read(tmp_path / "what-happened").logs
    assert len(log.events) == 1


def test_logs_inside_an_archive(tmp_path: Path) -> None:
    (tmp_path / "rank3.log").write_bytes(TRACE)
    with tarfile.open(tmp_path / "all.tgz", "w:gz") as archive:
        archive.add(tmp_path / "rank3.log", "logs/rank3.log")
    (tmp_path / "rank3.log").unlink()
    (log,) = job_logs.read(tmp_path).logs
    assert log.who == Label(rank=3) and len(log.events) == 1


def test_a_damaged_log_gives_what_stands_before_the_damage(tmp_path: Path) -> None:
    packed = gzip.compress(TRACE + b"step\n" * 3_000_000, 1)
    (tmp_path / "rank3.log.gz").write_bytes(packed[: len(packed) // 2])
    found = job_logs.read(tmp_path)
    assert found.logs[0].events[0].kind == "traceback"
    assert found.problems[0].source == "rank3.log"


@pytest.mark.parametrize("packing", ["plain", "tar", "tgz", "zip", "zip of gz", "tar of gz"])
def test_a_log_is_never_held_as_a_whole(tmp_path: Path, packing: str) -> None:
    text = b"step\n" * 6_000_000 + TRACE
    name = "rank3.log.gz" if "of gz" in packing else "rank3.log"
    source = tmp_path / name
    source.write_bytes(gzip.compress(text, 1) if "of gz" in packing else text)
    if packing.startswith("zip"):
        with zipfile.ZipFile(tmp_path / "all.zip", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as zipped:
            zipped.write(source, f"logs/{name}")
    elif packing != "plain":
        mode: Literal["w", "w:gz"] = "w:gz" if packing == "tgz" else "w"
        with tarfile.open(tmp_path / ("all.tgz" if packing == "tgz" else "all.tar"), mode) as archive:
            archive.add(source, f"logs/{name}")
    if packing != "plain":
        source.unlink()
    tracemalloc.start()
    (log,) = job_logs.read(tmp_path, processes=1).logs
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert log.lines == 6_000_003 and log.events[0].line == 6_000_003 and log.who == Label(rank=3)
    assert most < len(text) / 2


def test_logs_are_read_alike_by_one_process_and_by_several(tmp_path: Path) -> None:
    for rank in range(12):
        (tmp_path / f"rank{rank}.log").write_bytes(b"step\n" * 1000 * rank + TRACE)
    assert job_logs.read(tmp_path, processes=3) == job_logs.read(tmp_path, processes=1)


def test_a_tar_cut_in_the_middle_of_a_log_gives_what_stands_before_the_cut(tmp_path: Path) -> None:
    (tmp_path / "rank3.log").write_bytes(TRACE + b"step\n" * 3_000_000)
    with tarfile.open(tmp_path / "all.tar", "w") as archive:
        archive.add(tmp_path / "rank3.log", "rank3.log")
    (tmp_path / "rank3.log").unlink()
    os.truncate(tmp_path / "all.tar", 5_000_000)
    found = job_logs.read(tmp_path)
    assert found.logs[0].events[0].kind == "traceback"
    assert "ends before it" in found.problems[0].reason


def test_a_log_is_streamed(tmp_path: Path) -> None:
    (tmp_path / "rank3.log").write_bytes(b"step\n" * 400_000 + TRACE)
    (log,) = job_logs.read(tmp_path).logs
    assert log.lines == 400_003 and log.events[0].line == 400_003


def test_a_log_beyond_the_limit_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rank3.log").write_bytes(b"step\n" * 1_000_000)
    monkeypatch.setattr(job_logs, "LOG_MAX_BYTES", 2_000_000)
    assert "more than 2000000" in job_logs.read(tmp_path).problems[0].reason
