"""Logs of OCP drives: spare blocks, backup power, and the drive's own count of slow requests."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.sources import disks, disks_ocp
from collectors.sources.base import SourceEvent
from collectors.sources.disks import DisksSource
from collectors.sources.disks_latency import Latency
from collectors.sources.tree import Tree
from tests.collectors.sources.trees import look, write

SMART = "commands/nvme_ocp_smart-add-log_nvme4.json"
LATENCY = "commands/nvme_ocp_latency-monitor-log_nvme4.json"
DISK = "disk/nvme4"
WRITTEN = "Physical media units written"
OLD: dict[str, Any] = {
    "Physical media units written": {"hi": 0, "lo": 81_604_378_624},
    "Physical media units read": {"hi": 1, "lo": 2},
    "Bad user nand blocks - Raw": 12,
    "Bad user nand blocks - Normalized": 97,
    "Bad system nand blocks - Raw": 281_474_976_710_655,
    "Bad system nand blocks - Normalized": 65_535,
    "XOR recovery count": 0,
    "Uncorrectable read error count": 3,
    "Number of Thermal throttling events": 2,
    "Current throttling status": 1,
    "PCIe correctable error count": 9,
    "Incomplete shutdowns": 4,
    "Percent free blocks": 55,
    "Capacitor health": 143,
    "End to end detected errors": 0,
    "Log page version": 3,
}
NEW: dict[str, Any] = {
    "physical_media_units_written": {"hi": 0, "lo": 81_604_378_624},
    "bad_user_nand_blocks_raw": 12,
    "uncorrectable_read_errors": 3,
    "thermal_throttling_events": 2,
    "percent_free_blocks": 55,
    "capacitor_health": 143,
    "pcie_correctable_errors": 9,
}


def rows(kind: str, values: dict[int, tuple[Any, Any, Any]], rest: Any) -> dict[str, Any]:
    return {
        f"{kind}: Bucket {bucket}": dict(
            zip(("Read", "Write", "Trim"), values.get(bucket, (rest, rest, rest)), strict=True)
        )
        for bucket in range(4)
    }


def latency(
    counts: dict[int, tuple[Any, Any, Any]],
    static: dict[int, tuple[Any, Any, Any]] | None = None,
    **more: Any,
) -> dict[str, Any]:
    """A log whose thresholds are 10, 50, 200 and 1000 ms."""
    thresholds = {
        f"Active Threshold {letter}": ms for letter, ms in zip("ABCD", (10, 50, 200, 1_000), strict=True)
    }
    stamps = {2: ("NA", "2026-11-30D|04:05:06:789", "NA")}
    return {
        "Feature Status": 7, "Active Bucket Timer": 600, "Active Bucket Timer Threshold": 10_080,
        **thresholds,
        **rows("Active Bucket Counter", counts, 0),
        **rows("Active Latency Time Stamp", stamps, "NA"),
        **rows("Active Measured Latency", {2: (0, 412, 0)}, 0),
        **rows("Static Bucket Counter", static or {}, 0),
        "Log Page Version": 4, **{name.replace("_", " "): value for name, value in more.items()},
    }  # fmt: skip


def kinds(events: list[SourceEvent]) -> list[str]:
    return [event.kind for event in events]


@pytest.mark.parametrize("said", [OLD, NEW], ids=["spelling of 2.3", "spelling 2 of 2.13"])
def test_both_spellings_of_the_additional_log(tmp_path: Path, said: dict[str, Any]) -> None:
    found, events = look(DisksSource(), write(tmp_path, {SMART: json.dumps(said)}))
    assert found[DISK, "media_written_bytes_total"] == (81_604_378_624, "ok")
    assert found[DISK, "bad_user_blocks_total"] == (12, "ok")
    assert found[DISK, "uncorrectable_reads_total"] == (3, "ok")
    assert found[DISK, "thermal_throttling_events_total"] == (2, "ok")
    assert found[DISK, "pcie_correctable_errors_total"] == (9, "ok")
    assert found[DISK, "free_blocks_ratio"] == (0.55, "ok")
    assert found[DISK, "capacitor_health_ratio"] == (1.43, "ok")
    assert events == []


def test_halves_of_a_counter_and_what_a_drive_does_not_have(tmp_path: Path) -> None:
    found, _ = look(DisksSource(), write(tmp_path, {SMART: json.dumps(OLD)}))
    assert found[DISK, "media_read_bytes_total"] == (2**64 + 2, "ok")
    assert found[DISK, "bad_system_blocks_total"] == (None, "not_available")
    assert found[DISK, "bad_system_blocks_health_ratio"] == (None, "not_available")
    assert found[DISK, "bad_user_blocks_health_ratio"] == (0.97, "ok")


@pytest.mark.parametrize(
    ("field", "value", "metric", "quality"),
    [
        ("Capacitor health", 65_535, "capacitor_health_ratio", "not_available"),
        ("Percent free blocks", 240, "free_blocks_ratio", "out_of_range"),
        ("Current throttling status", 9, "thermal_throttling_level_count", "out_of_range"),
        ("Number of Thermal throttling events", 255, "thermal_throttling_events_total", "saturated"),
        (WRITTEN, {"hi": True, "lo": "x"}, "media_written_bytes_total", "not_available"),
        (WRITTEN, {"hi": -1, "lo": 2**70, "value": -3}, "media_written_bytes_total", "unreadable"),
    ],
)  # fmt: skip
def test_values_that_say_nothing_are_null(
    tmp_path: Path, field: str, value: Any, metric: str, quality: str
) -> None:
    found, events = look(DisksSource(), write(tmp_path, {SMART: json.dumps(OLD | {field: value})}))
    assert found[DISK, metric] == (None, quality)
    assert events == []


@pytest.mark.parametrize(("health", "is_failed"), [(0, True), (1, False), (100, False)])
def test_used_up_backup_power_stands(tmp_path: Path, health: int, is_failed: bool) -> None:
    root = write(tmp_path, {SMART: json.dumps(OLD | {"Capacitor health": health})})
    _, events = look(DisksSource(), root)
    assert [(e.entity, e.kind, e.severity, e.standing) for e in events] == (
        [(DISK, "nvme_plp_failed", "critical", True)] if is_failed else []
    )


def labelled(source: DisksSource, root: Path, at_s: float) -> dict[tuple[str, ...], tuple[float | None, str]]:
    samples = source.read(Tree(root), at_s).samples
    return {
        (one.metric, *one.labels.values()): (one.value, one.quality) for one in samples if one.entity == DISK
    }


def test_buckets_thresholds_and_the_slowest_request(tmp_path: Path) -> None:
    root = write(tmp_path, {LATENCY: json.dumps(latency({0: (5, 6, 0), 2: (0, 3, 0)}))})
    found = labelled(DisksSource(), root, 0.0)
    assert found["latency_monitor_count",] == (1, "ok")
    assert found["latency_threshold_s", "2"] == (0.2, "ok")
    assert found["latency_bucket_count", "write", "2"] == (3, "ok")
    assert found["latency_bucket_count", "read", "0"] == (5, "ok")
    assert found["latency_slowest_s", "write", "2"] == (0.412, "ok")
    assert found["latency_stamp_s", "write", "2"] == (1_796_011_506.789, "ok")
    assert ("latency_slowest_s", "read", "0") not in found  # that bucket keeps no time


def events_of(root: Path, source: DisksSource, said: dict[str, Any], at_s: float) -> list[SourceEvent]:
    return look(source, write(root, {LATENCY: json.dumps(said)}), at_s)[1]


def test_slow_requests_since_the_look_before_stand_until_there_are_none(tmp_path: Path) -> None:
    source = DisksSource()
    assert events_of(tmp_path, source, latency({2: (9, 9, 9), 3: (1, 1, 1)}), 0.0) == []  # nobody knows when
    (first,) = events_of(tmp_path, source, latency({2: (9, 11, 9), 3: (2, 1, 1)}), 300.0)
    assert (first.entity, first.kind, first.severity, first.standing) == (
        DISK, "nvme_latency_high", "warning", True,
    )  # fmt: skip
    assert first.message == "nvme4 was slow: 1 reads, 2 writes took longer than 200 ms since the look before"
    (second,) = events_of(tmp_path, source, latency({2: (70, 11, 9), 3: (2, 1, 1)}), 600.0)
    assert second.attributes == first.attributes  # so that it is not told again
    assert events_of(tmp_path, source, latency({0: (99, 0, 0), 2: (70, 11, 9), 3: (2, 1, 1)}), 900.0) == []


@pytest.mark.parametrize(
    ("counts", "static", "timer", "slow"),
    [
        ((0, 0, 0), (9, 9, 9), 5, ""),  # moved, and nothing came
        ((0, 0, 0), (11, 9, 9), 5, "2 reads"),  # came just before
        ((30, 0, 0), (9, 9, 9), 5, "30 reads"),  # came since, and more than were before
        ((4, 0, 0), (0, 0, 0), 605, "4 reads"),  # all counts were set back
    ],
)
def test_counts_that_the_drive_moved_are_no_news(
    tmp_path: Path, counts: tuple[int, int, int], static: tuple[int, int, int], timer: int, slow: str
) -> None:
    source = DisksSource()
    events_of(tmp_path, source, latency({2: (9, 9, 9)}), 0.0)
    events = events_of(tmp_path, source, latency({2: counts}, {2: static}, Active_Bucket_Timer=timer), 300.0)
    assert kinds(events) == (["nvme_latency_high"] if slow else [])
    assert all(slow in event.message for event in events)


def test_a_monitor_that_is_off_says_that_and_no_more(tmp_path: Path) -> None:
    source = DisksSource()
    events_of(tmp_path, source, latency({2: (9, 9, 9)}), 0.0)
    off = latency({2: (20, 20, 20)}, Feature_Status=6)
    assert events_of(tmp_path, source, off, 300.0) == []
    assert labelled(source, tmp_path, 600.0) == {("latency_monitor_count",): (0, "ok")}


@pytest.mark.parametrize(
    ("stamp", "told"),
    [
        ("1970-01-01D|00:00:12:000", (None, "clock_not_set")),
        ("2026-13-01D|00:00:12:000", (None, "unreadable")),
        ("9" * 5_000, (None, "unreadable")),
        (17, (None, "unreadable")),
    ],
)
def test_stamps_that_are_no_time(tmp_path: Path, stamp: Any, told: tuple[None, str]) -> None:
    said = latency({2: (0, 1, 0)}) | {"Active Latency Time Stamp: Bucket 2": {"Write": stamp}}
    found = labelled(DisksSource(), write(tmp_path, {LATENCY: json.dumps(said)}), 0.0)
    assert found["latency_stamp_s", "write", "2"] == told


@pytest.mark.parametrize(
    "text", ["", "[]", "{", "null", "[" * 50_000, '{"Feature Status": 1e400}', "9" * 9_000]
)
def test_garbage_in_one_log_costs_that_log_only(tmp_path: Path, text: str) -> None:
    root = write(tmp_path, {LATENCY: text, SMART: json.dumps(OLD)})
    found, events = look(DisksSource(), root)
    assert found[DISK, "latency_monitor_count"] == (None, "unreadable")
    assert found[DISK, "free_blocks_ratio"] == (0.55, "ok") and events == []


class Live(Tree):
    def __init__(self, drives: int = 2) -> None:
        super().__init__()
        self._drives = drives

    def list(self, name: str) -> list[str]:
        return [f"nvme{n}" for n in range(self._drives)] if name == "sys/class/nvme" else []


def asking(monkeypatch: pytest.MonkeyPatch, answers: dict[str, bytes | OSError]) -> list[tuple[str, str]]:
    """What was asked: (log, drive)."""
    asked: list[tuple[str, str]] = []

    def output(_: Tree, __: str, argv: list[str], *___: object) -> bytes:
        log = argv[2] if argv[1] == "ocp" else argv[1]
        asked.append((log, argv[3] if argv[1] == "ocp" else argv[-1]))
        said = answers.get(log, OSError(errno.EIO, "NVMe status: Invalid Log Page"))
        if isinstance(said, OSError):
            raise said
        return said

    monkeypatch.setattr(disks, "output", output)
    monkeypatch.setattr(disks_ocp, "output", output)
    return asked


def test_one_question_a_look_and_both_kinds_have_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    said = json.dumps(OLD).encode()
    answers: dict[str, bytes | OSError] = {
        "smart-log": b"{}",
        "smart-add-log": said,
        "latency-monitor-log": b"{}",
    }
    asked, source = asking(monkeypatch, answers), DisksSource()
    for number in range(35):
        before = len(asked)
        samples = source.read(Live(), 10.0 * number).samples
        assert len(asked) - before <= 1
    assert len(set(asked[:6])) == 6  # three logs of two drives, each once
    assert asked[6:] == asked[:5]  # from 300 s on in the same order
    assert {one.entity for one in samples if one.metric == "free_blocks_ratio"} == {
        "disk/nvme0",
        "disk/nvme1",
    }


def test_many_drives_are_all_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, source = asking(monkeypatch, {"smart-log": b"{}"}), DisksSource()
    for number in range(270):
        source.read(Live(64), 10.0 * number)
    assert {drive for log, drive in asked if log == "smart-add-log"} == {f"/dev/nvme{n}" for n in range(64)}


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOENT])
def test_a_drive_without_the_logs_is_asked_once_an_hour_and_not_told_of(
    monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    answer = OSError(error, "no such log")
    asked, source = (
        asking(monkeypatch, {"smart-add-log": answer, "latency-monitor-log": answer}),
        DisksSource(),
    )
    metrics: set[str] = set()
    for number in range(361):
        metrics |= {one.metric for one in source.read(Live(1), 10.0 * number).samples}
    assert [one[0] for one in asked if one[0] != "smart-log"].count("smart-add-log") == 1
    source.read(Live(1), 3_630.0)
    assert [one[0] for one in asked if one[0] != "smart-log"].count("smart-add-log") == 2
    assert not metrics & {spec.name for spec in disks_ocp.OCP_METRICS}


def test_a_drive_that_answered_and_then_does_not_is_null_with_its_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers: dict[str, bytes | OSError] = {
        "smart-add-log": json.dumps(OLD | {"Capacitor health": 0}).encode()
    }
    asking(monkeypatch, answers)
    source = DisksSource()
    for at_s in (0.0, 10.0, 20.0):
        reading = source.read(Live(1), at_s)
    assert kinds(list(reading.events)) == ["nvme_plp_failed"]
    answers["smart-add-log"] = TimeoutError(errno.ETIMEDOUT, "no answer")
    for at_s in (330.0, 340.0, 350.0):
        reading = source.read(Live(1), at_s)
    told = {one.metric: (one.value, one.quality) for one in reading.samples}
    assert told["free_blocks_ratio"] == (None, "etimedout")
    assert list(reading.events) == []


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=30),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(st.tuples(st.sampled_from(sorted(latency({}))), JSON), max_size=6))
def test_any_value_in_any_field_of_the_monitor_gives_no_error(changes: list[tuple[str, Any]]) -> None:
    drive = Latency()
    drive.told("nvme4", latency({2: (1, 1, 1)}))
    for _ in range(2):
        for sample in drive.told("nvme4", latency({2: (2, 2, 2)}) | dict(changes)).samples:
            assert (sample.value is None) == (sample.quality != "ok")
