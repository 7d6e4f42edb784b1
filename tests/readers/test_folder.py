"""Dumps as they lie on a cluster: names, archives, leftovers, damage."""

from __future__ import annotations

import gzip
import os
import signal
import socket
import sys
import tarfile
from dataclasses import astuple
from pathlib import Path

import pytest
import zstandard

from clusterwatch.analysis.window import reduce
from clusterwatch.readers import dumps, folder, unpacking
from clusterwatch.readers.archives import Blob
from clusterwatch.readers.names import Named
from collectors.formats.columns import TraceColumns
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
    monkeypatch.setattr(unpacking, "ARCHIVE_MAX_BYTES", 50_000)
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


def test_files_that_promise_no_dump_are_nobodys_problem(tmp_path: Path, job: Job) -> None:
    (tmp_path / "core.3").write_bytes(b"\x7fELF")
    (tmp_path / "4").write_bytes(job.pickled(0)[:-200])
    found = folder.read(tmp_path)
    assert [(p.source, p.rank) for p in found.problems] == [("4", 4)]


def test_a_file_that_is_still_being_written_is_read_once_more(job: Job) -> None:
    whole = job.pickled(1)
    parts = iter([whole[:300], whole])
    named = Named("rank_1", 1, "rank_", sure=True)
    result = dumps.load(Blob("rank_1", lambda most: next(parts), 1, lambda most: parts), named, marked=False)
    assert isinstance(result, dumps.Dump) and result.window.entry_count == 3
    parts = iter([whole[:300], whole[:400]])
    result = dumps.load(Blob("rank_1", lambda most: next(parts), 1, lambda most: parts), named, marked=False)
    assert isinstance(result, dumps.Unusable) and "being written" in result.reason


@pytest.mark.parametrize("error", [MemoryError(), ZeroDivisionError("hole")])
def test_a_file_that_finds_a_hole_in_our_code_costs_itself_only(
    tmp_path: Path, job: Job, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def holed(trace: TraceColumns) -> object:
        if trace.rank == 2:
            raise error
        return reduce(trace)

    monkeypatch.setattr(dumps, "reduce", holed)
    for rank in range(4):
        (tmp_path / f"rank_{rank}").write_bytes(job.pickled(rank))
    found = folder.read(tmp_path)
    assert ranks(found) == [0, 1, 3]
    assert [problem.rank for problem in found.problems] == [2]


@pytest.mark.skipif(sys.platform != "linux", reason="copies are forked on Linux only")
def test_a_reader_that_is_killed_is_named_by_its_file_and_the_rest_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(64)
    job.all()
    for rank in range(64):
        (tmp_path / f"rank_{rank}").write_bytes(job.pickled(rank))
    here, load = os.getpid(), dumps.load

    def deadly(blob: Blob, named: Named, *, marked: bool) -> object:
        if os.getpid() != here and named.rank % 8 == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return load(blob, named, marked=marked)

    monkeypatch.setattr(dumps, "load", deadly)
    found = folder.read(tmp_path, processes=3)
    lost = {problem.rank for problem in found.problems}
    assert lost and all(rank is not None and rank % 8 == 0 for rank in lost)
    assert all("signal 9: out of memory?" in problem.reason for problem in found.problems)
    assert set(ranks(found)) == set(range(64)) - lost


@pytest.mark.parametrize("processes", [1, 3])
def test_the_number_of_processes_changes_nothing(tmp_path: Path, processes: int) -> None:
    job = Job(64)
    for _ in range(20):
        job.all()
    for rank in range(64):
        (tmp_path / f"rank_{rank}").write_bytes(job.pickled(rank)[: None if rank % 9 else 500])
    found, alone = folder.read(tmp_path, processes=processes), folder.read(tmp_path, processes=1)
    assert [astuple(window) for window in found.windows] == [astuple(window) for window in alone.windows]
    assert found.problems == alone.problems and len(found.windows) == 56


@pytest.mark.parametrize("packed", [False, True])
def test_rings_can_be_had_again_for_the_dumps_that_were_chosen(
    tmp_path: Path, job: Job, packed: bool
) -> None:
    later = Job(4)
    later.wait(86_400)
    later.all()
    for where, what in (("old", job), ("new", later)):
        (tmp_path / where).mkdir()
        for rank in range(4):
            (tmp_path / where / f"rank_{rank}").write_bytes(what.pickled(rank))
    path = tmp_path
    if packed:
        path = tmp_path / "all.tgz"
        with tarfile.open(path, "w:gz") as archive:
            archive.add(tmp_path / "old", "old")
            archive.add(tmp_path / "new", "new")
    rings = {ring.rank: ring for ring in folder.traces(path, {1, 3})}
    assert sorted(rings) == [1, 3] and {len(ring.entries) for ring in rings.values()} == {1}
    again = folder.traces(path, windows=folder.read(path).windows)
    assert {ring.rank for ring in again} == {0, 1, 2, 3}
