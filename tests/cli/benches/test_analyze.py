"""The made job of the bench is one that the engine judges right, so its times are of real work."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterwatch.analysis import Observation, diagnose
from clusterwatch.cli.benches.analyze import write_job
from clusterwatch.readers import folder


@pytest.mark.parametrize(("ranks", "entries", "frames"), [(16, 30, 0), (16, 30, 5), (8, 25, 0)])
def test_the_made_job_lacks_the_last_call_of_one_rank(
    tmp_path: Path, ranks: int, entries: int, frames: int
) -> None:
    size = write_job(tmp_path, ranks, entries, frames, missing=5)
    assert size == sum(path.stat().st_size for path in tmp_path.iterdir())
    rings = list(folder.traces(tmp_path))
    assert {len(trace.entries) for trace in rings} == {entries, entries - 1}
    assert {len(stack) for trace in rings for stack in trace.stacks or ((),)} == {frames}
    worst = diagnose(Observation(windows=folder.read(tmp_path).windows)).worst
    assert (worst.verdict, worst.culprit_ranks) == ("missing_rank", (5,))
