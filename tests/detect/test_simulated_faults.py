"""Faults injected into a simulated cluster, over the real wire to the incident: the truth's rank is named."""

from __future__ import annotations

import asyncio
import json
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
from django.db import connection

from clusterwatch.accounts.services import create_token
from clusterwatch.detect import jobs
from clusterwatch.detect.scene import _rosters
from clusterwatch.fleet.services import ensure_cluster
from clusterwatch.incidents.models import Incident
from clusterwatch.ingest.hub import Gateway, GatewayConfig
from clusterwatch.simulate import start
from clusterwatch.simulate.kept import Settings
from clusterwatch.store import partitions

HANGS = ("p2p_lost@6", "cross_group_cycle@6", "rank_stuck@6", "op_mismatch@6", "rank_killed@6")
OTHERS = (
    "symmetric_stall@6", "gpu_off_bus@6", "hbm_error@6", "nic_down@6", "agent_dead:speech-encoder/0@6",
    "agent_lagging:retrieval-encoder/3@6", "clock_stepped:moe-ablation/3@6",
)  # fmt: skip
TOLD_WITHIN_S = 75.0


@pytest.fixture
def token(transactional_db: None, valkey: redis.Redis) -> str:
    """An enrolment token of the simulated cluster, over empty tables."""
    partitions.ensure_ahead()
    ensure_cluster("simulated", simulated=True)
    _rosters.clear()
    return create_token("enrolment", "ingest", cluster="simulated")[1]


@asynccontextmanager
async def living(settings: Settings) -> AsyncIterator[None]:
    stop = asyncio.Event()
    task = asyncio.create_task(start.cluster(settings).run(stop))
    try:
        yield
    finally:
        stop.set()
        await task


def look() -> dict[str, list[dict[str, Any]]]:
    """One tick of detection; the diagnoses of each job that has incidents."""
    now_ns = time.time_ns()
    for job_id in jobs.watched_jobs(now_ns).values_list("pk", flat=True):
        jobs.detect_job(job_id, now_ns)
    said: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for incident in Incident.objects.select_related("job"):
        said[incident.job.key if incident.job else ""].append(incident.diagnosis)
    return said


def in_thread(function: Callable[[], Any]) -> Any:
    """Runs with a database connection of its own, which is closed again."""

    def call() -> Any:
        try:
            return function()
        finally:
            connection.close()

    return asyncio.to_thread(call)


def is_told(truth: dict[str, Any], said: dict[str, list[dict[str, Any]]]) -> bool:
    """The right verdict with the right ranks, and nothing else; of a job that is well, nothing."""
    told = said.get(truth["job"], [])
    return len(told) == 1 and all(
        found["verdict"] in truth["acceptable_kinds"] and found["culprit_ranks"] in truth["acceptable"]
        for found in told
    )


@pytest.mark.limit_s(200)
@pytest.mark.parametrize("faults", [HANGS, OTHERS], ids=["program", "parts"])
async def test_every_injected_fault_is_told_with_its_ranks_and_of_healthy_jobs_nothing(
    token: str, tmp_path: Path, faults: tuple[str, ...]
) -> None:
    gateway = Gateway(GatewayConfig(port=0))
    await gateway.start()
    file = tmp_path / "truth.json"
    settings = Settings("simulated", 512, 3, tmp_path, gateway.url, token=token, faults=faults, truth=file)
    try:
        async with living(settings):
            truths = json.loads(file.read_bytes())["faults"]
            broken = [truth for truth in truths if truth["kind"] != "no_fault"]
            deadline, said = time.monotonic() + TOLD_WITHIN_S, {}
            while time.monotonic() < deadline and not all(is_told(truth, said) for truth in broken):
                said = await in_thread(look)
                await asyncio.sleep(0.9)
    finally:
        await gateway.stop()
    assert [truth["fault"] for truth in broken if not is_told(truth, said)] == [], said
    assert set(said) == {truth["job"] for truth in broken}, "a healthy job has an incident"
