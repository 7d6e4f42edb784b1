"""Memory of ranks and their jobs' control groups, of both versions, with and without limits."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from collectors.sources.memory import MemorySource, memory, status
from collectors.sources.memory_cgroup import Place, fields, job_place, place_of, stalled
from collectors.sources.tree import Tree
from tests.collectors.sources.trees import look, write

GIB = 2**30
JOB, RANK0, RANK1 = "job/7", "job/7/rank/0", "job/7/rank/1"
SLURM = "/system.slice/slurmstepd.scope/job_7"
STATUS = "VmLck:\t 64 kB\nVmPin:\t 128 kB\nVmRSS:\t 4096 kB\nRssAnon:\t 1024 kB\nVmSwap:\t 0 kB\n"


def process(pid: int, rank: int | None, cgroup: str, parent: int = 1, status: str = STATUS) -> dict[str, str]:
    environ = f"RANK={rank}\0LOCAL_RANK={rank}\0WORLD_SIZE=2\0SLURM_JOB_ID=7\0"
    return {
        f"proc/{pid}/environ": environ,
        f"proc/{pid}/cgroup": cgroup,
        f"proc/{pid}/stat": f"{pid} (py thon) S {parent}" + " 0" * 17 + f" {pid} 0 0",
        f"proc/{pid}/status": status,
        f"proc/{pid}/statm": "900 500 100 0 0 0 0\n",
    }


def group(
    path: str, used: int, limit: str = "max", cache: int = 0, kills: int = 0, some_us: int = 0
) -> dict[str, str]:
    folder = f"sys/fs/cgroup{path}"
    return {
        f"{folder}/memory.current": f"{used}\n",
        f"{folder}/memory.max": f"{limit}\n",
        f"{folder}/memory.high": "max\n",
        f"{folder}/memory.swap.current": "0\n",
        f"{folder}/memory.stat": f"anon 5\nactive_file {cache}\ninactive_file 0\nslab_reclaimable 0\n",
        f"{folder}/memory.events": f"low 0\nhigh 3\nmax 0\noom 0\noom_kill {kills}\noom_group_kill 0\n",
        f"{folder}/memory.pressure": f"some avg10=0.00 total={some_us}\nfull avg10=0.00 total=0\n",
    }


def slurm_node(root: Path, used: int = 4 * GIB, **more: int) -> Path:
    files: dict[str, str] = {
        "proc/meminfo": "MemTotal: 104857600 kB\nMemFree: 1 kB\nMemAvailable: 52428800 kB\n"
    }
    for rank in range(2):
        files |= process(100 + rank, rank, f"0::{SLURM}/step_0/user/task_{rank}\n")
        files |= group(f"{SLURM}/step_0/user/task_{rank}", GIB)
    files |= group(f"{SLURM}/step_0/user", used) | group(f"{SLURM}/step_0", used)
    files |= group(SLURM, used, str(8 * GIB), **more) | group("/system.slice", used + GIB)
    return write(root, files)


def test_the_process_of_a_rank(tmp_path: Path) -> None:
    found, events = look(MemorySource(), slurm_node(tmp_path))
    assert events == []
    assert found[RANK0, "rss_bytes"] == (4096 * 1024, "ok") and found[RANK0, "anon_bytes"] == (2**20, "ok")
    assert found[RANK1, "locked_bytes"] == (65_536, "ok") and found[RANK1, "pinned_bytes"] == (131_072, "ok")
    assert found[RANK0, "memory_growth_bytes_per_s"] == (None, "too_few_looks")
    assert (RANK0, "helpers_count") not in found


def test_data_loaders_are_helpers_of_the_rank_that_began_them(tmp_path: Path) -> None:
    root = slurm_node(tmp_path)
    write(root, process(200, 0, f"0::{SLURM}/step_0/user/task_0\n", parent=100))
    write(root, process(201, 0, f"0::{SLURM}/step_0/user/task_0\n", parent=200))
    found, _ = look(MemorySource(), root)
    assert found[RANK0, "helpers_count"] == (2, "ok") and found[RANK0, "helpers_own_bytes"] == (
        2 * 400 * 4096,
        "ok",
    )
    assert found[RANK0, "rss_bytes"] == (4096 * 1024, "ok")


def test_the_jobs_group_is_the_one_with_the_limit(tmp_path: Path) -> None:
    found, _ = look(MemorySource(), slurm_node(tmp_path, cache=GIB))
    assert found[JOB, "cgroup_memory_used_bytes"] == (4 * GIB, "ok")
    assert found[JOB, "cgroup_memory_limit_bytes"] == (8 * GIB, "ok")
    assert found[JOB, "cgroup_memory_used_ratio"] == (0.5, "ok")
    assert found[JOB, "cgroup_memory_unreclaimable_bytes"] == (3 * GIB, "ok")
    assert found[JOB, "cgroup_memory_high_total"] == (3, "ok")
    assert (RANK0, "cgroup_memory_used_bytes") not in found


def test_kills_and_pressure_are_of_the_time_between_two_looks(tmp_path: Path) -> None:
    source = MemorySource()
    look(source, slurm_node(tmp_path, kills=2, some_us=0))
    found, (event,) = look(source, slurm_node(tmp_path, kills=5, some_us=3_000_000), 30.0)
    assert (event.entity, event.kind, event.severity, event.attributes["kills"]) == (
        JOB,
        "cgroup_oom_kill",
        "critical",
        3,
    )
    assert found[JOB, "cgroup_memory_pressure_some_ratio"] == (0.1, "ok")
    assert look(source, slurm_node(tmp_path, kills=5), 60.0)[1] == []


def test_a_leak_is_told_before_the_limit_and_page_cache_is_no_leak(tmp_path: Path) -> None:
    leak, cache = MemorySource(), MemorySource()
    for number in range(10):
        used = 4 * GIB + number * GIB // 4
        found, events = look(leak, slurm_node(tmp_path / "a", used), number * 60.0)
        quiet, calm = look(cache, slurm_node(tmp_path / "b", used, cache=number * GIB // 4), number * 60.0)
    assert [(e.entity, e.kind, e.severity, e.standing) for e in events] == [
        (JOB, "memory_limit_near", "critical", True)
    ]
    assert events[0].attributes == {"limit_bytes": 8 * GIB}
    left_s, quality = found[JOB, "memory_full_in_s"]
    assert quality == "ok" and left_s == pytest.approx(420.0)
    assert calm == [] and quiet[JOB, "memory_full_in_s"] == (None, "not_growing")
    assert found["host", "memory_full_in_s"] == (None, "not_growing")


def test_no_limit_is_unknown_and_never_zero(tmp_path: Path) -> None:
    files = process(100, 0, "0::/user.slice/session-1.scope\n")
    files |= group("/user.slice", 9) | group("/user.slice/session-1.scope", 5)
    found, _ = look(MemorySource(), write(tmp_path, files))
    assert found[JOB, "cgroup_memory_used_bytes"] == (5, "ok")
    for metric in ("cgroup_memory_limit_bytes", "cgroup_memory_used_ratio", "memory_full_in_s"):
        assert found[JOB, metric] == (None, "unlimited")


def test_ranks_in_pods_of_their_own_have_their_own_limits(tmp_path: Path) -> None:
    files: dict[str, str] = {}
    for rank in range(2):
        pod = f"kubepods-pod{rank}0000000_0000_0000_0000_000000000000.slice"
        path = f"/kubepods.slice/{pod}/cri-containerd-a.scope"
        files |= process(100 + rank, rank, f"0::{path}\n") | group(path, (rank + 1) * GIB, str(4 * GIB))
    files |= group("/kubepods.slice", 9 * GIB)
    found, _ = look(MemorySource(), write(tmp_path, files))
    assert found[RANK0, "cgroup_memory_used_ratio"] == (0.25, "ok")
    assert found[RANK1, "cgroup_memory_used_ratio"] == (0.5, "ok")
    assert found[JOB, "cgroup_memory_used_bytes"] == (9 * GIB, "ok")


def test_version_1(tmp_path: Path) -> None:
    folder = "sys/fs/cgroup/memory/slurm/uid_5/job_7"
    files = process(100, 0, "9:name=systemd:/x\n4:memory:/slurm/uid_5/job_7/step_0\n0::/\n") | {
        f"{folder}/memory.usage_in_bytes": "1000\n",
        f"{folder}/memory.limit_in_bytes": "4000\n",
        f"{folder}/memory.failcnt": "6\n",
        f"{folder}/memory.stat": "cache 5\ntotal_active_file 100\ntotal_inactive_file 200\ntotal_swap 7\n",
        f"{folder}/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n",
        "sys/fs/cgroup/memory/slurm/memory.usage_in_bytes": "2000\n",
        "sys/fs/cgroup/memory/slurm/memory.limit_in_bytes": "9223372036854771712\n",
    }
    found, _ = look(MemorySource(), write(tmp_path, files))
    assert found[JOB, "cgroup_memory_used_ratio"] == (0.25, "ok")
    assert found[JOB, "cgroup_memory_unreclaimable_bytes"] == (700, "ok")
    assert found[JOB, "cgroup_swap_used_bytes"] == (7, "ok")
    assert found[JOB, "cgroup_memory_oom_kill_total"] == (1, "ok") and found[
        JOB, "cgroup_memory_max_total"
    ] == (6, "ok")


def test_memory_high_is_a_limit_too(tmp_path: Path) -> None:
    root = slurm_node(tmp_path)
    write(root, {f"sys/fs/cgroup{SLURM}/memory.high": f"{6 * GIB}\n"})
    assert look(MemorySource(), root)[0][JOB, "cgroup_memory_limit_bytes"] == (6 * GIB, "ok")


@pytest.mark.parametrize(
    "text", ["0::/\n", "0::/../../other\n", "", "0:\n", "0::relative\n", "4:memory:/../x\n0::/y"]
)
def test_the_root_and_what_is_outside_of_sight_are_no_group(text: str) -> None:
    assert place_of(text) is None


def test_a_rank_that_ends_while_it_is_read_is_unknown(tmp_path: Path) -> None:
    root = slurm_node(tmp_path)
    (root / "proc/100/status").unlink()
    assert look(MemorySource(), root)[0][RANK0, "rss_bytes"] == (None, "not_available")


def test_a_node_without_ranks_tells_of_itself_only(tmp_path: Path) -> None:
    assert look(MemorySource(), tmp_path) == ({}, [])


def test_the_group_of_a_job_does_not_depend_on_the_order_of_its_ranks() -> None:
    places = [Place(2, f"/a/b/c{number}/d") for number in range(3)]
    assert job_place(places) == job_place(places[::-1]) == Place(2, "/a/b")
    assert job_place([Place(2, "/a"), Place(2, "/b")]) is None and job_place([]) is None


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=120), st.binary(max_size=200))
def test_garbage_gives_no_error_and_no_zero(tmp_path: Path, first: bytes, second: bytes) -> None:
    root = slurm_node(tmp_path)
    write(root, {f"sys/fs/cgroup{SLURM}/memory.max": first, f"sys/fs/cgroup{SLURM}/memory.stat": second})
    write(root, {"proc/100/status": second, "proc/101/cgroup": first, "proc/meminfo": second})
    for sample in MemorySource().read(Tree(root), 0.0).samples:
        assert sample.value is not None or sample.quality != "ok"
    text = second.decode("utf-8", "replace")
    for parser in (fields, stalled, status, memory, place_of):
        parser(text)
