"""Logs of ranks: what is new is told once, floods are counted, nothing on a network mount is touched."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.sources import job_logs
from collectors.sources.base import Reading
from collectors.sources.job_logs import READABLE, JobLogsSource
from collectors.sources.job_logs_files import Output, output
from collectors.sources.tail import Tail
from collectors.sources.tree import Tree
from tests.collectors.sources.test_nvml_live import Live
from tests.collectors.sources.test_scheduler_env import rank
from tests.collectors.sources.trees import write

OOM = "[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20 MiB\n"
MOUNTS = "29 1 8:1 / / rw - ext4 /dev/sda rw\n30 1 0:9 / /net rw - nfs4 server:/ rw\n"


def node(root: Path, text: str | bytes = "", mount: int = 29, ranks: int = 1) -> Path:
    """A node whose ranks write both outputs to ``rank.log``; its path leads there as on a live machine."""
    log = write(root, {"rank.log": text, "proc/self/mountinfo": MOUNTS}) / "rank.log"
    first = root.parts[1]
    if not (root / first).exists():
        (root / first).symlink_to(f"/{first}")
    for number in range(ranks):
        pid = 4_000 + number
        write(root, rank(pid, number, number))
        write(root, {f"proc/{pid}/mountinfo": MOUNTS})
        (root / f"proc/{pid}/fd").mkdir()
        for fd in (1, 2):
            write(root, {f"proc/{pid}/fdinfo/{fd}": f"pos:\t0\nflags:\t02\nmnt_id:\t{mount}\n"})
            (root / f"proc/{pid}/fd/{fd}").symlink_to(log)
    return log


def append(log: Path, text: str | bytes) -> None:
    with log.open("ab") as file:
        file.write(text.encode() if isinstance(text, str) else text)


def kinds(reading: Reading) -> list[tuple[str, str]]:
    return [(event.entity, event.kind) for event in reading.events]


def test_what_a_rank_prints_is_told_once_then_with_its_count(tmp_path: Path) -> None:
    log, source, tree = node(tmp_path, OOM), JobLogsSource(), Live(tmp_path)
    assert not source.read(tree, 0.0).events  # history
    append(log, OOM)
    assert kinds(source.read(tree, 15.0)) == [("job/7/rank/0", "log_out_of_memory")]
    append(log, OOM.replace("20 MiB", "30 MiB") * 3)
    assert not source.read(tree, 30.0).events
    (again,) = source.read(tree, 330.0).events
    assert again.attributes["count"] == 3
    assert not source.read(tree, 345.0).events


def test_a_log_of_several_ranks_is_read_once_and_is_of_the_job(tmp_path: Path) -> None:
    log, source, tree = node(tmp_path, ranks=2), JobLogsSource(), Live(tmp_path)
    source.read(tree, 0.0)
    append(log, OOM.removeprefix("[rank0]: ") + OOM.replace("rank0", "rank1"))
    assert sorted(kinds(source.read(tree, 15.0))) == [
        ("job/7", "log_out_of_memory"), ("job/7/rank/1", "log_out_of_memory"),
    ]  # fmt: skip


def test_a_network_file_is_not_touched_and_told_once(tmp_path: Path) -> None:
    node(tmp_path, OOM, mount=30).unlink()
    source = JobLogsSource()
    (sample,) = source.read(Live(tmp_path), 0.0).samples
    assert (sample.entity, sample.metric, sample.value, sample.quality) == (
        "job/7/rank/0", READABLE, None, "network_file_system",
    )  # fmt: skip
    assert source.read(Live(tmp_path), 15.0) == Reading([], [])


def test_the_last_words_of_a_rank_that_ended(tmp_path: Path) -> None:
    log, source, tree = node(tmp_path), JobLogsSource(), Live(tmp_path)
    source.read(tree, 0.0)
    append(log, OOM.rstrip())
    for fd in (1, 2):
        (tmp_path / f"proc/4000/fd/{fd}").unlink()
    assert kinds(source.read(tree, 15.0)) == [("job/7/rank/0", "log_out_of_memory")]
    assert not source.read(tree, 30.0).events


def container(root: Path, ranks: int) -> Path:
    """A node whose ranks see ``rank.log`` as ``/logs/r.log``, which is another file on the host."""
    log = node(root, ranks=ranks)
    inside = write(root / "inside", {"logs/r.log": ""}) / "logs/r.log"
    inside.unlink()
    inside.hardlink_to(log)
    write(root, {"logs/r.log": OOM})
    for number in range(ranks):
        pid = 4_000 + number
        (root / f"proc/{pid}/root").symlink_to("../../inside")
    return log


def end(root: Path, pid: int) -> None:
    for fd in (1, 2):
        (root / f"proc/{pid}/fd/{fd}").unlink()


def test_the_last_words_in_a_container_are_read_by_a_living_process_of_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, source, tree = container(tmp_path, 2), JobLogsSource(), Live(tmp_path)
    _names_in_container(monkeypatch)
    source.read(tree, 0.0)
    append(log, OOM.rstrip())
    end(tmp_path, 4_000)
    end(tmp_path, 4_001)  # it lives, but writes elsewhere now
    assert [kind for _, kind in kinds(source.read(tree, 15.0))] == ["log_out_of_memory"]


def test_a_file_of_the_same_name_on_the_host_is_not_read_for_it_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, source, tree = container(tmp_path, 1), JobLogsSource(), Live(tmp_path)
    _names_in_container(monkeypatch)
    source.read(tree, 0.0)
    append(log, OOM.rstrip())
    end(tmp_path, 4_000)
    (tmp_path / "proc/4000/root").unlink()
    (event,) = source.read(tree, 15.0).events
    assert (event.entity, event.kind, event.severity) == ("job/7/rank/0", "log_end_unread", "info")
    assert not source.read(tree, 30.0).events


def _names_in_container(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a rank's descriptors are called as it sees them; the kernel does the same across namespaces."""
    def named(tree: Tree, pid: int, number: int, known: Output | None) -> Output | None:
        told = output(tree, pid, number, None)
        return None if told is None else replace(told, path="/logs/r.log")

    monkeypatch.setattr(job_logs, "output", named)


def test_an_agent_that_starts_again_goes_on(tmp_path: Path) -> None:
    log, tree = node(tmp_path / "root", OOM), Live(tmp_path / "root")
    for expected in (0, 1):
        source = JobLogsSource()
        source.keep_in(tmp_path)
        assert len(source.read(tree, 0.0).events) == expected
        append(log, OOM)


def test_rotation_and_truncation(tmp_path: Path) -> None:
    log, source, tree = node(tmp_path, OOM * 3), JobLogsSource(), Live(tmp_path)
    source.read(tree, 0.0)
    log.write_text(OOM)
    assert len(source.read(tree, 15.0).events) == 1
    log.rename(log.with_name("rank.log.1"))
    log.write_text("RuntimeError: CUDA error: an illegal memory access was encountered\n")
    assert kinds(source.read(tree, 30.0)) == [("job/7/rank/0", "log_cuda_error")]


def test_a_flood_is_bounded_and_counted(tmp_path: Path) -> None:
    log, source, tree = node(tmp_path), JobLogsSource(), Live(tmp_path)
    source.read(tree, 0.0)
    append(log, "".join(OOM.replace("rank0", f"rank{number}") for number in range(20_000)))
    events = source.read(tree, 15.0).events
    flood = next(event for event in events if event.kind == "log_flood")
    assert len(events) == job_logs.EVENTS_MAX + 1
    assert int(str(flood.attributes["skipped_lines"])) > 5_000
    assert int(str(flood.attributes["skipped_bytes"])) > 100_000


def test_secrets_are_masked(tmp_path: Path) -> None:
    log, source, tree = node(tmp_path), JobLogsSource(), Live(tmp_path)
    source.read(tree, 0.0)
    append(log, "RuntimeError: CUDA error: password=hunter22 rejected\n")
    (event,) = source.read(tree, 15.0).events
    assert "hunter22" not in event.message


@settings(max_examples=20)
@given(st.binary(max_size=400))
def test_any_bytes_are_taken(data: bytes) -> None:
    log = job_logs._Log(Tail(), "7", "/x")
    events, skipped = job_logs._parsed(log, tuple(data.split(b"\n")), 256)
    assert skipped == 0 and all(job_logs._event(log, one).message.isprintable() for one in events)
