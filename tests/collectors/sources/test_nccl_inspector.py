"""NCCL Inspector's logs: what each rank's collectives took, within bounds of bytes, names and classes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.sources import nccl_inspector
from collectors.sources.base import Reading
from collectors.sources.nccl_inspector import READABLE, NcclInspectorSource
from collectors.sources.nccl_inspector_lines import CLASSES_MAX, size_class, window
from tests.collectors.sources.test_nvml_live import Live
from tests.collectors.sources.test_scheduler_env import rank
from tests.collectors.sources.trees import write

RANK0 = "job/7/rank/0"
MOUNTS = "29 1 8:1 / / rw - ext4 /dev/sda rw\n30 1 0:9 / /net rw - nfs4 server:/ rw\n"
MIB = 2**20


def head(
    at_s: float, ranks: int = 8, name: str | None = None, ident: str = "0x9f4b2c11aa03d7"
) -> dict[str, Any]:
    named = {} if name is None else {"comm_name": name}
    return {
        "header": {"id": ident, **named, "rank": 0, "n_ranks": ranks, "nnodes": 2},
        "metadata": {
            "inspector_output_format_version": "v4.0", "git_rev": "abc", "hostname": "node-1", "pid": 77,
            "rec_mechanism": "nccl_profiler_interface", "dump_timestamp_us": int(1.76e15 + at_s * 1e6),
        },
    }  # fmt: skip


def coll(
    at_s: float,
    exec_us: int = 1_000,
    size: int = 64 * MIB,
    what: str = "AllReduce",
    bus: Any = 50.0,
    **more: Any,
) -> str:
    perf = {
        "coll": what, "coll_sn": 4, "coll_msg_size_bytes": size, "coll_exec_time_us": exec_us,
        "coll_timing_source": "kernel_gpu", "coll_algobw_gbs": 40.0, "coll_busbw_gbs": bus,
    }  # fmt: skip
    return json.dumps({**head(at_s, **more), "coll_perf": perf}) + "\n"


def p2p(at_s: float, exec_us: int, what: str = "Send") -> str:
    perf = {
        "p2p": what, "p2p_sn": 1, "p2p_peer": 1, "p2p_msg_size_bytes": MIB, "p2p_exec_time_us": exec_us,
        "p2p_timing_source": "kernel_gpu", "p2p_algobw_gbs": 10.0, "p2p_busbw_gbs": 10.0,
    }  # fmt: skip
    return json.dumps({**head(at_s, 2), "p2p_perf": perf}) + "\n"


def node(root: Path, text: str | bytes = "", mount: int = 29, on: str = "1", ranks: int = 1) -> list[Path]:
    """A node whose ranks have their Inspector logs open; returns the logs."""
    logs = []
    for number in range(ranks):
        pid = 4_000 + number
        write(root, rank(pid, number, number, NCCL_INSPECTOR_ENABLE=on))
        name = f"dump/node-1-pid{7 + number}.log"
        write(root, {name: text, f"proc/{pid}/mountinfo": MOUNTS})
        write(root, {f"proc/{pid}/fdinfo/33": f"pos:\t0\nflags:\t02\nmnt_id:\t{mount}\n"})
        (root / f"proc/{pid}/fd").mkdir()
        (root / f"proc/{pid}/fd/9").symlink_to("../../../dump/other.txt")
        (root / f"proc/{pid}/fd/33").symlink_to(f"../../../{name}")
        logs.append(root / name)
    return logs


def append(log: Path, text: str | bytes) -> None:
    with log.open("ab") as file:
        file.write(text.encode() if isinstance(text, str) else text)


def told(reading: Reading, entity: str = RANK0) -> dict[tuple[str, ...], tuple[float | None, str]]:
    """(metric, values of its labels) -> (value, quality)."""
    return {
        (one.metric, *one.labels.values()): (one.value, one.quality)
        for one in reading.samples
        if one.entity == entity
    }


BIG = ("AllReduce", "8", "32MiB_256MiB")


def test_rates_times_and_bandwidths_are_of_the_lines_between_two_looks(tmp_path: Path) -> None:
    (log,), source, tree = node(tmp_path, coll(0.0)), NcclInspectorSource(), Live(tmp_path)
    first = told(source.read(tree, 0.0))
    assert first["nccl_calls_per_s", *BIG] == (None, "first_sample")
    assert first["nccl_exec_s", *BIG] == (0.001, "ok")
    append(log, coll(5.0, 1_000) + coll(5.0, 3_000, bus=70.0) + p2p(10.0, 500))
    found = told(source.read(tree, 15.0))
    assert found["nccl_calls_per_s", *BIG] == (0.2, "ok")  # two in the 10 s of the rank's own clock
    assert found["nccl_exec_s", *BIG] == (0.002, "ok")
    assert found["nccl_exec_max_s", *BIG] == (0.003, "ok")
    assert found["nccl_algorithm_bandwidth_gbps", *BIG] == (320.0, "ok")  # gigabits
    assert found["nccl_bus_bandwidth_gbps", *BIG] == (520.0, "ok")
    assert found["nccl_exec_s", "Send", "2", "512KiB_4MiB"] == (0.0005, "ok")
    assert found[READABLE,] == (1, "ok")


def test_what_is_not_seen_any_more_is_no_speed_and_is_forgotten(tmp_path: Path) -> None:
    (log,), source, tree = node(tmp_path, coll(0.0)), NcclInspectorSource(), Live(tmp_path)
    source.read(tree, 0.0)
    append(log, p2p(10.0, 500))
    found = told(source.read(tree, 15.0))
    assert found["nccl_calls_per_s", *BIG] == (0.0, "ok")
    assert found["nccl_exec_s", *BIG] == (None, "no_ops")
    silent = told(source.read(tree, 30.0))
    assert {silent[metric, *BIG] for metric in ("nccl_calls_per_s", "nccl_exec_s")} == {
        (None, "no_new_lines")
    }
    append(log, p2p(301.0, 500))
    assert ("nccl_exec_s", *BIG) not in told(source.read(tree, 301.0))


def test_groups_of_one_size_are_told_apart_by_their_names_only(tmp_path: Path) -> None:
    text = coll(0.0, name="tensor") + coll(0.0, name="data") + coll(0.0, name="unknown") + coll(0.0)
    node(tmp_path, text + coll(0.0, ident="0x1"))
    found = told(NcclInspectorSource().read(Live(tmp_path), 0.0))
    assert [key[1:] for key in found if key[0] == "nccl_exec_s"] == [(*BIG, "tensor"), (*BIG, "data"), BIG]


def test_a_line_that_is_not_ended_is_read_with_its_rest(tmp_path: Path) -> None:
    line = coll(5.0, 2_000)
    (log,), source, tree = node(tmp_path, coll(0.0)), NcclInspectorSource(), Live(tmp_path)
    source.read(tree, 0.0)
    append(log, line[:100])
    assert told(source.read(tree, 15.0))["nccl_exec_s", *BIG] == (None, "no_new_lines")
    append(log, line[100:])
    assert told(source.read(tree, 30.0))["nccl_exec_s", *BIG] == (0.002, "ok")


def test_lines_of_verbose_mode_are_long(tmp_path: Path) -> None:
    line = json.loads(coll(0.0))
    event = {"channel_id": 1, "kernel_start_ts": 1760000000100300, "kernel_stop_ts": 1760000000100300}
    line["coll_perf"]["event_trace_ts"] = {"coll_start_ts": 1, "kernel_events": [event] * 64}
    text = json.dumps(line) + "\n"
    assert 5_000 < len(text) < nccl_inspector.LINE_MAX_BYTES
    (log,), source, tree = node(tmp_path, coll(0.0)), NcclInspectorSource(), Live(tmp_path)
    source.read(tree, 0.0)
    append(log, text * 2 + coll(0.0)[:-1] + "x" * nccl_inspector.LINE_MAX_BYTES + "\n")
    assert told(source.read(tree, 15.0))["nccl_exec_s", *BIG] == (0.001, "ok")


def test_a_flood_is_read_in_part_and_the_rest_is_told_with_its_bytes(tmp_path: Path) -> None:
    (log,), source, tree = node(tmp_path, coll(0.0)), NcclInspectorSource(), Live(tmp_path)
    source.read(tree, 0.0)
    flood = coll(9.0) * 3_000 + coll(10.0)
    append(log, flood)
    reading = source.read(tree, 15.0)
    (event,) = reading.events
    skipped = event.attributes["skipped_bytes"]
    assert (event.kind, event.severity, event.entity) == ("nccl_inspector_skipped", "info", RANK0)
    assert isinstance(skipped, int) and len(flood) - nccl_inspector.LOOK_MAX_BYTES <= skipped < len(flood)
    rate, quality = told(reading)["nccl_calls_per_s", *BIG]
    assert quality == "sampled" and rate == pytest.approx(300, rel=0.02)
    append(log, flood.replace("0000000", "1000000", 1))
    assert not source.read(tree, 30.0).events  # summed until it is told again
    append(log, flood)
    (event,) = source.read(tree, 330.0).events
    assert event.attributes["skipped_bytes"] > 1.5 * skipped  # type: ignore[operator]


def test_all_ranks_together_read_no_more_than_the_look_allows(tmp_path: Path) -> None:
    logs, source, tree = node(tmp_path, coll(0.0), ranks=4), NcclInspectorSource(), Live(tmp_path)
    source.read(tree, 0.0)
    for log in logs:
        append(log, coll(10.0) * 1_000)
    reading = source.read(tree, 15.0)
    grown = sum(log.stat().st_size for log in logs) - 4 * len(coll(0.0))
    skipped = [int(str(event.attributes["skipped_bytes"])) for event in reading.events]
    assert len(skipped) == 4 and 0 <= grown - sum(skipped) <= nccl_inspector.LOOK_MAX_BYTES


def test_classes_beyond_the_bound_are_one(tmp_path: Path) -> None:
    text = "".join(coll(0.0, 1_000 + n, ranks=n + 1) for n in range(CLASSES_MAX + 6))
    node(tmp_path, text)
    source, tree = NcclInspectorSource(), Live(tmp_path)
    for at_s in (0.0, 15.0):
        found = told(source.read(tree, at_s))
        assert len([key for key in found if key[0] == "nccl_exec_s"]) == CLASSES_MAX + 1
    assert told(NcclInspectorSource().read(tree, 0.0))["nccl_exec_max_s", "other"] == (0.001_069, "ok")


def test_classes_of_all_ranks_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl_inspector, "CLASSES_MAX", 3)
    node(tmp_path, coll(0.0, ranks=2) + coll(0.0, ranks=4), ranks=3)
    samples = NcclInspectorSource().read(Live(tmp_path), 0.0).samples
    kinds = [(one.entity, tuple(one.labels.values())) for one in samples if one.metric == "nccl_exec_s"]
    assert len([one for one in kinds if one[1] != ("other",)]) == 3


def test_what_the_plugin_dropped_makes_rates_doubtful(tmp_path: Path) -> None:
    (log,), source, tree = node(tmp_path, coll(0.0)), NcclInspectorSource(), Live(tmp_path)
    source.read(tree, 0.0)
    stats = {"coll_records": 1, "coll_dropped_since_last_dump": 7, "p2p_dropped_since_last_dump": 2}
    append(log, json.dumps({**head(10.0), "dump_stats": stats}) + "\n" + coll(10.0))
    found = told(source.read(tree, 15.0))
    assert found["nccl_inspector_dropped_count",] == (9, "ok")
    assert found["nccl_calls_per_s", *BIG] == (0.1, "sampled")


def test_a_network_file_is_not_touched(tmp_path: Path) -> None:
    (log,) = node(tmp_path, coll(0.0), mount=30)
    log.unlink()
    assert told(NcclInspectorSource().read(Live(tmp_path), 0.0)) == {
        (READABLE,): (None, "network_file_system")
    }


@pytest.mark.parametrize("on", ["0", "", "off"])
def test_a_rank_without_the_plugin_is_not_looked_at(tmp_path: Path, on: str) -> None:
    node(tmp_path, coll(0.0), on=on)
    assert NcclInspectorSource().read(Live(tmp_path), 0.0) == Reading([], [])


def test_a_log_that_is_opened_later_is_found(tmp_path: Path) -> None:
    node(tmp_path, coll(0.0))
    link = tmp_path / "proc/4000/fd/33"
    link.rename(tmp_path / "hidden")
    source, tree = NcclInspectorSource(), Live(tmp_path)
    assert told(source.read(tree, 0.0)) == {(READABLE,): (None, "no_log")}
    (tmp_path / "hidden").rename(link)
    assert told(source.read(tree, 15.0)) == {(READABLE,): (None, "no_log")}  # looked for once a minute
    assert told(source.read(tree, 60.0))[READABLE,] == (1, "ok")


def test_a_file_that_was_rotated_away_goes_on_and_one_that_was_cut_off_begins_anew(tmp_path: Path) -> None:
    (log,), source, tree = node(tmp_path, coll(0.0) * 2), NcclInspectorSource(), Live(tmp_path)
    source.read(tree, 0.0)
    moved = log.rename(log.with_name("node-1-pid7.log.1"))
    link = tmp_path / "proc/4000/fd/33"
    link.unlink()
    link.symlink_to("../../../dump/node-1-pid7.log.1")
    append(moved, coll(10.0, 4_000))
    assert told(source.read(tree, 15.0))["nccl_exec_s", *BIG] == (0.004, "ok")
    hole = b"\0" * (3 * len(coll(0.0)) + 7)  # the plugin does not append: a hole at the start
    moved.write_bytes(hole + coll(20.0, 5_000).encode())
    assert told(source.read(tree, 30.0))["nccl_exec_s", *BIG] == (0.005, "ok")


def test_another_process_of_the_same_rank_begins_anew(tmp_path: Path) -> None:
    node(tmp_path, coll(0.0))
    source, tree = NcclInspectorSource(), Live(tmp_path)
    source.read(tree, 0.0)
    node(tmp_path / "again", coll(5.0, 7_000))
    found = told(source.read(Live(tmp_path / "again"), 60.0))
    assert found["nccl_exec_s", *BIG] == (0.007, "ok")
    assert found["nccl_calls_per_s", *BIG] == (None, "first_sample")


def test_a_clock_that_was_set_back_gives_no_rate(tmp_path: Path) -> None:
    (log,), source, tree = node(tmp_path, coll(100.0)), NcclInspectorSource(), Live(tmp_path)
    source.read(tree, 0.0)
    append(log, coll(50.0))
    assert told(source.read(tree, 15.0))["nccl_calls_per_s", *BIG] == (None, "reset")
    append(log, coll(60.0))
    assert told(source.read(tree, 30.0))["nccl_calls_per_s", *BIG] == (0.1, "ok")


def test_numbers_that_json_does_not_know_cost_the_bandwidth_only(tmp_path: Path) -> None:
    text = coll(0.0, 0, bus="nan") + coll(0.0).replace(": 50.0", ": inf").replace('bus_gbs": ', 'bus_gbs":')
    node(tmp_path, text.replace(": inf", ":inf"))
    found = told(NcclInspectorSource().read(Live(tmp_path), 0.0))
    assert found["nccl_exec_s", *BIG] == (0.0005, "ok")
    assert found["nccl_bus_bandwidth_gbps", *BIG] == (None, "not_told")


HOSTILE = [
    "", "{}", "[]", "null", "{", "[" * 50_000, '{"header": 3}', "\0\0", '{"header": {}, "coll_perf": {}}',
    coll(0.0, 10**30), coll(0.0, -1), coll(0.0, size=2**70), coll(0.0, ranks=0), coll(0.0, ranks=10**400),
    coll(0.0, what="\u202e<b>"), coll(0.0, what="A" * 500), coll(0.0).replace("1000", "1e999"),
]  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_lines_cost_themselves(tmp_path: Path, text: str) -> None:
    node(tmp_path, f"{text.strip()}\n{coll(0.0)}")
    found = told(NcclInspectorSource().read(Live(tmp_path), 0.0))
    assert [value for key, value in found.items() if key[0] == "nccl_exec_s"] == [(0.001, "ok")]
    assert found[READABLE,] == (1, "ok")


def test_a_log_of_garbage_is_unreadable(tmp_path: Path) -> None:
    node(tmp_path, b"\xff\xfe\n" * 50)
    assert told(NcclInspectorSource().read(Live(tmp_path), 0.0)) == {(READABLE,): (None, "unreadable")}


def test_a_name_with_control_characters_is_none(tmp_path: Path) -> None:
    node(tmp_path, coll(0.0, name="a\u202eb") + coll(0.0, name="n" * 5_000))
    labels = [one.labels.get("group", "") for one in NcclInspectorSource().read(Live(tmp_path), 0.0).samples]
    assert max(map(len, labels)) == 64 and all(label.isprintable() for label in labels)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=10,
)


@given(st.data())
def test_any_value_in_any_field_gives_no_error(data: st.DataObject) -> None:
    line = json.loads(data.draw(st.sampled_from([coll(0.0), p2p(0.0, 1)])))
    part = data.draw(st.sampled_from(sorted(line)))
    line[part][data.draw(st.sampled_from(sorted(line[part])))] = data.draw(JSON)
    found = window([json.dumps(line).encode(errors="replace"), b"", coll(0.0).encode()])
    assert 1 <= found.lines <= 2
    for one in found.classes.values():
        assert 0 <= one.exec_s / one.count <= one.exec_max_s + 1e-9


@given(st.lists(st.binary(max_size=200), max_size=20))
def test_any_bytes_give_no_error(lines: list[bytes]) -> None:
    assert window(lines).lines <= len(lines)


@given(st.integers(0, 2**63 - 1))
def test_each_size_has_one_class_and_larger_sizes_no_smaller_one(size: int) -> None:
    order = [size_class(2.0**n) for n in range(64)]
    assert order.index(size_class(size)) <= order.index(size_class(size + 1))
