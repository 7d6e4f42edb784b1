"""`bench store` measures what it says, at a size that takes seconds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from clusterwatch.cli.benches import store_peers
from clusterwatch.cli.benches.query_signals import Signals
from clusterwatch.cli.benches.store_ours import Plan

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.stack
def test_a_small_run_prints_its_figures_as_the_last_line(tmp_path: Path) -> None:
    size = ["--gpus", "64", "--minutes", "2", "--seconds", "1", "--peer-gpus", "64", "--peer-minutes", "2"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CLUSTERWATCH_")}
    done = subprocess.run(
        [sys.executable, "-m", "clusterwatch.cli.main", "bench", "store", *size, "--peers", str(tmp_path)],
        capture_output=True, text=True, timeout=100, env=environment, cwd=ROOT, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    figures = json.loads(done.stdout.splitlines()[-1])
    assert figures["full"]["values"] == 64 * 20 * 60 * 2
    assert 0.5 < figures["full"]["raw_block_bytes_per_value"] < 4
    assert figures["full"]["cpu_s_per_million_values"] > 0
    assert figures["gateway"]["blocks"] == 64 and figures["gateway"]["ack_p99_s"] > 0
    beside = figures["beside_peers"]
    assert beside["victoria_metrics"] == beside["prometheus"] == "not installed"


def test_peers_get_every_value_once_in_both_ways() -> None:
    plan = Plan("peers", 64, 2, 29_900_000)
    by_minute = sum(len(body) for body in store_peers._minutes(plan))
    by_second = sum(len(body) for body in store_peers._seconds(plan))
    sample_bytes = 19  # tag and length, tag and double, tag and a time of seven bytes
    assert by_minute > plan.values * sample_bytes
    assert by_second > 64 * 20 * store_peers.SECONDS_ALONE * sample_bytes
    assert store_peers._of_minute(Signals(8, plan.first_minute), plan.first_minute).shape == (
        len(store_peers._heads(plan)), 60,
    )  # fmt: skip


def test_a_size_that_is_none_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "clusterwatch.cli.main", "bench", "store", "--gpus", "12"],
        capture_output=True, text=True, timeout=60, cwd=ROOT, check=False,
    )  # fmt: skip
    assert done.returncode == 1 and "multiple of 8" in done.stderr
