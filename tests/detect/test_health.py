"""Stored events of parts become one incident for each fault, open or suspected, and close again."""

from __future__ import annotations

from typing import Any

import pytest
from psycopg.types.json import Jsonb

from clusterwatch.detect import health, schedule, tasks
from clusterwatch.fleet.models import Node, Slot
from clusterwatch.incidents.models import Evidence, Incident
from clusterwatch.store import hot, series
from tests.detect.fake_job import SECOND, FakeJob


class Told:
    """Events of a fake job's first node, stored as its agent would have sent them."""

    def __init__(self, job: FakeJob) -> None:
        self.job = job
        self.sequence = 0
        self.node: Node = job.nodes[0]
        taken = set(Slot.objects.filter(cluster=job.cluster).values_list("number", flat=True))
        if not Slot.objects.filter(node=self.node, gpu_index=3).exists():
            number = max(taken, default=-1) + 1
            Slot.objects.create(
                cluster=job.cluster, number=number, node=self.node, gpu_index=3, gpu_uuid="GPU-3"
            )

    def event(self, kind: str, severity: Any, entity: str, source: str = "gpu_nvml", **fields: str) -> None:
        self.sequence += 1
        at_ns = self.job.now_ns
        head = (self.job.cluster.pk, self.node.pk, at_ns, "e", self.sequence)
        told = Jsonb({"entity": entity} | fields)
        rows = series.Rows()
        rows.add("event", (*head, source, kind, severity, f"{kind} here", told, None, None, None, None))
        series.PartitionCache().prepare([("event", at_ns)])
        rows.write()

    def look(self, after_s: float = 0.0) -> int:
        self.job.now_ns += int(after_s * SECOND)
        self.job.write()
        return health.look(self.job.cluster.pk, self.job.now_ns)


@pytest.fixture
def told(fake_job: FakeJob) -> Told:
    return Told(fake_job)


def only() -> Incident:
    return Incident.objects.get()


def test_a_lost_gpu_opens_at_once_with_its_name(told: Told) -> None:
    told.event("gpu_lost", "critical", "gpu/GPU-3")
    assert told.look() == 1
    incident = only()
    assert (incident.verdict, incident.state, incident.severity) == ("gpu_lost", "open", "critical")
    assert incident.summary.startswith(f"GPU 3 of {told.node.name} is lost")
    assert (incident.node_id, incident.job_id) == (told.node.pk, None)
    assert incident.diagnosis["culprits"][0]["gpu_uuid"] == "GPU-3"
    assert Evidence.objects.filter(incident=incident, kind="signals").exists()
    told.look(5)
    assert Incident.objects.count() == 1


def test_a_critical_fault_waits_and_a_warning_pages_nobody(told: Told) -> None:
    told.event("link_down", "critical", "port/mlx5_0/1")
    told.event("fan_failed", "warning", "fan/2")
    told.look()
    assert set(Incident.objects.values_list("state", flat=True)) == {"suspected"}
    told.look(5)
    told.look(6)
    assert dict(Incident.objects.values_list("verdict", "state")) == {
        "link_down": "open", "cooling_fault": "suspected",
    }  # fmt: skip


def test_what_is_over_is_resolved_after_a_quiet_while(told: Told) -> None:
    told.event("link_down", "critical", "port/mlx5_0/1")
    told.look()
    told.job.now_ns += SECOND
    told.event("link_down", "info", "port/mlx5_0/1", over="true")
    assert told.look(1) == 0 and only().state == "suspected"
    told.look(health.QUIET_S - 1)
    assert only().state == "suspected"
    told.look(2)
    assert only().state == "resolved" and "nothing tells of it" in only().resolution


def test_one_that_comes_back_meanwhile_stays_one_incident(told: Told) -> None:
    told.event("link_down", "critical", "port/mlx5_0/1")
    told.look()
    told.job.now_ns += SECOND
    told.event("link_down", "info", "port/mlx5_0/1", over="true")
    told.look(1)
    told.event("link_down", "critical", "port/mlx5_0/1")
    told.look(health.QUIET_S)
    assert Incident.objects.count() == 1 and only().state != "resolved"


def test_lost_memory_is_made_anew_from_the_events(told: Told) -> None:
    told.event("gpu_lost", "critical", "gpu/GPU-3")
    told.look()
    hot.save_health(told.job.cluster.pk, b"\xc1 no msgpack")
    assert told.look(60) == 1 and only().state == "open"


def test_hostile_events_make_no_incident(told: Told) -> None:
    told.event("gpu_lost", "no severity", "gpu/" + "x" * 200, code="9" * 50)
    told.event("from_the_future", "critical", "host")
    told.look()
    assert Incident.objects.filter(state="open").count() == 0


def test_the_task_looks_at_each_cluster(told: Told) -> None:
    assert tasks.look_at_cluster_health(told.job.cluster.pk)
    assert tasks.look_at_health.name == schedule.HEALTH_TASK
