"""The given nodes through the command: every expected line is printed, exactly."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

CASES = Path(__file__).parents[3] / "shared" / "cases" / "telemetry"
FREE = {"source"}
"""Fields that are examples."""


def printed(*options: str) -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-m", "collectors", "once", *options, "--stdout"],
        capture_output=True, timeout=120, check=True,
    )  # fmt: skip
    return [json.loads(text) for text in done.stdout.decode("utf-8").splitlines()]


def bare(line: dict[str, Any]) -> dict[str, Any]:
    """A line without what may differ: the time of samples, and of events that are not of the kernel's log."""
    dated = line["type"] == "event" and line["kind"] not in ("job", "rank_map")
    return {key: value for key, value in line.items() if key not in FREE and (dated or key != "ts_ns")}


@pytest.fixture(scope="module")
def node() -> Path:
    if not CASES.is_dir():
        pytest.skip("the given nodes are not here")
    return CASES / "node-a"


def test_every_expected_line_is_printed(node: Path) -> None:
    found = printed("--root", f"{node}/t0", "--root", f"{node}/t1", "--interval-s", "60")
    found = [bare(line) for line in found]
    wanted = [json.loads(text) for text in (CASES / "expected.jsonl").read_text().splitlines()]
    assert [line for line in wanted if bare(line) not in found] == []


def test_one_snapshot_has_no_changes_and_all_its_reasons(node: Path) -> None:
    lines = printed("--root", f"{node}/t1")
    assert all(
        line["value"] is not None or line["quality"] != "ok" for line in lines if line["type"] == "sample"
    )
    changes = [line for line in lines if line.get("metric", "").endswith(("_delta_count", "_per_s"))]
    gauges = ("nvlink_throughput_bytes_per_s",)
    assert {line["value"] for line in changes if line["metric"] not in gauges} == {None}
    assert [line["code"] for line in lines if line.get("kind") == "xid"] == [94]


def test_no_value_is_told_twice_and_no_secret_at_all(node: Path) -> None:
    lines = printed("--root", f"{node}/t0", "--root", f"{node}/t1", "--interval-s", "60")
    keys = [
        (one["entity"], one["metric"], json.dumps(one.get("labels")))
        for one in lines
        if one["type"] == "sample"
    ]
    assert len(keys) == len(set(keys))
    assert "do-not-print-this" not in json.dumps(lines)
