"""The ingest bench runs a gateway, a pulse and a load, and says what it measured; no figure is asserted."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

CODE = """
import json
from clusterwatch.cli.benches.ingest import run
print(json.dumps(run(["--nodes=16", "--seconds=3", "--records=1000", "--pairs=1"])))
"""


@pytest.mark.stack
@pytest.mark.limit_s(300)
def test_says_what_gateway_and_pulse_cost_and_what_nodes_and_viewers_saw() -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CLUSTERWATCH_")}
    answer = subprocess.run(
        [sys.executable, "-c", CODE], env=environment, capture_output=True, text=True, timeout=240
    )
    assert answer.returncode == 0, answer.stderr
    figures = json.loads(answer.stdout.splitlines()[-1])
    assert figures["nodes"] == 16
    assert figures["blocks_sent"] > 0 and figures["live_frames_seen"] > 0
    measured = ("gateway_core_ratio", "ack_p99_s", "state_age_p99_s", "admission_s", "commit_records_per_s")
    assert all(figures[name] > 0 for name in measured)
