"""Known bugs in the answer about an incident, beside the verdict and never in it."""

from __future__ import annotations

import pytest

from tests.api.conftest import Caller
from tests.web.seed import Seeded
from tests.web.seed_drift import rank_facts, tell

pytestmark = pytest.mark.stack


def test_an_incident_tells_rows_with_their_source_and_keeps_its_verdict(
    seeded: Seeded, as_token: Caller
) -> None:
    seeded.incident.diagnosis |= {"verdict": "all_joined_not_finished", "findings": []}
    seeded.incident.save(update_fields=["diagnosis"])
    tell(seeded.nodes[0], rank_facts(seeded.job.key, 0, nccl_version="2.28.7"))
    answer = as_token().get(f"/api/v1/incidents/{seeded.incident.pk}").json()
    rows = {row["id"]: row for row in answer["known_bugs"]["rows"]}
    row = rows["nccl-proxy-order-hang"]
    assert (row["fits"], row["sure"], row["component"]) == ("yes", "likely", "nccl")
    assert row["source"].startswith("NVIDIA/nccl") and "NCCL 2.28.7 has it" in row["why"]
    assert answer["diagnosis"] == seeded.incident.diagnosis
