"""Lustre's client: states of its connections in whichever files there are, evictions told once."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.sources.lustre import LustreSource, lustre_mounts, parse_import, parse_stats
from tests.collectors.sources.test_nvml_live import Live
from tests.collectors.sources.trees import look, write

OST = "osc/lfs-OST0003-osc-ffff8c1a2b3c4d00"
MDT = "mdc/lfs-MDT0000-mdc-ffff8c1a2b3c4d00"
DEBUG = "sys/kernel/debug/lustre"
T = "lustre/lfs-OST0003"
IMPORT = """import:
    name: lfs-OST0003-osc-ffff8c1a2b3c4d00
    target: lfs-OST0003_UUID
    state: {state}
    connect_flags: [ write_grant, server_lock, version ]
    import_flags: [ replayable, pingable ]
    connection:
       failover_nids: [ "10.0.0.7@o2ib", "10.0.0.8@o2ib" ]
       current_connection: "10.0.0.7@o2ib"
       connection_attempts: 3
       generation: 1
       in-progress_invalidations: 0
       idle: 3 sec
    rpcs:
       inflight: 12
       unregistering: 0
       timeouts: 2
       avg_waittime: 5311 usec
    service_estimates:
       services: 1 sec
       network: 1 sec
"""
STATE = "current_state: {state}\nstate_history:\n - [ 1699999000, CONNECTING ]\n - [ 1699999001, FULL ]\n"
EVICTED = " - [ {at}, EVICTED ]\n - [ 1700000300, FULL ]\n"
INFO = "71 1 0:51 / /mnt/lfs rw,relatime - lustre 10.0.0.1@o2ib:10.0.0.2@o2ib:/lfs/sub rw\n"


def test_a_connection_as_its_file_tells_it(tmp_path: Path) -> None:
    root = write(tmp_path, {f"{DEBUG}/{OST}/import": IMPORT.format(state="FULL")})
    reading = LustreSource().read(Live(root), 0.0)
    found = {sample.metric: (sample.value, sample.labels) for sample in reading.samples}
    assert found["import_up_count"] == (1, {"server": "10.0.0.7@o2ib"})
    assert found["rpc_in_flight_count"][0] == 12 and found["rpc_timeouts_total"][0] == 2
    assert found["rpc_wait_s"][0] == 0.005311 and found["connection_attempts_total"][0] == 3
    assert reading.events == []


@pytest.mark.parametrize("state", ["IDLE", "NEW", "FULL"])
def test_states_that_are_no_fault(tmp_path: Path, state: str) -> None:
    root = write(tmp_path, {f"proc/fs/lustre/{MDT}/state": STATE.format(state=state)})
    found, events = look(LustreSource(), root)
    assert found["lustre/lfs-MDT0000", "import_up_count"] == (1, "ok") and events == []


@pytest.mark.parametrize("state", ["DISCONN", "CONNECTING", "REPLAY_WAIT", "EVICTED", "RECOVER"])
def test_a_connection_that_is_down_stands(tmp_path: Path, state: str) -> None:
    root = write(tmp_path, {f"proc/fs/lustre/{OST}/import": IMPORT.format(state=state)})
    found, (event,) = look(LustreSource(), root)
    assert found[T, "import_up_count"] == (0, "ok")
    assert (event.kind, event.severity, event.standing) == ("lustre_import_down", "critical", True)
    assert dict(event.attributes) == {"server": "10.0.0.7@o2ib", "state": state}


def test_on_a_live_machine_one_look_is_not_enough(tmp_path: Path) -> None:
    root = write(tmp_path, {f"proc/fs/lustre/{OST}/import": IMPORT.format(state="CONNECTING")})
    source = LustreSource()
    assert source.read(Live(root), 0.0).events == []
    assert [e.kind for e in source.read(Live(root), 15.0).events] == ["lustre_import_down"]


def test_an_eviction_is_told_once_with_its_time(tmp_path: Path) -> None:
    path = f"{DEBUG}/{OST}/state"
    source = LustreSource()
    write(tmp_path, {path: STATE.format(state="FULL") + EVICTED.format(at=1_699_999_500)})
    assert source.read(Live(tmp_path), 0.0).events == []  # before this agent began
    again = EVICTED.format(at=1_699_999_500) + EVICTED.format(at=1_700_000_200)
    write(tmp_path, {path: STATE.format(state="FULL") + again})
    (event,) = source.read(Live(tmp_path), 15.0).events
    assert (event.entity, event.kind, event.t_ns) == (T, "lustre_evicted", 1_700_000_200 * 10**9)
    assert source.read(Live(tmp_path), 30.0).events == []


def test_a_recorded_node_tells_what_it_has_seen(tmp_path: Path) -> None:
    write(tmp_path, {f"{DEBUG}/{OST}/state": STATE.format(state="FULL") + EVICTED.format(at=5)})
    assert [e.kind for e in look(LustreSource(), tmp_path)[1]] == ["lustre_evicted"]


def test_what_a_mount_moves_is_of_its_mount_point(tmp_path: Path) -> None:
    stats = "snapshot_time 1.0 secs.nsecs\nread_bytes 10 samples [bytes] 1 4096 {0}\nopen 3 samples [regs]\n"
    path = f"{DEBUG}/llite/lfs-ffff8c1a2b3c4d00/stats"
    write(tmp_path, {path: stats.format(1_000), "proc/self/mountinfo": INFO})
    source = LustreSource()
    found, _ = look(source, tmp_path, 0.0)
    assert found == {("mount//mnt/lfs", "lustre_read_bytes_per_s"): (None, "first_sample")}
    write(tmp_path, {path: stats.format(16_000)})
    assert look(source, tmp_path, 15.0)[0] == {("mount//mnt/lfs", "lustre_read_bytes_per_s"): (1_000.0, "ok")}
    write(tmp_path, {path: stats.format(5)})
    assert look(source, tmp_path, 30.0)[0] == {("mount//mnt/lfs", "lustre_read_bytes_per_s"): (None, "reset")}


def test_a_file_system_that_is_mounted_twice_has_no_one_mount_point() -> None:
    assert lustre_mounts(INFO) == {"lfs": "/mnt/lfs"}
    assert lustre_mounts(INFO + INFO.replace("/mnt/lfs", "/mnt/other")) == {}


def test_a_node_without_lustre_says_nothing(tmp_path: Path) -> None:
    assert look(LustreSource(), tmp_path) == ({}, [])


def test_a_target_whose_files_say_nothing_is_unknown(tmp_path: Path) -> None:
    write(tmp_path, {f"{DEBUG}/{OST}/import": "import: garbage\n", f"{DEBUG}/osc/num_refs/import": "x"})
    assert look(LustreSource(), tmp_path) == ({(T, "import_up_count"): (None, "unreadable")}, [])


@given(st.text(max_size=400))
def test_garbage_gives_no_error(text: str) -> None:
    parse_import(text)
    parse_stats(text)
    lustre_mounts(text)
