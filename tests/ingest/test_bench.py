"""The ingest bench runs and says what it measured; its figures are never asserted."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.stack import Stack

CODE = """
import json
from clusterwatch.ingest.bench import run
print(json.dumps(run(["--nodes=4", "--seconds=1", "--records=1000"])))
"""


@pytest.mark.stack
def test_says_its_figures_beside_their_baseline(stack: Stack) -> None:
    answer = subprocess.run(
        [sys.executable, "-c", CODE], env=os.environ, capture_output=True, text=True, timeout=110
    )
    assert answer.returncode == 0, answer.stderr
    figures = json.loads(answer.stdout.splitlines()[-1])
    assert figures["nodes"] == 4
    measured = [name for name in figures if name.endswith(("_us", "_per_s", "_bytes", "_per_record"))]
    assert len(measured) >= 9
    assert all(figures[name] > 0 for name in measured)
