"""Blind spots of a cluster are one incident each; where nothing is known they neither come nor go."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import redis

from clusterwatch.detect import health, health_blind, tasks
from clusterwatch.fleet.models import Cluster, Slot
from clusterwatch.incidents.models import Incident
from clusterwatch.jobs.models import Job
from clusterwatch.store import hot, hot_writes
from clusterwatch.store import valkey as keys
from tests.detect.fake_job import SECOND, FakeJob, forget_rosters


@pytest.fixture
def job(db: None, valkey: redis.Redis) -> Iterator[FakeJob]:
    forget_rosters()
    yield FakeJob()
    forget_rosters()


def look(job: FakeJob, after_s: int = 5) -> list[str]:
    job.now_ns += after_s * SECOND
    job.write()
    return health_blind.look(job.cluster.pk, job.now_ns)


def only() -> Incident:
    return Incident.objects.get()


def test_agents_silent_all_over_are_one_incident_and_no_fault_of_any_node(job: FakeJob) -> None:
    assert look(job) == []
    for index in range(3):
        job.freeze_host(index)
    assert look(job) == [] and look(job, 6) == ["agents_silent"]
    assert health.look(job.cluster.pk, job.now_ns) == 0
    incident = only()
    assert (incident.state, incident.node_id, incident.fault_class) == ("suspected", None, "blind")
    assert incident.diagnosis["coverage"] == {"expected": 4, "reported": 1, "stale": 3, "truncated": 0}
    look(job, 31)
    assert only().state == "open"
    for index in range(3):
        job.regain_agent(index)
    assert look(job) == [] and only().state == "resolved"


def test_gateways_that_write_nothing_are_one_incident_until_one_writes(job: FakeJob) -> None:
    look(job)
    job.gateway_alive = False
    assert look(job, 10) == [] and look(job, 6) == ["ingest_down"]
    assert look(job, 31) == ["ingest_down"] and only().state == "open"
    job.gateway_alive = True
    assert look(job) == [] and only().state == "resolved"


def test_where_nothing_is_known_nothing_begins_and_nothing_ends(job: FakeJob) -> None:
    look(job)
    job.gateway_alive = False
    look(job, 20)
    keys.client().flushall()
    assert look(job, 60) == [] and only().state == "suspected"


def test_gpus_that_stall_without_a_hook_are_suspected_and_page_nobody(job: FakeJob) -> None:
    Job.objects.filter(pk=job.job.pk).update(ended_at="2026-01-01T00:00Z", state="ended")
    Slot.objects.bulk_create(
        Slot(cluster=job.cluster, number=number, node=node, gpu_index=0)
        for number, node in enumerate(job.nodes)
    )
    Cluster.objects.filter(pk=job.cluster.pk).update(slot_count=4)

    def frame(power_w: float, moved: float) -> list[str]:
        job.now_ns += 60 * SECOND
        values = {
            "gpu_util_ratio": 1.0, "gpu_power_w": power_w, "nic_tx_mib_per_s": moved, "nic_rx_mib_per_s": 0,
        }  # fmt: skip
        seen = np.full(4, job.now_ns, np.int64)
        arrays = {
            (job.cluster.pk, name): hot.MetricArray(np.full(4, value, np.float32), seen)
            for name, value in values.items()
        }
        hot_writes.write_gateway("frames", job.now_ns, hot.empty_nodes(), {}, arrays)
        return look(job, 0)

    assert [frame(600, 9_000) for _ in range(3)] == [[], [], []]
    assert [frame(200, 0) for _ in range(5)][-1] == ["stalled_unnamed"]
    assert (only().state, only().threshold_source) == ("suspected", "pages nobody")
    hot.save_unhooked(job.cluster.pk, b"damaged")
    assert frame(600, 9_000) == [] and only().state == "resolved"


def test_the_task_looks_at_it_too(job: FakeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    monkeypatch.setattr(health_blind, "look", lambda cluster_id, now_ns: seen.append(cluster_id))
    assert tasks.look_at_cluster_health(job.cluster.pk) and seen == [job.cluster.pk]
