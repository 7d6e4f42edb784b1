"""Mounts: rates and latencies of the interval, stalls, requests of FUSE, expected mounts that are gone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.sources.base import Reading
from collectors.sources.mounts import MountsSource
from collectors.sources.mountstats import mounts, nfs_mounts
from collectors.sources.tree import Tree

CASES = Path(__file__).parents[4] / "shared" / "cases" / "telemetry"


def stats(
    reads: int = 100,
    sends: int = 100,
    receives: int = 100,
    app: int = 0,
    server: int = 0,
    *,
    path: str = "/data",
) -> str:
    return f"""device filer.example:/x mounted on {path} with fstype nfs4 statvers=1.1
\topts:\trw,vers=4.2,nconnect=2
\tage:\t100
\timpl_id:\tname='a
 b',domain='c',date='0,0'
\tbytes:\t0 {app} 0 0 0 {server} 0 0
\txprt:\ttcp 771 0 1 0 0 {sends} {receives} 0 1 2 32 40 55
\txprt:\ttcp 772 0 1 0 0 7 7 0 1 2 32 40 55
\tper-op statistics
\t        READ: {reads} {reads} 0 10 {reads * 1000} {reads} {reads * 2} {reads * 4} 0
\t       WRITE: 0 0 0 0 0 0 0 0
"""


def look(source: MountsSource, root: Path, text: str, at_s: float, **files: str) -> Reading:
    for name, content in {"proc/self/mountstats": text, **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)
    return source.read(Tree(root), at_s)


def values(reading: Reading) -> dict[str, tuple[float | None, str]]:
    return {sample.metric: (sample.value, sample.quality) for sample in reading.samples}


def test_an_operation_of_which_nothing_changed_has_no_latency_and_a_rate_of_zero(tmp_path: Path) -> None:
    source = MountsSource()
    look(source, tmp_path, stats(reads=100), 0.0)
    found = values(look(source, tmp_path, stats(reads=100), 1.0))
    assert (found["read_ops_per_s"], found["read_bytes_per_s"]) == ((0.0, "ok"), (0.0, "ok"))
    assert found["read_errors_total"] == (0, "ok")
    for metric in ("read_rtt_s", "read_exec_s", "read_queue_s"):
        assert found[metric] == (None, "no_ops")
    again = values(look(source, tmp_path, stats(reads=110), 2.0))
    assert again["read_ops_per_s"] == (10.0, "ok")
    reset = values(look(source, tmp_path, stats(reads=5), 3.0))
    assert reset["read_ops_per_s"] == (None, "reset")


def test_rates_and_latencies_are_of_the_interval(tmp_path: Path) -> None:
    source = MountsSource()
    assert values(look(source, tmp_path, stats(), 0.0))["read_rtt_s"] == (None, "first_sample")
    found = values(look(source, tmp_path, stats(reads=200, sends=202, receives=200), 10.0))
    assert found["read_ops_per_s"] == (10.0, "ok")
    assert found["read_bytes_per_s"] == (10_000.0, "ok")
    assert found["read_rtt_s"] == (0.002, "ok")
    assert found["write_rtt_s"] == (None, "no_ops")
    assert found["rpc_in_flight_count"] == (2, "ok")
    assert found["read_errors_total"] == (0, "ok")
    assert "write_errors_total" not in found


def test_a_mount_made_anew_is_a_reset(tmp_path: Path) -> None:
    source = MountsSource()
    look(source, tmp_path, stats(), 0.0)
    assert values(look(source, tmp_path, stats(reads=5), 10.0))["read_ops_per_s"] == (None, "reset")


@pytest.mark.parametrize(
    ("second", "stalls"),
    [
        (stats(sends=140), True),
        (stats(sends=100), False),
        (stats(reads=101, sends=140), False),
        (stats(app=9_000_000), True),
        (stats(app=9_000_000, server=1), False),
    ],
)
def test_a_stall_is_what_waits_while_nothing_finishes(tmp_path: Path, second: str, stalls: bool) -> None:
    source = MountsSource()
    look(source, tmp_path, stats(), 0.0)
    events = look(source, tmp_path, second, 60.0).events
    assert [event.kind for event in events] == ["mount_stall"] * stalls
    if stalls:
        assert events[0].entity == "mount//data"
        assert events[0].attributes == {"server": "filer.example"}


def test_a_stall_is_told_once(tmp_path: Path) -> None:
    source = MountsSource()
    look(source, tmp_path, stats(), 0.0)
    told = [len(look(source, tmp_path, stats(sends=140), float(at)).events) for at in range(1, 20)]
    assert sum(told) == 1


@pytest.mark.parametrize(
    ("first", "second", "stalls"), [("3", "3", True), ("3", "2", False), ("0", "0", False)]
)
def test_fuse_hangs_where_the_same_requests_wait(
    tmp_path: Path, first: str, second: str, stalls: bool
) -> None:
    source = MountsSource()
    info = {"proc/self/mountinfo": "66 21 0:61 / /mnt/a\\040b rw shared:5 - fuse.x x rw\n"}
    waiting = "sys/fs/fuse/connections/61/waiting"
    look(source, tmp_path, "", 0.0, **info, **{waiting: first})
    reading = look(source, tmp_path, "", 60.0, **info, **{waiting: second})
    assert values(reading)["fuse_waiting_count"] == (int(second), "ok")
    assert [event.entity for event in reading.events] == ["mount//mnt/a b"] * stalls


def test_an_expected_mount_that_is_gone_is_told_and_an_unread_list_is_unknown(tmp_path: Path) -> None:
    toml = {"etc/clusterwatch/agent.toml": '[[mount]]\npath = "/data"\n[[mount]]\npath = "/gone"\n'}
    unread = look(MountsSource(), tmp_path, "", 0.0, **toml)
    assert values(unread)["mounted_count"] == (None, "not_available")
    assert not unread.events
    info = {"proc/self/mountinfo": "67 21 0:63 / /data rw - nfs4 f:/x rw\n"}
    events = look(MountsSource(), tmp_path, "", 0.0, **toml, **info).events
    assert [(event.kind, event.entity) for event in events] == [("mount_missing", "mount//gone")]


def test_transports_of_rdma_with_more_numbers_are_summed() -> None:
    text = stats().replace("tcp", "rdma").replace("40 55", "40 55 1 2 3 4 5 6 7 8 9 10 11 12")
    (mount,) = nfs_mounts(text)
    assert (mount.transports, mount.sends, mount.receives) == (2, 107, 107)


@given(st.text(max_size=300))
def test_garbage_gives_no_error(text: str) -> None:
    list(mounts(text))
    nfs_mounts("device f:/x mounted on /d with fstype nfs\n" + text)


@pytest.mark.skipif(not CASES.exists(), reason="no cases beside this checkout")
def test_gives_the_expected_lines_of_the_sample_node() -> None:
    source = MountsSource()
    source.read(Tree(CASES / "node-a/t0"), 0.0)
    reading = source.read(Tree(CASES / "node-a/t1"), 60.0)
    found = {(s.entity, s.metric): (s.value, s.quality) for s in reading.samples}
    wanted = [json.loads(line) for line in (CASES / "expected.jsonl").read_text().splitlines()]
    wanted = [line for line in wanted if line["entity"].startswith("mount/")]
    assert wanted
    assert not reading.events
    for line in wanted:
        assert found[line["entity"], line["metric"]] == (line["value"], line["quality"])
