"""Mounts are asked by processes of their own: one a mount, left behind when stuck, reaped when let go."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.sources import mount_probe
from collectors.sources.base import SourceEvent
from collectors.sources.mount_probe import MountProbeSource, answer_of, network_mounts
from collectors.sources.tree import Tree
from tests.collectors.sources.test_nvml_live import Live
from tests.collectors.sources.trees import Found, look, write

LINE = "30 1 0:41 / {path} rw shared:5 - {kind} src rw\n"


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(mount_probe, "ANSWER_S", 0.5)
    yield


def node(root: Path, *mounts: tuple[str, str]) -> Path:
    text = "".join(LINE.format(path=path, kind=kind) for path, kind in mounts)
    return write(root, {"proc/self/mountinfo": text})


def probe(source: MountProbeSource, root: Path, at_s: float = 0.0) -> tuple[Found, list[SourceEvent]]:
    reading = source.read(Live(root), at_s)
    return {(s.entity, s.metric): (s.value, s.quality) for s in reading.samples}, list(reading.events)


def test_only_what_another_machine_or_process_answers_for_is_asked() -> None:
    kinds = [
        "nfs4",
        "fuse.blobfs",
        "fuse",
        "ext4",
        "fuse.lxcfs",
        "proc",
        "fusectl",
        "lustre",
        "tmpfs",
        "nfs4",
    ]
    text = "".join(LINE.format(path=f"/m{n}", kind=kind) for n, kind in enumerate(kinds))
    assert list(network_mounts(text + LINE.format(path="/m0", kind="nfs4"))) == [
        "/m0",
        "/m1",
        "/m2",
        "/m7",
        "/m9",
    ]
    many = "".join(LINE.format(path=f"/m{n}", kind="nfs") for n in range(500))
    assert len(list(network_mounts(many))) == mount_probe.PROBED_MAX


def test_a_mount_that_answers(tmp_path: Path) -> None:
    root = node(tmp_path, (str(tmp_path), "nfs"))
    found, events = probe(MountProbeSource(), root)
    entity = f"mount/{tmp_path}"
    took_s, quality = found[entity, "probe_s"]
    assert quality == "ok" and took_s is not None and took_s > 0
    used, _ = found[entity, "used_ratio"]
    assert used is not None and 0 <= used <= 1
    assert found[entity, "probe_stuck_s"] == (0.0, "ok") and events == []


def test_a_recorded_tree_is_never_asked(tmp_path: Path) -> None:
    root = node(tmp_path, (str(tmp_path), "nfs"))
    source = MountProbeSource(["/no/such/program"])
    assert look(source, root) == ({}, [])
    assert source.read(Tree(tmp_path / "nothing"), 0.0).samples == ()


def test_a_mount_that_gives_no_answer_is_asked_by_one_process_only(tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    script = f"open({str(asked)!r}, 'a').write('x'); import signal, time; signal.pause()"
    root = node(tmp_path, ("/mnt/a", "nfs"))
    source = MountProbeSource([sys.executable, "-c", script])
    found, events = probe(source, root, 100.0)
    assert found["mount//mnt/a", "probe_s"] == (None, "no_answer")
    assert found["mount//mnt/a", "probe_stuck_s"] == (0.0, "ok")
    (event,) = events
    assert (event.entity, event.kind, event.standing) == ("mount//mnt/a", "mount_probe_stuck", True)
    again, same = probe(source, root, 160.0)
    assert again["mount//mnt/a", "probe_stuck_s"] == (60.0, "ok")
    assert same == [event]  # as it stood: told once


def test_a_process_in_the_kernels_hands_is_left_and_no_other_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = tmp_path / "asked"
    asked.write_text("")
    program = tmp_path / "ask"
    program.write_text(
        f"#!/bin/sh\necho >> {asked}\n[ -e {tmp_path}/back ] && {{ echo 10 5 10 9; exit; }}\nexec sleep 60\n"
    )
    program.chmod(0o755)
    root = node(tmp_path, ("/mnt/a", "nfs"), ("/mnt/b", "nfs"))
    source = MountProbeSource([str(program)])
    with monkeypatch.context() as hands:
        hands.setattr("subprocess.Popen.kill", lambda _: None)  # as in state D
        probe(source, root, 0.0)
        probe(source, root, 60.0)
    assert len(asked.read_text().splitlines()) == 2
    processes = [stuck.probe.process for stuck in source._stuck.values() if stuck.probe]
    for process in processes:
        process.kill()  # the server is back
        process.wait()
    (tmp_path / "back").write_text("")
    found, events = probe(source, root, 120.0)
    assert found["mount//mnt/a", "used_ratio"] == (0.5, "ok") and events == []
    assert found["mount//mnt/b", "probe_stuck_s"] == (0.0, "ok")


def test_a_mount_that_is_gone_is_forgotten_when_its_process_ended(tmp_path: Path) -> None:
    source = MountProbeSource(["/bin/sh", "-c", "exec sleep 30"])
    root = node(tmp_path, ("/mnt/a", "nfs"))
    probe(source, root)
    (stuck,) = source._stuck.values()
    assert stuck.probe is not None
    stuck.probe.process.wait()
    write(root, {"proc/self/mountinfo": ""})
    probe(source, root, 60.0)
    probe(source, root, 120.0)
    assert probe(source, root, 180.0) == ({}, [])


@pytest.mark.parametrize(
    ("complaint", "quality", "failed"),
    [
        (
            "stat: cannot read file system information for '/m': Transport endpoint is not connected",
            "enotconn",
            True,
        ),
        ("stat: cannot read file system information for '/m': Stale file handle", "estale", True),
        ("stat: cannot read file system information for '/m': Permission denied", "eacces", False),
        ("something else", "unreadable", False),
    ],
)
def test_a_mount_that_fails_says_why(tmp_path: Path, complaint: str, quality: str, failed: bool) -> None:
    root = node(tmp_path, ("/m", "fuse.blobfs"))
    found, events = probe(MountProbeSource(["/bin/sh", "-c", f'echo "{complaint}" >&2; exit 1']), root)
    assert found["mount//m", "probe_s"] == (None, quality) and found["mount//m", "used_ratio"] == (
        None,
        quality,
    )
    told = [(e.entity, e.kind, dict(e.attributes)) for e in events]
    assert told == ([("mount//m", "mount_failed", {"error": quality})] if failed else [])


def test_mounts_are_asked_a_few_at_a_time_and_one_that_hangs_costs_no_other(tmp_path: Path) -> None:
    script = 'case "$1" in /m3) exec sleep 30;; *) echo 100 40 0 0;; esac'
    root = node(tmp_path, *((f"/m{n}", "nfs") for n in range(12)))
    source = MountProbeSource(["/bin/sh", "-c", script, "sh"])
    began_s = time.monotonic()
    found, events = probe(source, root)
    assert time.monotonic() - began_s < source.deadline_s
    assert [e.kind for e in events] == ["mount_probe_stuck"]
    assert {found[f"mount//m{n}", "used_ratio"] for n in range(12) if n != 3} == {(0.6, "ok")}
    assert found["mount//m1", "files_used_ratio"] == (None, "not_available")


@given(st.binary(max_size=80), st.binary(max_size=80))
def test_garbage_of_the_process_is_no_value(said: bytes, complaint: bytes) -> None:
    answer = answer_of(said, complaint, 0.1)
    assert answer.quality == "ok" or (answer.took_s, answer.used_ratio) == (None, None)
    assert answer.used_ratio is None or 0 <= answer.used_ratio <= 1


@given(st.text(max_size=300))
def test_a_list_of_mounts_that_is_garbage_gives_no_error(text: str) -> None:
    list(network_mounts(text))
