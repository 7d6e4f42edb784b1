"""Dumps as they lie on a cluster: names, archives, leftovers, damage."""

from __future__ import annotations

import gzip
import os
import socket
import tarfile
from pathlib import Path

import pytest
import zstandard

from clusterwatch.readers import archives, dumps, folder
from tests.data.recorder import Job


@pytest.fixture(scope="module")
def job() -> Job:
    made = Job(4)
    for _ in range(3):
        made.all()
    return made


def ranks(found: folder.Folder) -> list[int]:
    return [trace.rank for trace in found.windows]


@pytest.mark.parametrize(
    "name",
    [
        "comm_lib_trace_rank_{}",
        "nccl_trace_rank_{}",
        "nccl_trace_rank_{}.json",
        "_dump_{}",
        "nccl_trace_rank_node-17_{}",
        "nccl_trace_rank_gpu12.cluster.local_{}",
        "{}",
        "run7-rank{}.pickle",
    ],
)
def test_reads_the_rank_from_any_name(tmp_path: Path, job: Job, name: str) -> None:
    for rank in range(4):
        (tmp_path / name.format(rank)).write_bytes(job.json(rank) if rank % 2 else job.pickled(rank))
    found = folder.read(tmp_path)
    assert ranks(found) == [0, 1, 2, 3] and found.problems == ()


def test_a_number_after_the_rank_does_not_mislead(tmp_path: Path, job: Job) -> None:
    for rank in range(4):
        (tmp_path / f"trace_rank_{rank}_node-3").write_bytes(job.pickled(rank))
        (tmp_path / f"sub{rank}").mkdir()
    assert ranks(folder.read(tmp_path)) == [0, 1, 2, 3]


def test_reads_nested_folders_and_packed_files(tmp_path: Path, job: Job) -> None:
    for rank in range(2):
        node = tmp_path / f"node{rank}" / "tmp"
        node.mkdir(parents=True)
        (node / f"nccl_trace_rank_{rank}.gz").write_bytes(gzip.compress(job.pickled(rank)))
    (tmp_path / "nccl_trace_rank_2.zst").write_bytes(zstandard.compress(job.pickled(2)))
    (tmp_path / "nccl_trace_rank_3.json.gz").write_bytes(gzip.compress(job.json(3)))
    assert ranks(folder.read(tmp_path)) == [0, 1, 2, 3]


@pytest.mark.parametrize("packing", ["", "gz", "zst"])
def test_reads_an_archive(tmp_path: Path, job: Job, packing: str) -> None:
    inside = tmp_path / "in"
    inside.mkdir()
    for rank in range(4):
        (inside / f"nccl_trace_rank_{rank}").write_bytes(job.pickled(rank))
    plain = tmp_path / "dumps.tar"
    with tarfile.open(plain, "w") as archive:
        archive.add(inside, "dumps")
    path = plain
    if packing:
        path = tmp_path / f"dumps.tar.{packing}"
        pack = gzip.compress if packing == "gz" else zstandard.compress
        path.write_bytes(pack(plain.read_bytes()))
    assert ranks(folder.read(path)) == [0, 1, 2, 3]


def test_reads_one_file(tmp_path: Path, job: Job) -> None:
    path = tmp_path / "nccl_trace_rank_2"
    path.write_bytes(job.pickled(2))
    assert ranks(folder.read(path)) == [2]


def test_the_newest_dump_of_a_rank_counts_and_the_older_is_named(tmp_path: Path, job: Job) -> None:
    later = Job(4)
    later.wait(60)
    later.all()
    for run, what in (("a", later), ("b", job)):
        (tmp_path / run).mkdir()
        (tmp_path / run / "nccl_trace_rank_1").write_bytes(what.pickled(1))
    found = folder.read(tmp_path)
    assert [trace.source for trace in found.windows] == ["a/nccl_trace_rank_1"]
    (problem,) = found.problems
    assert problem.source == "b/nccl_trace_rank_1" and problem.rank == 1 and "stale" in problem.reason


def test_other_files_are_left_alone(tmp_path: Path, job: Job) -> None:
    (tmp_path / "nccl_trace_rank_0").write_bytes(job.pickled(0))
    for name in ("expected.json", "train_0.log", "notes.txt", ".hidden_1", "nccl_trace_rank_0.pipe"):
        (tmp_path / name).write_text("nothing")
    found = folder.read(tmp_path)
    assert ranks(found) == [0] and found.problems == () and found.files == 1


@pytest.mark.parametrize("content", [b"", b"\x80\x02", b"not a dump", b'{"version": "9.0", "entries": []}'])
def test_a_bad_file_is_named_and_the_rest_is_read(tmp_path: Path, job: Job, content: bytes) -> None:
    for rank in range(3):
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(job.pickled(rank))
    (tmp_path / "nccl_trace_rank_3").write_bytes(content)
    found = folder.read(tmp_path)
    assert ranks(found) == [0, 1, 2]
    assert [(p.source, p.rank) for p in found.problems] == [("nccl_trace_rank_3", 3)]


def test_links_pipes_and_sockets_are_not_opened(tmp_path: Path, job: Job) -> None:
    outside = tmp_path / "outside_9"
    outside.write_bytes(job.pickled(0))
    inside = tmp_path / "dumps"
    inside.mkdir()
    (inside / "nccl_trace_rank_0").symlink_to(outside)
    (inside / "nccl_trace_rank_folder").symlink_to(tmp_path)
    os.mkfifo(inside / "nccl_trace_rank_1")
    os.mkfifo(inside / "nccl_trace_rank_1.pipe")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(inside / "nccl_trace_rank_2"))
    found = folder.read(inside)
    listener.close()
    assert found.windows == ()
    assert len([p for p in found.problems if "not opened" in p.reason or "not followed" in p.reason]) == 4


def test_a_damaged_archive_is_named(tmp_path: Path) -> None:
    (tmp_path / "nccl_dumps.tar.gz").write_bytes(b"\x1f\x8b no")
    (tmp_path / "nccl_trace_rank_1.gz").write_bytes(gzip.compress(b"x" * 100)[:30])
    assert len(folder.read(tmp_path).problems) == 2


def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dumps, "DUMP_MAX_BYTES", 1000)
    (tmp_path / "nccl_trace_rank_1.gz").write_bytes(gzip.compress(b"\x80" * 10_000_000))
    (tmp_path / "nccl_trace_rank_2.zst").write_bytes(zstandard.compress(b"\x80" * 10_000_000))
    problems = folder.read(tmp_path).problems
    assert [p.reason for p in problems] == ["holds more than 1000 bytes"] * 2


def test_an_archive_that_unpacks_without_end_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "ARCHIVE_MAX_BYTES", 50_000)
    plain = tmp_path / "big.tar.gz"
    blob = tmp_path / "blob_1"
    blob.write_bytes(b"\0" * 200_000)
    with tarfile.open(plain, "w:gz") as archive:
        archive.add(blob, "nccl_trace_rank_1")
        archive.add(blob, "nccl_trace_rank_2")
    blob.unlink()
    (problem, *_) = folder.read(plain).problems
    assert "damaged" in problem.reason


def test_nothing_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        folder.read(tmp_path / "nowhere")


def test_progress_is_told(tmp_path: Path, job: Job) -> None:
    for rank in range(3):
        (tmp_path / f"rank_{rank}").write_bytes(job.pickled(rank))
    seen: list[folder.Progress] = []
    folder.read(tmp_path, seen.append)
    assert [(p.files_done, p.files) for p in seen] == [(1, 3), (2, 3), (3, 3)]
    assert seen[-1].bytes_done == seen[-1].bytes == sum(p.stat().st_size for p in tmp_path.iterdir())
