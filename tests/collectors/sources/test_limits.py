"""Limits of ranks, jobs and the node: near them, without them, and where they cannot be told."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from collectors.sources import limits as limits_source
from collectors.sources import limits_process
from collectors.sources.counters import Count
from collectors.sources.limits import LimitsSource
from collectors.sources.limits_node import shared_memory
from collectors.sources.limits_process import limits, may_lock_all
from collectors.sources.tree import Tree
from tests.collectors.sources.trees import look, write

JOB, RANK0, RANK1 = "job/7", "job/7/rank/0", "job/7/rank/1"
SLURM = "/system.slice/slurmstepd.scope/job_7"
SCOPE = f"sys/fs/cgroup{SLURM}"
SHM_HEAD = "Filesystem         1B-blocks        Used    Available Use% Mounted on\n"


def limits_text(nofile: str = "1024", memlock: str = "unlimited") -> str:
    rows = [
        ("Max cpu time", "unlimited", "unlimited", "seconds"),
        ("Max stack size", "8388608", "unlimited", "bytes"),
        ("Max core file size", "0", "unlimited", "bytes"),
        ("Max processes", "2062000", "2062000", "processes"),
        ("Max open files", nofile, "1048576", "files"),
        ("Max locked memory", memlock, memlock, "bytes"),
        ("Max nice priority", "0", "0", ""),
    ]
    head = f"{'Limit':<25} {'Soft Limit':<20} {'Hard Limit':<20} {'Units':<10}\n"
    return head + "".join(f"{a:<25} {b:<20} {c:<20} {d:<10}\n" for a, b, c, d in rows)


def rank(
    root: Path,
    number: int,
    nofile: str = "1024",
    memlock: str = "unlimited",
    files: int = 3,
    status: str = "",
) -> int:
    pid = 100 + number
    environ = f"RANK={number}\0LOCAL_RANK={number}\0WORLD_SIZE=2\0SLURM_JOB_ID=7\0"
    write(root, {
        f"proc/{pid}/environ": environ,
        f"proc/{pid}/cgroup": f"0::{SLURM}/step_0/user/task_{number}\n",
        f"proc/{pid}/stat": f"{pid} (py thon) S 1" + " 0" * 17 + f" {pid} 0 0",
        f"proc/{pid}/limits": limits_text(nofile, memlock),
        f"proc/{pid}/status": status or "VmPin:\t       0 kB\nCapEff:\t0000000000000000\n",
    })  # fmt: skip
    folder = root / f"proc/{pid}/fd"
    folder.mkdir(exist_ok=True)
    for descriptor in range(files):
        link = folder / str(descriptor)
        if not link.is_symlink():
            link.symlink_to("/dev/null")
    return pid


def group(path: str, used: int, limit: str = "max") -> dict[str, str]:
    return {f"{path}/pids.current": f"{used}\n", f"{path}/pids.max": f"{limit}\n"}


def test_descriptors_of_a_rank_against_its_soft_limit(tmp_path: Path) -> None:
    rank(tmp_path, 0, nofile="20", files=18)
    rank(tmp_path, 1, nofile="20", files=3)
    found, (event,) = look(LimitsSource(), tmp_path)
    assert found[RANK0, "open_descriptors_count"] == (18, "ok")
    assert found[RANK0, "descriptors_limit_count"] == (20, "ok")
    assert found[RANK1, "descriptors_used_ratio"] == (0.15, "ok")
    assert (event.entity, event.kind, event.severity, event.standing) == (
        RANK0, "descriptors_near_limit", "warning", True
    )  # fmt: skip
    assert event.attributes == {"limit": 20}


def test_a_warning_does_not_come_and_go_at_the_edge(tmp_path: Path) -> None:
    source = LimitsSource()
    rank(tmp_path, 0, nofile="100", files=91)
    first = look(source, tmp_path, 0.0)[1]
    for number in range(5):
        (tmp_path / f"proc/100/fd/{number}").unlink()
    second = look(source, tmp_path, 60.0)[1]  # 86 of 100
    for number in range(5, 8):
        (tmp_path / f"proc/100/fd/{number}").unlink()
    third = look(source, tmp_path, 120.0)[1]
    assert [len(events) for events in (first, second, third)] == [1, 1, 0]
    assert first[0].attributes == second[0].attributes


def test_no_limit_of_descriptors_is_unknown_and_never_zero(tmp_path: Path) -> None:
    rank(tmp_path, 0, nofile="unlimited")
    found, events = look(LimitsSource(), tmp_path)
    assert events == []
    assert found[RANK0, "descriptors_limit_count"] == (None, "unlimited")
    assert found[RANK0, "descriptors_used_ratio"] == (None, "unlimited")


def test_a_folder_of_too_many_descriptors_is_not_listed_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits_process, "DESCRIPTORS_MAX", 5)
    rank(tmp_path, 0, files=9)
    assert look(LimitsSource(), tmp_path)[0][RANK0, "open_descriptors_count"] == (5, "at_least")


def test_a_folder_is_not_listed_at_every_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rank(tmp_path, 0)
    calls: list[int] = []

    def listed(_: Tree, pid: int) -> Count:
        calls.append(pid)
        return Count(3)

    monkeypatch.setattr(limits_source, "listed_descriptors", listed)
    monkeypatch.setattr(Tree, "is_paced", property(lambda _: True))
    source = LimitsSource()
    for at_s in (0.0, 60.0, 120.0, 180.0):
        assert look(source, tmp_path, at_s)[0][RANK0, "open_descriptors_count"] == (3, "ok")
    assert calls == [100, 100]


def test_this_process_by_the_kernel_itself() -> None:
    told = limits_process.told_descriptors(Tree(), os.getpid())
    listed = limits_process.listed_descriptors(Tree(), os.getpid())
    assert listed.value is not None and (told is None or abs(told - listed.value) <= 2)
    own = limits(Path("/proc/self/limits").read_text())
    assert own["nofile"].soft.value == os.sysconf("SC_OPEN_MAX")


@pytest.mark.parametrize("how", ["pinned", "device"])
def test_a_rank_that_uses_rdma_with_a_limit_of_locked_memory(tmp_path: Path, how: str) -> None:
    write(tmp_path, {"sys/class/infiniband/mlx5_0/node_guid": "e8eb:d303:0077:1a40\n"})
    status = "VmPin:\t    4096 kB\nCapEff:\t0\n" if how == "pinned" else ""
    rank(tmp_path, 0, memlock="8388608", status=status)
    if how == "device":
        (tmp_path / "proc/100/fd/9").symlink_to("/dev/infiniband/uverbs3")
    found, (event,) = look(LimitsSource(), tmp_path)
    assert found[RANK0, "memlock_limit_bytes"] == (8_388_608, "ok")
    assert (event.entity, event.kind, event.standing) == (RANK0, "memlock_limited", True)
    assert event.attributes == {"limit_bytes": 8_388_608}


def test_a_limit_of_locked_memory_is_no_fault_without_rdma_or_above_it(tmp_path: Path) -> None:
    rank(tmp_path, 0, memlock="65536", status="VmPin:\t 4 kB\nCapEff:\t0\n")
    assert look(LimitsSource(), tmp_path)[1] == []  # no RDMA device at all: something else is pinned
    rank(tmp_path, 0, memlock="65536")
    write(tmp_path, {"sys/class/infiniband/mlx5_0/node_guid": "e8eb:d303:0077:1a40\n"})
    assert look(LimitsSource(), tmp_path)[1] == []  # the rank does not use it
    rank(tmp_path, 0, memlock="65536", status="VmPin:\t 4 kB\nCapEff:\t000001ffffffffff\n")
    write(tmp_path, {"proc/100/uid_map": "         0          0 4294967295\n"})
    assert look(LimitsSource(), tmp_path)[1] == []  # CAP_IPC_LOCK lifts the limit
    write(tmp_path, {"proc/100/uid_map": "         0       1000          1\n"})
    assert [event.kind for event in look(LimitsSource(), tmp_path)[1]] == ["memlock_limited"]
    rank(tmp_path, 0, memlock="unlimited", status="VmPin:\t 4 kB\n")
    found, events = look(LimitsSource(), tmp_path)
    assert events == [] and found[RANK0, "memlock_limit_bytes"] == (None, "unlimited")


def test_the_group_nearest_to_its_limit_is_the_jobs(tmp_path: Path) -> None:
    rank(tmp_path, 0)
    rank(tmp_path, 1)
    files = group(f"{SCOPE}/step_0/user/task_0", 40) | group(f"{SCOPE}/step_0/user/task_1", 50)
    files |= group(SCOPE, 90, "1000") | group("sys/fs/cgroup/system.slice", 950, "1000")
    found, (event,) = look(LimitsSource(), write(tmp_path, files))
    assert found[JOB, "cgroup_pids_count"] == (950, "ok")
    assert found[JOB, "cgroup_pids_limit_count"] == (1_000, "ok")
    assert (event.entity, event.kind) == (JOB, "pids_near_limit")
    assert event.attributes == {"limit": 1_000, "cgroup": "/system.slice"}


def test_a_job_without_a_limit_of_processes(tmp_path: Path) -> None:
    rank(tmp_path, 0)
    found, events = look(LimitsSource(), write(tmp_path, group(f"{SCOPE}/step_0/user/task_0", 40)))
    assert events == [] and found[JOB, "cgroup_pids_count"] == (40, "ok")
    assert found[JOB, "cgroup_pids_used_ratio"] == (None, "unlimited")


def test_version_1_of_control_groups_has_its_own_path(tmp_path: Path) -> None:
    rank(tmp_path, 0)
    files = group("sys/fs/cgroup/pids/slurm/uid_5/job_7", 4, "5")
    files["proc/100/cgroup"] = "9:memory:/elsewhere\n8:pids:/slurm/uid_5/job_7/step_0\n0::/\n"
    found, events = look(LimitsSource(), write(tmp_path, files))
    assert found[JOB, "cgroup_pids_used_ratio"] == (0.8, "ok") and events == []


def test_the_node_near_its_own_limits(tmp_path: Path) -> None:
    files = {
        "proc/sys/fs/file-nr": "990\t0\t1000\n",
        "proc/loadavg": "3.00 2.00 1.00 4/3900 77\n",
        "proc/sys/kernel/threads-max": "16000000\n",
        "proc/sys/kernel/pid_max": "4000\n",
        "commands/df_dev_shm.txt": f"{SHM_HEAD}tmpfs 1000 950 50 95% /dev/shm\n",
    }
    found, events = look(LimitsSource(), write(tmp_path, files))
    assert found["host", "open_files_used_ratio"] == (0.99, "ok")
    assert found["host", "threads_limit_count"] == (4_000, "ok")
    assert found["host", "shm_size_bytes"] == (1_000, "ok") and found["host", "shm_used_bytes"] == (950, "ok")
    assert [(event.kind, event.severity) for event in events] == [
        ("descriptors_near_limit", "critical"),
        ("pids_near_limit", "warning"),
        ("shm_nearly_full", "warning"),
    ]


def test_a_huge_number_of_files_is_no_limit(tmp_path: Path) -> None:
    found, _ = look(LimitsSource(), write(tmp_path, {"proc/sys/fs/file-nr": "5\t0\t9223372036854775807\n"}))
    assert found["host", "open_files_limit_count"] == (None, "unlimited")


def test_only_a_tmpfs_is_asked_how_full_it_is(tmp_path: Path) -> None:
    root = "30 1 8:1 / / rw - ext4 /dev/sda1 rw\n"
    shm = "31 30 0:26 / /dev/shm rw - {} none rw\n"
    for kind, device in (("tmpfs", "0:26"), ("nfs4", None)):
        write(tmp_path, {"proc/self/mountinfo": root + shm.format(kind)})
        found = shared_memory(Tree(tmp_path))
        assert (found.device if found else None) == device
    over = shm.format("tmpfs") + shm.format("nfs4")  # what is mounted over it is what a path leads to
    write(tmp_path, {"proc/self/mountinfo": root + over})
    assert shared_memory(Tree(tmp_path)) is None
    for kind, path in (("overlay", "/proc/9/root/dev/shm"), ("nfs4", None)):
        write(tmp_path, {"proc/9/mountinfo": root.replace("ext4", kind) + shm.format("tmpfs")})
        found = shared_memory(Tree(tmp_path), 9)
        assert (found.path if found else None) == path


def test_a_rank_that_ended_is_not_told_and_one_that_is_hidden_has_its_reason(tmp_path: Path) -> None:
    rank(tmp_path, 0)
    rank(tmp_path, 1)
    (tmp_path / "proc/100/limits").unlink()
    for entry in (tmp_path / "proc/100/fd").iterdir():
        entry.unlink()
    (tmp_path / "proc/100/fd").rmdir()
    write(tmp_path, {"read_errors.json": '{"proc/101/limits": "EACCES"}'})
    found, _ = look(LimitsSource(), tmp_path)
    assert (RANK0, "open_descriptors_count") not in found
    assert found[RANK1, "descriptors_limit_count"] == (None, "eacces")
    assert found[RANK1, "open_descriptors_count"] == (3, "ok")


def test_a_node_without_anything_says_nothing(tmp_path: Path) -> None:
    assert look(LimitsSource(), tmp_path) == ({}, [])


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=150), st.binary(max_size=60))
def test_garbage_gives_no_error_and_no_zero(tmp_path: Path, first: bytes, second: bytes) -> None:
    rank(tmp_path, 0)
    names = [
        "proc/100/limits", "proc/sys/fs/file-nr", f"{SCOPE}/pids.max", "commands/df_dev_shm.txt",
        "proc/loadavg", "commands/gpu_processes.json",
    ]  # fmt: skip
    write(
        tmp_path, dict.fromkeys(names, first) | {"proc/100/status": second, f"{SCOPE}/pids.current": second}
    )
    for sample in LimitsSource().read(Tree(tmp_path), 0.0).samples:
        assert sample.value is not None or sample.quality != "ok"
    text = first.decode("utf-8", "replace")
    limits(text)
    may_lock_all(Tree(tmp_path), 100, f"CapEff:\t{text}\n")


@given(st.integers(0, 2**64), st.integers(0, 2**64))
def test_every_limit_is_read_as_the_kernel_prints_it(nofile: int, memlock: int) -> None:
    found = limits(limits_text(str(nofile), str(memlock)))
    for name, value in (("nofile", nofile), ("memlock", memlock)):
        expected = (None, "out_of_range") if value >= 2**64 else (value, "ok")
        if 2**62 <= value < 2**64:
            expected = (None, "unlimited")
        assert (found[name].soft.value, found[name].soft.quality) == expected
