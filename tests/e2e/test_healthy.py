"""Healthy jobs that look slow for a while: nobody is paged."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.run import RESTART_STEP, Example, Plan
from tests.e2e.conftest import Figures
from tests.e2e.product import Product
from tests.e2e.watch import job_id_of

pytestmark = [pytest.mark.e2e, pytest.mark.torch, pytest.mark.limit_s(240)]

SCENARIOS = {
    "slow_first_step": 20,
    "evaluation": 70,
    "slow_checkpoint": 70,
    "reinit": 80,
    "elastic_restart": RESTART_STEP + 15,
}
"""scenario -> the step at which everything slow about it lies behind"""


@pytest.mark.parametrize("scenario", list(SCENARIOS))
def test_pages_nobody(scenario: str, product: Product, tmp_path: Path, figures: Figures) -> None:
    plan = Plan(state_dir=product.folder, scenario=scenario, folder=tmp_path)
    with Example(plan) as example:
        job_id = job_id_of(product, example)
        if scenario == "elastic_restart":
            example.wait_for_step(RESTART_STEP, timeout_s=100)
            while example.attempt == 0:
                example.poll()
        example.wait_for_step(SCENARIOS[scenario], timeout_s=180)
        incidents = product.incidents(job_id)
        paged = [i for i in incidents if i["opened_at"]]
        assert paged == [], [i["summary"] for i in paged]
        figures.append(f"{scenario:16s} paged 0, suspected {len(incidents)}")
