"""A rank that works slower, and one that is fed late: named on the real stack by real torch processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from examples.run import Example, Plan
from tests.e2e.product import Product, wait_for
from tests.e2e.watch import job_id_of

pytestmark = [pytest.mark.e2e, pytest.mark.torch, pytest.mark.long, pytest.mark.limit_s(300)]
"""Long: beside another stack of eight processes on two cores, others are slow as well."""

RANK = 5
NAMED_WITHIN_S = 120.0
"""A bound that catches "never", not a figure: these machines are shared."""
EXPECTED = {"slow": {"slow_gpu", "slow_host"}, "slow_loader": {"slow_dataloader"}}


@pytest.mark.parametrize("kind", EXPECTED)
def test_names_the_slow_rank_while_the_job_goes_on(kind: str, product: Product, tmp_path: Path) -> None:
    plan = Plan(state_dir=product.folder, fault=kind, fault_rank=RANK, fault_step=45, folder=tmp_path)

    def named(diagnosis: dict[str, Any]) -> bool:
        return diagnosis["verdict"] in EXPECTED[kind] and diagnosis["culprit_ranks"] == [RANK]

    with Example(plan) as example:
        job_id = job_id_of(product, example)
        example.wait_for_step(35)
        assert product.incidents(job_id) == []
        example.wait_for_fault()

        def told() -> dict[str, Any] | None:
            return next((one for one in product.incidents(job_id) if named(one["diagnosis"])), None)

        incident = wait_for(told, NAMED_WITHIN_S, "the slow rank is named")
        # Processes without a GPU are suspected only: their processors are everybody's.
        assert incident["state"] == "suspected" and incident["diagnosis"]["lost_s"] > 0.1
        step = example.step(RANK)
        example.wait_for_step(step + 3)
