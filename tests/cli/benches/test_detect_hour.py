"""`bench detect --hour` finds the rank that becomes slow, and its state does not grow with the steps."""

from __future__ import annotations

import pytest

from clusterwatch.cli.benches import detect, detect_hour
from clusterwatch.ops.errors import OpsError


def test_the_rank_that_becomes_slow_is_the_only_one_and_the_state_does_not_grow() -> None:
    found = detect_hour.run(128, 420)
    assert (found["slow_ranks"], found["slow_right"]) == (1, True)
    assert 360 < found["seen_step"] <= 372
    assert found["stored_max_bytes"] < 1.02 * detect_hour.run(128, 60)["stored_max_bytes"]


def test_ranks_that_fill_no_stages_are_refused() -> None:
    with pytest.raises(OpsError, match="multiple of 64"):
        detect.run(["--hour", "--ranks", "100"])
