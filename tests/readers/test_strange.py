"""Folders as strangers have them: odd names, misnamed archives, other encodings, things that are no files."""

from __future__ import annotations

import gzip
import io
import json
import os
import socket
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from clusterwatch.cli.main import main
from clusterwatch.readers.texts import as_utf8, chunks_as_utf8
from tests.analysis.log_texts import traceback
from tests.cases.judged import analyzed, named
from tests.data.recorder import Job

FOUND: tuple[str, list[int], list[int]] = ("missing_rank", [2], [])


@pytest.fixture(scope="module")
def job() -> Job:
    made = Job(4)
    for _ in range(4):
        made.all()
    made.all([0, 1, 3], state="scheduled")
    return made


def put(path: Path, job: Job, name: str = "nccl_trace_rank_{}") -> None:
    for rank in range(4):
        (path / name.format(rank)).write_bytes(job.pickled(rank))


def put_json(path: Path, job: Job, change: Callable[[bytes], bytes]) -> None:
    for rank in range(4):
        (path / f"nccl_trace_rank_{rank}.json").write_bytes(change(job.json(rank)))


def tarred(job: Job) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for rank in range(4):
            info = tarfile.TarInfo(f"nccl_trace_rank_{rank}")
            info.size = len(job.pickled(rank))
            archive.addfile(info, io.BytesIO(job.pickled(rank)))
    return made.getvalue()


@pytest.mark.parametrize(
    "name",
    ["my trace rank {} (copy).pkl", "дамп_trace_{}", "a\nb_rank_{}", "-rf_rank_{}", "x" * 200 + "_rank_{}",
     "tr\udcffce_rank_{}", "$(reboot)_rank_{}"],
)  # fmt: skip
def test_any_name_is_only_a_name(tmp_path: Path, job: Job, name: str) -> None:
    put(tmp_path, job, name)
    assert named(analyzed(tmp_path)) == FOUND


def test_what_is_no_file_is_named_and_left_alone(tmp_path: Path, job: Job) -> None:
    put(tmp_path, job)
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "self").symlink_to("self")
    os.mkfifo(tmp_path / "job.log")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "nccl_trace_rank_4"))
    listener.close()
    found = analyzed(tmp_path)
    assert named(found) == FOUND
    assert [p["source"] for p in found["problems"]] == ["job.log", "loop", "nccl_trace_rank_4", "self"]


@pytest.mark.parametrize(
    ("name", "pack"),
    [
        ("dumps.tar", gzip.compress),
        ("dumps.tar", zstandard.compress),
        ("dumps.tar.gz", bytes),
        ("dumps.tgz", zstandard.compress),
        ("dumps.zst", zstandard.compress),
        ("dumps.gz", gzip.compress),
    ],
)
def test_an_archive_is_what_its_bytes_say(
    tmp_path: Path, job: Job, name: str, pack: Callable[[bytes], bytes]
) -> None:
    (tmp_path / name).write_bytes(pack(tarred(job)))
    assert named(analyzed(tmp_path)) == FOUND


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_an_archive_given_by_hand_needs_no_ending(
    tmp_path: Path, job: Job, pack: Callable[[bytes], bytes]
) -> None:
    (tmp_path / "download").write_bytes(pack(tarred(job)))
    assert named(analyzed(tmp_path / "download")) == FOUND
    with zipfile.ZipFile(tmp_path / "other", "w") as made:
        for rank in range(4):
            made.writestr(f"nccl_trace_rank_{rank}", job.pickled(rank))
    assert named(analyzed(tmp_path / "other")) == FOUND


def test_an_archive_inside_an_archive_is_named(tmp_path: Path, job: Job) -> None:
    (tmp_path / "inner.tar").write_bytes(tarred(job))
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        archive.add(tmp_path / "inner.tar", "inner.tar")
    (tmp_path / "inner.tar").unlink()
    (tmp_path / "outer.tar.zst").write_bytes(zstandard.compress(made.getvalue()))
    found = analyzed(tmp_path)
    assert found["exit_code"] == 3
    assert any("archive inside an archive" in p["reason"] for p in found["problems"])


def test_a_locked_zip_is_said_to_be_locked(tmp_path: Path, job: Job) -> None:
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as made:
        made.writestr("nccl_trace_rank_0", job.pickled(0))
    data = bytearray((tmp_path / "x.zip").read_bytes())
    data[6] |= 1
    data[data.find(b"PK\x01\x02") + 8] |= 1
    (tmp_path / "x.zip").write_bytes(data)
    assert [p["reason"] for p in analyzed(tmp_path)["problems"]] == ["is locked by a password"]


@pytest.mark.parametrize(
    "change",
    [
        lambda data: b"\xef\xbb\xbf" + data,
        lambda data: data.decode().encode("utf-16"),
        lambda data: data.decode().encode("utf-16-be"),
        lambda data: b"\r\n  " + data + b"\r\n",
        lambda data: json.dumps(json.loads(data), indent=2).replace("\n", "\r\n").encode(),
    ],
)
def test_json_as_editors_save_it(tmp_path: Path, job: Job, change: Callable[[bytes], bytes]) -> None:
    put_json(tmp_path, job, change)
    assert named(analyzed(tmp_path)) == FOUND


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("\n", "\r\n").encode(),
        lambda text: text.encode("utf-16"),
        lambda text: b"\xef\xbb\xbf" + text.encode(),
        lambda text: b"\0" * 3_000_000 + text.encode(),
        lambda text: b"\xff\xfe" + text.encode("utf-16-le"),
    ],
)
def test_logs_as_shells_and_rotation_leave_them(tmp_path: Path, change: Callable[[str], bytes]) -> None:
    (tmp_path / "job.log").write_bytes(change(traceback("ValueError: bad", "[rank3]: ")))
    found = analyzed(tmp_path)
    assert named(found) == ("rank_failed", [3], []) and found["confidence"] == 0.9


@pytest.mark.parametrize(
    ("name", "size"), [("nccl_trace_rank_4", 2 << 30), ("core.7", 2 << 30), ("big.log", 1 << 28)]
)
def test_a_large_sparse_file_costs_itself_only(tmp_path: Path, job: Job, name: str, size: int) -> None:
    put(tmp_path, job)
    with (tmp_path / name).open("wb") as file:
        file.truncate(size)
    assert named(analyzed(tmp_path)) == FOUND


def test_pickles_and_json_lie_side_by_side(tmp_path: Path, job: Job) -> None:
    for rank in range(4):
        data = job.json(rank) if rank % 2 else job.pickled(rank)
        (tmp_path / f"nccl_trace_rank_{rank}{'.json' if rank % 2 else ''}").write_bytes(data)
    assert named(analyzed(tmp_path)) == FOUND


def test_thousands_of_empty_files_are_told_in_two_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank in range(3_000):
        (tmp_path / f"nccl_trace_rank_{rank}").touch()
    assert main(["analyze", str(tmp_path)]) == 3
    out = capsys.readouterr().out
    assert "empty (and 999 more files alike)" in out and "2000 more files" in out


def test_a_dump_whose_name_tells_no_rank_is_said(tmp_path: Path, job: Job) -> None:
    (tmp_path / "fr.pkl").write_bytes(job.pickled(0))
    (problem,) = analyzed(tmp_path)["problems"]
    assert "nothing in their names tells a rank" in problem["reason"]


def test_folders_of_the_kernel_are_survived() -> None:
    for path in ("/proc/self", "/proc/self/fd", "/sys/kernel"):
        if Path(path).is_dir():
            assert analyzed(Path(path))["exit_code"] == 3


def test_two_reports_of_one_name_are_wrong_usage(
    tmp_path: Path, job: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    put(tmp_path, job)
    out = str(tmp_path / "out")
    assert main(["analyze", str(tmp_path), "--html", out, "--perfetto", f"{tmp_path}/./out"]) == 64
    assert "both name" in capsys.readouterr().err and not Path(out).exists()


@given(st.text(min_size=1), st.sampled_from(["utf-8-sig", "utf-16"]), st.integers(1, 9))
def test_where_a_text_is_cut_changes_nothing(text: str, coding: str, size: int) -> None:
    text = "x" + text.encode("utf-8", "replace").decode()
    data = text.encode(coding)
    cut = [data[at : at + size] for at in range(0, len(data), size)]
    if size > 2:
        assert b"".join(chunks_as_utf8(cut)) == text.encode()
    assert as_utf8(data) == text.encode()


@given(st.binary())
def test_other_bytes_stay_as_they_are(data: bytes) -> None:
    whole = b"\x80" + data
    assert as_utf8(whole) == whole and b"".join(chunks_as_utf8([whole])) == whole


def test_dumps_of_any_name_get_the_hint_and_other_files_do_not(tmp_path: Path, job: Job) -> None:
    for name in "abcd":
        (tmp_path / f"{name}.bin").write_bytes(job.pickled(0))
    (problem,) = analyzed(tmp_path)["problems"]
    assert "4 of the 4 files may be dumps" in problem["reason"] and "trace_rank_3" in problem["reason"]
    for name in "abcd":
        (tmp_path / f"{name}.bin").write_bytes(b"\x7fELF")
    (problem,) = analyzed(tmp_path)["problems"]
    assert problem["reason"] == "none of the 4 files is a dump"


def test_a_packed_tar_that_is_called_zip_is_read(tmp_path: Path, job: Job) -> None:
    with tarfile.open(tmp_path / "dumps.zip", "w:gz") as archive:
        for rank in range(job.world):
            data = job.pickled(rank)
            member = tarfile.TarInfo(f"trace_rank_{rank}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    assert analyzed(tmp_path / "dumps.zip")["coverage"]["reported"] == job.world


def test_any_text_file_that_tells_of_no_failure_is_no_log(tmp_path: Path) -> None:
    file = tmp_path / "passwd"
    file.write_text("root:x:0:0:root:/root:/bin/bash\n")
    assert "job logs" not in analyzed(file)["summary"]
    file.write_text("[rank1]: torch.OutOfMemoryError: CUDA out of memory.\n")
    assert analyzed(file)["culprit_ranks"] == [1]
