"""Faults injected into a simulated cluster, over the real wire to the incident: the truth's rank is named."""

from __future__ import annotations

import asyncio
import json
import time
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

FAULTS = ("p2p_lost@6", "cross_group_cycle@6", "rank_stuck@6", "op_mismatch@6", "rank_killed@6")
NAMED_WITHIN_S = 75.0


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


def look() -> dict[str, dict[str, Any]]:
    """One tick of detection; the diagnosis of each job that has an incident of its standing still."""
    now_ns = time.time_ns()
    for job_id in jobs.watched_jobs(now_ns).values_list("pk", flat=True):
        jobs.detect_job(job_id, now_ns)
    rows = Incident.objects.filter(fingerprint__endswith="/stopped").select_related("job")
    return {row.job.key: row.diagnosis for row in rows if row.job is not None}


def in_thread(function: Callable[[], Any]) -> Any:
    """Runs with a database connection of its own, which is closed again."""

    def call() -> Any:
        try:
            return function()
        finally:
            connection.close()

    return asyncio.to_thread(call)


def is_named(truth: dict[str, Any], said: dict[str, dict[str, Any]]) -> bool:
    found = said.get(truth["job"], {})
    return (
        found.get("verdict") in truth["acceptable_kinds"] and found["culprit_ranks"] == truth["culprit_ranks"]
    )


@pytest.mark.limit_s(200)
async def test_every_injected_fault_is_named_with_its_rank_and_the_healthy_jobs_with_none(
    token: str, tmp_path: Path
) -> None:
    gateway = Gateway(GatewayConfig(port=0))
    await gateway.start()
    truth_file = tmp_path / "truth.json"
    settings = Settings(
        "simulated", 512, 3, tmp_path, gateway.url, token=token, faults=FAULTS, truth=truth_file
    )
    try:
        async with living(settings):
            truths = json.loads(truth_file.read_bytes())["faults"]
            deadline, said = time.monotonic() + NAMED_WITHIN_S, {}
            while time.monotonic() < deadline and not all(is_named(truth, said) for truth in truths):
                said = await in_thread(look)
                await asyncio.sleep(0.9)
    finally:
        await gateway.stop()
    told = {
        truth["fault"]: (found["verdict"], found["culprit_ranks"])
        for truth in truths
        if (found := said.get(truth["job"]))
    }
    assert told == {truth["fault"]: (told[truth["fault"]][0], truth["culprit_ranks"]) for truth in truths}
    assert all(is_named(truth, said) for truth in truths), told
    assert set(said) == {truth["job"] for truth in truths}, "a healthy job has an incident"
