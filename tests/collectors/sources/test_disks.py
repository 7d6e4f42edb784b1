"""Disks: averages of the interval, kernels with fewer columns, SMART in the spellings of its tools."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.sources import disks
from collectors.sources.disks import DisksSource, disk_rows
from collectors.sources.tree import Tree

CASES = Path(__file__).parents[4] / "shared" / "cases" / "telemetry"
Found = dict[tuple[str, str], tuple[float | None, str]]


def look(source: DisksSource, root: Path, at_s: float) -> Found:
    reading = source.read(Tree(root), at_s)
    return {(s.entity, s.metric): (s.value, s.quality) for s in reading.samples}


def two_looks(root: Path, first: str, second: str) -> Found:
    source = DisksSource()
    (root / "proc").mkdir()
    (root / "proc/diskstats").write_text(first)
    look(source, root, 0.0)
    (root / "proc/diskstats").write_text(second)
    return look(source, root, 10.0)


def test_latency_is_of_the_requests_finished_in_between(tmp_path: Path) -> None:
    found = two_looks(
        tmp_path,
        "8 0 sda 10 0 100 50 20 0 200 100 0 500 0\n8 1 sda1 1 0 1 1 1 0 1 1 0 1 0\n",
        "8 0 sda 10 0 100 50 30 0 300 140 2 1500 0\n8 1 sda1 1 0 1 1 1 0 1 1 0 1 0\n",
    )
    assert found["disk/sda", "write_await_s"] == (0.004, "ok")
    assert found["disk/sda", "read_await_s"] == (None, "no_ops")
    assert found["disk/sda", "write_bytes_per_s"] == (5_120.0, "ok")
    assert found["disk/sda", "busy_ratio"] == (0.1, "ok")
    assert found["disk/sda", "in_flight_count"] == (2, "ok")
    assert ("disk/sda", "flush_await_s") not in found
    assert not any(entity == "disk/sda1" for entity, _ in found)


def test_counters_that_fell_are_a_reset(tmp_path: Path) -> None:
    row = "8 0 sda {0} 0 100 50 20 0 200 100 0 500 0\n"
    found = two_looks(tmp_path, row.format(10), row.format(9))
    assert found["disk/sda", "read_bytes_per_s"] == (None, "reset")


@pytest.mark.parametrize(
    ("text", "temperature", "written"),
    [
        ('{"temperature": 309, "data_units_written": "2,210.450"}', (36, "ok"), (2_210_450, "ok")),
        ('{"temperature": 0}', (None, "out_of_range"), (None, "not_available")),
        ("not json", (None, "unreadable"), (None, "unreadable")),
    ],
)
def test_smart_of_a_drive(
    tmp_path: Path, text: str, temperature: tuple[int | None, str], written: tuple[int | None, str]
) -> None:
    (tmp_path / "commands").mkdir()
    (tmp_path / "commands/nvme_smart-log_nvme2.json").write_text(text)
    found = look(DisksSource(), tmp_path, 0.0)
    assert found["disk/nvme2", "temperature_c"] == temperature
    assert found["disk/nvme2", "data_units_written_total"] == written


@given(st.text(max_size=300))
def test_garbage_gives_no_error(text: str) -> None:
    disk_rows(text)


@pytest.mark.skipif(not CASES.exists(), reason="no cases beside this checkout")
def test_gives_the_expected_lines_of_the_sample_node() -> None:
    source = DisksSource()
    look(source, CASES / "node-a/t0", 0.0)
    found = look(source, CASES / "node-a/t1", 60.0)
    wanted = [json.loads(line) for line in (CASES / "expected.jsonl").read_text().splitlines()]
    wanted = [line for line in wanted if line["entity"].startswith("disk/")]
    assert wanted
    for line in wanted:
        assert found[line["entity"], line["metric"]] == (line["value"], line["quality"])


@pytest.mark.parametrize(
    ("mask", "severity", "told"),
    [
        (0, None, None),
        (2, "warning", ["too hot or too cold"]),
        (9, "critical", ["spare blocks run out", "read-only"]),
    ],
)
def test_a_drive_that_warns_of_itself_is_told_while_it_does(
    tmp_path: Path, mask: int, severity: str | None, told: list[str] | None
) -> None:
    (tmp_path / "commands").mkdir()
    (tmp_path / "commands/nvme_smart-log_nvme3.json").write_text(json.dumps({"critical_warning": mask}))
    events = DisksSource().read(Tree(tmp_path), 0.0).events
    assert [(e.severity, e.attributes["warnings"]) for e in events] == ([(severity, told)] if told else [])
    assert all((e.entity, e.kind, e.standing) == ("disk/nvme3", "nvme_error", True) for e in events)


def test_one_live_drive_is_asked_at_a_look_and_each_again_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    class Live(Tree):
        def list(self, name: str) -> list[str]:
            return ["nvme0", "nvme1", "nvme-fabrics"] if name == "sys/class/nvme" else []

    def output(_: Tree, __: str, argv: list[str], *___: object) -> bytes:
        asked.append(argv[-1])
        return b'{"temperature": 309}'

    monkeypatch.setattr(disks, "output", output)
    source = DisksSource()
    for at_s in (0.0, 1.0, 2.0, 299.0, 300.0):
        found = source.read(Live(), at_s).samples
    assert asked == ["/dev/nvme0", "/dev/nvme1", "/dev/nvme0"]
    assert {s.entity for s in found if s.metric == "percent_used_ratio"} == {"disk/nvme0", "disk/nvme1"}
