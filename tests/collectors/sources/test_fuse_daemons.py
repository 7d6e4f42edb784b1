"""The daemon behind a FUSE mount: found by what the kernel or its words tell, watched over restarts."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.sources.fuse_daemons import FuseDaemonsSource, connection_of, fuse_mounts, parse_stat
from collectors.sources.tree import Tree
from tests.collectors.sources.trees import look, write

MOUNT = "mount//mnt/blob"
INFO = "66 21 0:61 / /mnt/blob rw shared:5 - fuse.blobfs blobfs rw\n"


def stat(
    pid: int, state: str = "S", ticks: int = 100, started: int = 5_000, name: str = "blob (fs) d"
) -> str:
    middle = f"1 {pid} {pid} 0 -1 4194560 900 0 3 0 {ticks} 20 0 0 20 0 8 0 {started} 900000000 25000"
    return f"{pid} ({name}) {state} {middle} 18446744073709551615 1 1 0 0 0\n"


def daemon(root: Path, pid: int, words: str = "/usr/bin/blobfs\0/mnt/blob\0", **more: object) -> Path:
    return write(root, {f"proc/{pid}/stat": stat(pid, **more), f"proc/{pid}/cmdline": words})  # type: ignore[arg-type]


def opens_fuse(root: Path, pid: int, fdinfo: str = "pos:\t0\nmnt_id:\t30\n") -> None:
    write(root, {f"proc/{pid}/fdinfo/7": fdinfo})
    (root / f"proc/{pid}/fd").mkdir(exist_ok=True)
    (root / f"proc/{pid}/fd/7").symlink_to("/dev/fuse")


@pytest.fixture(name="root")
def _root(tmp_path: Path) -> Path:
    return write(tmp_path, {"proc/self/mountinfo": INFO})


def test_a_daemon_is_measured_between_two_looks(root: Path) -> None:
    daemon(root, 900)
    source = FuseDaemonsSource()
    found, events = look(source, root, 0.0)
    assert found[MOUNT, "daemon_cpu_ratio"] == (None, "first_sample")
    assert found[MOUNT, "daemon_rss_bytes"] == (25_000 * 4_096, "ok")
    assert found[MOUNT, "daemon_threads_count"] == (8, "ok") and events == []
    daemon(root, 900, ticks=850)
    found, _ = look(source, root, 15.0)
    value, quality = found[MOUNT, "daemon_cpu_ratio"]
    assert value is not None and round(value, 6) == 0.5 and quality == "ok"


def test_the_kernels_word_wins_over_names_and_arguments(root: Path) -> None:
    daemon(root, 800)  # a shell script that was given the path
    daemon(root, 900, "/opt/blobfs-server\0--all\0")
    opens_fuse(root, 800, "fuse_connection:\t99\n")
    opens_fuse(root, 900, "fuse_connection:\t61\n")
    source = FuseDaemonsSource()
    look(source, root)
    assert source._watched["/mnt/blob"].last is not None and source._watched["/mnt/blob"].last.pid == 900


def test_one_that_has_the_device_open_wins_over_one_that_names_the_mount(root: Path) -> None:
    daemon(root, 700, "ls\0/mnt/blob\0")
    (root / "proc/700/fd").mkdir()
    (root / "proc/700/fd/0").symlink_to("/dev/null")
    daemon(root, 900)
    opens_fuse(root, 900)
    source = FuseDaemonsSource()
    look(source, root)
    assert source._watched["/mnt/blob"].last is not None and source._watched["/mnt/blob"].last.pid == 900


def test_a_daemon_that_is_named_by_the_inventory(root: Path) -> None:
    inventory = '[[mount]]\npath = "/mnt/blob"\ndaemon = "storaged"\n'
    write(root, {"etc/clusterwatch/agent.toml": inventory})
    assert [e.kind for e in look(FuseDaemonsSource(), root)[1]] == ["fuse_daemon_gone"]
    daemon(root, 900, "/opt/bin/storaged\0-c\0/etc/x\0")
    found, events = look(FuseDaemonsSource(), root)
    assert found[MOUNT, "daemon_running_count"] == (1, "ok") and events == []


def test_one_that_was_never_found_is_unknown_and_not_gone(root: Path) -> None:
    assert look(FuseDaemonsSource(), root) == ({(MOUNT, "daemon_running_count"): (None, "not_found")}, [])


def test_a_daemon_that_dies_is_gone_and_one_that_comes_back_has_restarted(root: Path) -> None:
    daemon(root, 900)
    source = FuseDaemonsSource()
    look(source, root, 0.0)
    shutil.rmtree(root / "proc/900")
    found, events = look(source, root, 15.0)
    assert found == {(MOUNT, "daemon_running_count"): (0, "ok")}
    assert [(e.kind, e.severity, e.standing) for e in events] == [("fuse_daemon_gone", "critical", True)]
    daemon(root, 901, started=9_000)
    found, (event,) = look(source, root, 30.0)
    assert (event.kind, dict(event.attributes)) == ("fuse_daemon_restarted", {"pid": 901, "old_pid": 900})
    assert found[MOUNT, "daemon_restarts_total"] == (1, "ok")
    assert found[MOUNT, "daemon_cpu_ratio"] == (None, "first_sample")


def test_the_same_number_of_another_process_is_a_restart(root: Path) -> None:
    daemon(root, 900)
    source = FuseDaemonsSource()
    look(source, root, 0.0)
    daemon(root, 900, started=7_777)
    assert [e.kind for e in look(source, root, 15.0)[1]] == ["fuse_daemon_restarted"]


def test_a_zombie_does_not_serve(root: Path) -> None:
    daemon(root, 900)
    source = FuseDaemonsSource()
    look(source, root, 0.0)
    daemon(root, 900, state="Z")
    assert [e.kind for e in look(source, root, 15.0)[1]] == ["fuse_daemon_gone"]


def test_a_daemon_in_the_kernels_hands_is_told_when_it_stays_there(root: Path) -> None:
    daemon(root, 900, state="D")
    source = FuseDaemonsSource()
    kinds = [[e.kind for e in look(source, root, at_s)[1]] for at_s in (0.0, 15.0, 30.0, 45.0)]
    assert kinds == [[], [], ["fuse_daemon_blocked"], ["fuse_daemon_blocked"]]
    daemon(root, 900)
    assert look(source, root, 60.0)[1] == []


def test_a_live_machine_is_not_searched_at_every_look(root: Path) -> None:
    listed: list[str] = []

    class Live(Tree):
        is_live = True

        def list(self, name: str) -> list[str]:
            listed.append(name)
            return super().list(name)

    source = FuseDaemonsSource()
    for at_s in (0.0, 15.0, 30.0, 45.0, 60.0):
        source.read(Live(root), at_s)
    assert listed == ["proc", "proc"]


def test_only_mounts_that_are_storage_count() -> None:
    lines = [
        INFO,
        INFO.replace("blobfs", "lxcfs").replace("/mnt/blob", "/a"),
        INFO.replace("fuse.blobfs", "nfs4"),
    ]
    assert list(fuse_mounts("".join(lines))) == ["/mnt/blob"]
    many = "".join(INFO.replace("/mnt/blob", f"/mnt/{n}") for n in range(100))
    assert len(fuse_mounts(many)) == 32


@pytest.mark.parametrize(
    "text", ["", "9", stat(9)[:30], stat(9).replace("5000", "x"), "9 (a) S " + "9" * 400]
)
def test_a_damaged_line_is_no_process(text: str) -> None:
    assert parse_stat(text) is None


@given(st.text(max_size=300))
def test_garbage_gives_no_error(text: str) -> None:
    parse_stat(text)
    parse_stat(f"1 ({text}) S " + "1 " * 40)
    connection_of(text)
    fuse_mounts(text)
