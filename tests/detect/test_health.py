"""Stored events of parts become one incident for each fault, open or suspected, and close again."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import redis
from django.db import connection
from django.test.utils import CaptureQueriesContext
from psycopg.types.json import Jsonb

from clusterwatch.analysis.standing import ANSWERS_NS
from clusterwatch.detect import health, health_memory, schedule, signals, tasks
from clusterwatch.fleet.models import Cluster, Node, Slot
from clusterwatch.incidents import services
from clusterwatch.incidents.models import Evidence, Incident
from clusterwatch.jobs.models import Rank
from clusterwatch.store import hot, hot_writes, series
from clusterwatch.store import valkey as keys
from tests.detect.fake_job import SECOND, FakeJob, forget_rosters

PORT = "port/mlx5_0/1"


class Told:
    """Events of a fake job's nodes, stored as their agents would have sent them."""

    def __init__(self, job: FakeJob) -> None:
        self.job = job
        self.sequence = 0
        self.node: Node = job.nodes[0]
        self.other: Node = job.nodes[1]
        self.metrics: dict[str, hot.MetricArray] = {}
        Cluster.objects.filter(pk=job.cluster.pk).update(slot_count=1)
        self.slot = Slot.objects.get_or_create(
            cluster=job.cluster, number=0, node=self.node, defaults={"gpu_index": 3, "gpu_uuid": "GPU-3"}
        )[0]

    def event(
        self, kind: str, severity: Any, entity: str, source: str = "gpu_nvml", /, **fields: str
    ) -> None:
        self.events([(self.node.pk, kind, severity, {"entity": entity} | fields)], source)

    def stands(self, kind: str, severity: Any, entity: str, **fields: str) -> None:
        self.event(kind, severity, entity, standing="true", **fields)

    def over(self, kind: str, entity: str) -> None:
        self.event("fault_over", "info", entity, kind=kind)

    def events(
        self, told: Sequence[tuple[int, str, str, dict[str, str]]], source: str = "x", ago_s: float = 0
    ) -> None:
        at_ns = self.job.now_ns - int(ago_s * SECOND)
        rows = series.Rows()
        for node, kind, severity, fields in told:
            self.sequence += 1
            head = (self.job.cluster.pk, node, at_ns, "e", self.sequence)
            words = (source, kind, severity, f"{kind} here", Jsonb(fields))
            rows.add("event", (*head, *words, None, None, None, None))
        series.PartitionCache().prepare([("event", at_ns)])
        rows.write()

    def look(self, after_s: float = 0.0) -> int:
        self.job.now_ns += int(after_s * SECOND)
        self.job.write()
        return health.look(self.job.cluster.pk, self.job.now_ns)

    def frame(self, **metrics: float) -> None:
        """A hot frame with values of the one GPU, by a gateway of its own."""
        seen = np.array([self.job.now_ns], np.int64)
        arrays = {
            (self.job.cluster.pk, name): hot.MetricArray(np.array([value], np.float32), seen)
            for name, value in metrics.items()
        }
        hot_writes.write_gateway("frames", self.job.now_ns, hot.empty_nodes(), {}, arrays)


@pytest.fixture
def told(db: None, valkey: redis.Redis) -> Iterator[Told]:
    forget_rosters()
    yield Told(FakeJob())
    forget_rosters()


def only() -> Incident:
    return Incident.objects.get()


def verdicts() -> dict[str, str]:
    return dict(Incident.objects.values_list("verdict", "state"))


def test_a_lost_gpu_opens_at_once_with_its_name(told: Told) -> None:
    Rank.objects.filter(job=told.job.job, rank=1).update(gpu_uuid="GPU-3", gpu_index=3)
    told.event("xid", "critical", "gpu/GPU-3", "kernel_log", code="79")
    told.stands("gpu_lost", "critical", "gpu/GPU-3")
    assert told.look() == 1
    incident = only()
    assert (incident.verdict, incident.state, incident.severity) == ("gpu_lost", "open", "critical")
    assert incident.summary == "GPU 3 of host-0 fell off the bus (Xid 79); job run-1 has 1 rank on it"
    assert (incident.node_id, incident.job_id, incident.gpu_count) == (told.node.pk, None, 1)
    assert incident.diagnosis["culprits"][0]["gpu_uuid"] == "GPU-3"
    told.look(5)
    assert Incident.objects.count() == 1 and Evidence.objects.filter(kind="signals").count() == 1


def test_a_critical_fault_waits_and_a_warning_pages_nobody(told: Told) -> None:
    told.stands("link_down", "warning", PORT)
    told.stands("fan_failed", "warning", "fan/2")
    told.look()
    assert set(verdicts().values()) == {"suspected"}
    told.look(5)
    told.look(6)
    assert verdicts() == {"link_down": "open", "cooling_fault": "suspected"}
    by_verdict = {one.verdict: one.threshold_source for one in Incident.objects.all()}
    assert by_verdict == {
        "link_down": "a critical fault opens when it has stood for 10 s",
        "cooling_fault": "a warning pages nobody",
    }


def test_what_is_over_is_resolved_after_a_quiet_while(told: Told) -> None:
    told.stands("fan_failed", "critical", "fan/2")
    told.look()
    told.job.now_ns += SECOND
    told.over("fan_failed", "fan/2")
    assert told.look(1) == 0 and only().state == "suspected"
    told.look(health.QUIET_S - 1)
    assert only().state == "suspected"
    told.look(2)
    assert only().state == "resolved" and only().resolution == "it is over, and has been quiet for 30 s"


def test_a_link_that_comes_and_goes_stays_one_incident_and_is_called_unstable(told: Told) -> None:
    for _ in range(4):
        told.stands("link_down", "warning", PORT)
        told.look(4)
        told.over("link_down", PORT)
        told.look(56)
    assert only().summary.startswith("Port mlx5_0/1 of host-0 is unstable: it went down 4 times")
    told.look(600)
    told.look(40)
    assert only().state == "resolved"


def test_what_a_person_has_closed_is_not_raised_again_until_something_new_is_told(told: Told) -> None:
    told.event("xid", "critical", "gpu/GPU-3", "kernel_log", code="79")
    told.look()
    told.job.now_ns += 60 * SECOND
    services.resolve(only().pk, told.job.now_ns, "GPU replaced")
    told.look(5)
    hot.save_health(told.job.cluster.pk, b"")
    told.look(5)
    assert only().state == "resolved"
    told.event("xid", "critical", "gpu/GPU-3", "kernel_log", code="79")
    told.look(5)
    assert set(Incident.objects.values_list("state", flat=True)) == {"resolved", "open"}


def test_events_that_come_late_are_taken(told: Told) -> None:
    told.look()
    told.events([(told.node.pk, "fan_failed", "warning", {"entity": "fan/1", "standing": "true"})], ago_s=900)
    assert told.look(5) == 0
    assert told.look(60) == 1


def test_lost_memory_is_made_anew_from_evidence_however_long_ago_it_was_told(told: Told) -> None:
    told.stands("psu_failed", "warning", "psu/2")
    told.look()
    old = only()
    told.job.now_ns += 3 * 86_400 * SECOND
    hot.save_health(told.job.cluster.pk, b"\xc1 no msgpack")
    assert told.look() == 1
    told.look(60)
    assert only() == old and old.state == "suspected"
    told.over("psu_failed", "psu/2")
    told.look(5)
    told.look(31)
    assert only().state == "resolved"


def test_the_scheduler_speaks_of_the_node_it_names_and_a_drained_one_pages_nobody(told: Told) -> None:
    drained = {
        "entity": "node/host-0", "device": "scheduler/slurm", "node": "host-0", "reason": "fan",
        "standing": "true",
    }  # fmt: skip
    told.events([(told.other.pk, "node_drained", "warning", drained)], "slurm_cluster")
    assert told.look() == 0
    told.event("xid", "critical", "gpu/GPU-3", "kernel_log", code="79")
    told.look(5)
    told.look(20)
    assert (only().state, only().severity) == ("suspected", "info")
    assert "drained by the scheduler: fan" in only().summary


def test_a_device_belongs_to_its_host_and_not_to_the_one_that_asks_it(told: Told) -> None:
    psu = {"entity": "psu/bmc-0/2", "device": "bmc/bmc-0", "device_node": "host-0", "standing": "true"}
    told.events([(told.other.pk, "psu_failed", "warning", psu)], "redfish")
    told.look()
    assert only().node_id == told.node.pk and only().summary.startswith("host-0: psu_failed here")
    start = [(told.other.pk, "agent_started", "info", dict[str, str]())]
    told.job.now_ns += SECOND
    told.events(start)
    told.look(1)
    told.look(400)
    told.look(40)
    assert only().state == "resolved", "the agent that asks started again, and tells of it no more"


def test_hot_frames_tell_of_a_power_brake_and_of_its_end(told: Told) -> None:
    told.frame(gpu_throttle_reasons=0x88)
    assert told.look() == 1
    assert only().verdict == "power_fault" and only().severity == "critical"
    told.job.now_ns += 5 * SECOND
    told.frame(gpu_throttle_reasons=float("nan"))
    assert told.look() == 1, "no value is no end"
    told.job.now_ns += 5 * SECOND
    told.frame(gpu_throttle_reasons=1.0)
    assert told.look() == 0


def test_a_gpu_that_fell_off_the_bus_is_back_when_it_has_answered_for_long(told: Told) -> None:
    told.event("xid", "critical", "gpu/GPU-3", "kernel_log", code="79")
    told.frame(gpu_power_w=90.0)
    assert told.look() == 1
    told.job.now_ns += 120 * SECOND
    for _ in range(3):
        told.frame(gpu_power_w=90.0)
        left = told.look()
        told.job.now_ns += ANSWERS_NS // 2
    assert left == 0
    told.look()
    told.look(31)
    assert only().state == "resolved"


def test_what_many_share_takes_the_place_of_what_each_had(told: Told) -> None:
    nodes = told.job.nodes

    def throttle(node: Node) -> tuple[int, str, str, dict[str, str]]:
        fields = {"entity": f"gpu/{node.pk}", "mask": "136", "standing": "true"}
        return node.pk, "throttle", "critical", fields

    Node.objects.filter(cluster=told.job.cluster).update(rack="A12")
    told.events([throttle(nodes[0])])
    told.look()
    told.events([throttle(node) for node in nodes[1:]])
    told.look(5)
    single, rack = Incident.objects.order_by("pk")
    assert (single.state, rack.state) == ("resolved", "suspected")
    assert single.resolution.startswith("part of: Rack A12: a power brake holds down the GPUs of 4 of its 4")


def test_hostile_events_make_no_page(told: Told) -> None:
    told.event("gpu_lost", "no severity", "gpu/" + "x" * 200, code="9" * 50, root_entity="gpu/\u202e<b>")
    told.event("from_the_future", "critical", "host")
    told.event("fault_over", "info", "host")
    told.event("throttle", "critical", "gpu/GPU-3", mask="9" * 90)
    told.look()
    assert not Incident.objects.filter(state="open").exists()
    assert all(one.summary.isprintable() for one in Incident.objects.all())


def test_nothing_is_judged_while_no_gateway_writes(told: Told) -> None:
    told.stands("gpu_lost", "critical", "gpu/GPU-3")
    told.job.now_ns += 60 * SECOND
    assert health.look(told.job.cluster.pk, told.job.now_ns) == 0 and not Incident.objects.exists()


def test_the_task_looks_at_each_cluster_alone(told: Told) -> None:
    assert tasks.look_at_cluster_health(told.job.cluster.pk)
    assert tasks.look_at_health.name == schedule.HEALTH_TASK
    hot.take_lease(f"detect:health:{told.job.cluster.pk}", "another", 5)
    assert tasks.look_at_cluster_health(told.job.cluster.pk) is False


def test_a_storm_is_one_incident_and_its_queries_do_not_grow_with_it(told: Told) -> None:
    """16,384 events of 3,072 nodes; prints what it costs."""
    mine = Node(cluster=told.job.cluster, rack="", leaf="")
    made = [Node(cluster=mine.cluster, name=f"s{n}", machine_id=f"s{n}") for n in range(3_072)]
    nodes = [node.pk for node in Node.objects.bulk_create(made)]
    fields = [{"entity": f"mount/d{n}", "server": "10.0.0.9"} for n in range(6)]
    told.events(
        [(nodes[n % 3_072], "mount_stall", "critical", fields[n // 3_072]) for n in range(16_384)]
    )
    told.job.write()
    began_s = time.process_time()
    with CaptureQueriesContext(connection) as first:
        assert told.look() == 1
    took_s, began_s = time.process_time() - began_s, time.process_time()
    with CaptureQueriesContext(connection) as second:
        assert told.look(5) == 1
    again_s = time.process_time() - began_s
    size = len(hot.load_health(told.job.cluster.pk) or b"")
    print(f"storm: {took_s:.2f} s, next look {again_s:.2f} s of processor time, {size / 1e6:.1f} MB kept")
    assert only().summary.startswith("Storage server 10.0.0.9 does not answer 3,072 nodes")
    assert len(first) < 45 and len(second) < 25, (len(first), len(second))


def test_more_events_than_fit_a_page_are_all_read_in_their_order(
    told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clusterwatch.store.event_history.PAGE_ROWS", 3)
    for second in range(4):
        lines = [(node.pk, "xid", "info", {"code": str(second)}) for node in told.job.nodes]
        told.events(lines, ago_s=9 - second)
    end_ns = told.job.now_ns + 1
    read = signals.read(told.job.cluster.pk, end_ns - 60 * SECOND, end_ns)
    assert [one.code for one in read if one.kind == "xid"] == [n for n in range(4) for _ in range(4)]
    monkeypatch.setattr(signals, "EVENTS_MAX", 5)
    assert len(signals.read(told.job.cluster.pk, 0, end_ns, ["xid"])) == 5


def test_keys_that_are_too_long_stay_apart() -> None:
    names = {health.fingerprint(1, f"link/{'n' * 250}/{port}") for port in range(3)}
    assert len(names) == 3 and max(map(len, names)) <= 200
    assert health.fingerprint(1, "gpu/n1/3") == "1/health/gpu/n1/3"


def test_memory_reads_more_from_time_to_time() -> None:
    memory, now_ns = health_memory.Memory(), 10**18
    assert memory.span(now_ns) == now_ns - health_memory.FIRST_LOOK_NS
    assert memory.span(now_ns + 5 * SECOND) == now_ns - health_memory.OVERLAP_NS
    minute_ns = now_ns + 61 * SECOND
    assert memory.span(minute_ns) == minute_ns - 3_600 * SECOND
    assert memory.span(minute_ns + 5 * SECOND) == minute_ns - health_memory.OVERLAP_NS


def test_the_keys_of_memory_are_kept_in_valkey(told: Told) -> None:
    told.stands("fan_failed", "warning", "fan/2")
    told.look()
    assert keys.client().ttl(keys.health_key(told.job.cluster.pk)) > 0
