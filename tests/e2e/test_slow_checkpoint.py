"""A host whose checkpoints are written slowly: named on the real stack by real torch processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from examples.run import Example, Plan
from tests.e2e.conftest import Figures
from tests.e2e.product import Product, wait_for
from tests.e2e.slow_storage import SlowStorage
from tests.e2e.watch import job_id_of

pytestmark = [pytest.mark.e2e, pytest.mark.torch, pytest.mark.long, pytest.mark.limit_s(300)]
"""Long: as for a slow rank, two cores carry one job of eight processes and no second one."""

USUAL, SLOW = (0, 1), (4, 5)
"""The four ranks that write (replica 0 of both stages), on host-a and on host-c."""
EVERY = 5
SLOW_BYTES_PER_S = 200_000
"""A checkpoint of a rank is some hundred kB: seconds instead of milliseconds."""
LOST_S = 0.5
NAMED_WITHIN_S = 150.0


def test_names_the_host_whose_checkpoints_are_slow(
    product: Product, tmp_path: Path, figures: Figures
) -> None:
    plan = Plan(state_dir=product.folder, folder=tmp_path, arguments=[f"--checkpoint-every={EVERY}"])
    usual, slow = ([tmp_path / f"checkpoint-{rank}.pt" for rank in ranks] for ranks in (USUAL, SLOW))
    with SlowStorage(usual), SlowStorage(slow) as storage, Example(plan) as example:
        job_id = job_id_of(product, example)
        example.wait_for_step(8 * EVERY)
        assert storage.taken_bytes > 0, "checkpoints go through the pipes"
        assert product.incidents(job_id) == []
        storage.bytes_per_s = SLOW_BYTES_PER_S

        def named() -> dict[str, Any] | None:
            found = [one["diagnosis"] for one in product.incidents(job_id)]
            # A pipe alone is not: only what the throttle costs counts here.
            costly = (one for one in found if one["verdict"] == "slow_storage" and one["lost_s"] > LOST_S)
            return next(costly, None)

        diagnosis = wait_for(named, NAMED_WITHIN_S, "the host with the slow checkpoints is named")
        assert diagnosis["culprit_ranks"] == list(SLOW)
        assert "host-c" in diagnosis["summary"]
        figures.append(f"slow_checkpoint_dir {diagnosis['summary']} ({storage.taken_bytes} bytes written)")
        others = [one["diagnosis"] for one in product.incidents(job_id)]
        assert {one["verdict"] for one in others} == {"slow_storage"}
        example.wait_for_step(example.step(0) + 2)
