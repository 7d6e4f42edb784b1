"""The query bench in small: it generates, checks every answer, measures, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from clusterwatch.cli.benches import peers, query
from clusterwatch.ops.errors import OpsError


def bench(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "clusterwatch.cli.main",
        "bench",
        "query",
        "--folder",
        str(folder),
        *words,
    ]
    return subprocess.run(command, env=os.environ, capture_output=True, text=True, timeout=170)


@pytest.mark.stack
@pytest.mark.limit_s(180)
def test_checks_its_answers_says_its_figures_and_deletes_its_data(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    folder = Path(os.environ["CLUSTERWATCH_STATE_DIR"]) / "bench"
    folder.mkdir(mode=0o711, exist_ok=True)
    answer = bench(
        folder, "--gpus=64", "--hours=1", "--raw-minutes=11", "--rounds=5", "--peers", str(tmp_path)
    )
    assert answer.returncode == 0, answer.stderr
    figures = json.loads(answer.stdout.splitlines()[-1])
    assert figures["answers_checked"] is True
    assert (figures["gpus"], figures["rollup_hours"], figures["raw_minutes_of_all"]) == (64, 1, 11)
    measured = [name for name in figures if name.endswith("_ms")]
    assert len(measured) >= 40 and all(figures[name] > 0 for name in measured if "cpu" not in name)
    assert figures["peers"]["prometheus"] == figures["peers"]["victoria_metrics"] == "not installed"
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--gpus=12"], "multiple of 8"),
        (["--hours=0"], "--hours"),
        (["--raw-minutes=5"], "--raw-minutes"),
        (["--rounds=1"], "at least 5"),
        (["--hours=168", "--gpus=8000000"], "GiB"),
    ],
)
def test_a_plan_that_cannot_be_is_refused_before_anything_starts(words: list[str], said: str) -> None:
    with pytest.raises(OpsError, match=said):
        query.run(words)


def test_a_peer_is_looked_for_in_the_folder_or_on_the_path(tmp_path: Path) -> None:
    peer = peers.PEERS[1]
    assert peers.find_binary(peer, str(tmp_path)) is None
    binary = tmp_path / "prometheus"
    binary.write_text("#!/bin/sh\n")
    binary.chmod(0o755)
    assert peers.find_binary(peer, str(tmp_path)) == str(binary)
