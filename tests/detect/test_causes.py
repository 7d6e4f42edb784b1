"""A stored event of a part becomes the cause of a job's incident, by way of the detectors."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import transaction
from psycopg.types.json import Jsonb

from clusterwatch.analysis.correlate_model import Retries
from clusterwatch.analysis.model import Severity
from clusterwatch.analysis.signals import Signal
from clusterwatch.analysis.standing import Held
from clusterwatch.detect import causes, health_memory
from clusterwatch.incidents.models import Evidence, Incident
from clusterwatch.incidents.queries import open_evidence
from clusterwatch.jobs.models import Rank
from clusterwatch.store import node_readings, series
from clusterwatch.store.node_readings import NodeRow
from collectors.wire import readings
from tests.detect.fake_job import SECOND, FakeJob, forget_rosters
from tests.detect.trainer import Trainer


@pytest.fixture(autouse=True)
def _nothing_kept() -> None:
    causes._seats_of.clear()
    causes._slow_worlds.clear()


def give_gpus(job: FakeJob) -> None:
    """Every rank has a GPU with a UUID of its own."""
    for number, process in job.ranks.items():
        Rank.objects.filter(pk=process.row.pk).update(gpu_index=number % 2, gpu_uuid=f"GPU-{number}")
        process.row.refresh_from_db()
    forget_rosters()


def tell(job: FakeJob, host: int, kind: str, after_s: float = 0.0, **fields: str) -> None:
    """An event of a host, stored as its agent would have sent it."""
    at_ns = job.now_ns + int(after_s * SECOND)
    head = (job.cluster.pk, job.nodes[host].pk, at_ns, "e", next(_numbers))
    rows = series.Rows()
    text = f"{kind} {fields.get('code', '')}".strip()
    rows.add(
        "event",
        (*head, "kernel_log", kind, "critical", text, Jsonb(fields), None, None, None, None),
    )
    series.PartitionCache().prepare([("event", at_ns)])
    rows.write()


_numbers = iter(range(1, 10_000))


def evidence_of(incident: Incident) -> dict[str, Any]:
    kept = Evidence.objects.filter(incident=incident, kind="cause").order_by("-id").first()
    assert kept is not None
    payload = open_evidence(kept).payload
    assert isinstance(payload, dict)
    return payload


def test_a_stall_gets_its_cause_from_the_xid_of_the_missing_ranks_gpu(fake_job: FakeJob) -> None:
    give_gpus(fake_job)
    fake_job.wait_for(3)
    tell(fake_job, 1, "xid", 0.4, entity="gpu/GPU-3", code="119")
    fake_job.seconds_until("open", 12)
    incident = fake_job.incident()
    diagnosis = incident.diagnosis
    assert (incident.verdict, incident.owner) == ("missing_rank", "infra")
    assert (diagnosis["cause"], diagnosis["culprit_ranks"], diagnosis["decisive"]) == ("xid_119", [3], True)
    assert ": GPU 1 of host-1, Xid 119 at " in incident.summary
    kept = evidence_of(incident)
    assert [one["cause"] for one in kept["causes"]] == ["xid_119"]
    assert [(row["kind"], row["taken"]) for row in kept["rows"]] == [("xid", True)]


def test_an_xid_of_the_neighbour_is_evidence_and_no_cause(fake_job: FakeJob) -> None:
    give_gpus(fake_job)
    fake_job.wait_for(3)
    tell(fake_job, 1, "xid", 0.4, entity="gpu/GPU-2", code="119")
    fake_job.seconds_until("suspected", 12)
    fake_job.settle_captures()
    fake_job.tick()
    incident = fake_job.incident()
    assert (incident.diagnosis["cause"], incident.owner) == (None, "unknown")
    assert [row["reason"] for row in evidence_of(incident)["rows"]] == ["no named rank runs on it"]


def test_an_xid_long_after_the_stall_began_is_no_cause(fake_job: FakeJob) -> None:
    give_gpus(fake_job)
    fake_job.wait_for(3)
    tell(fake_job, 1, "xid", 60.0, entity="gpu/GPU-3", code="119")
    fake_job.seconds_until("open", 40)
    assert fake_job.incident().diagnosis["cause"] is None


def test_a_stall_that_all_have_joined_names_the_gpu_with_the_xid(fake_job: FakeJob) -> None:
    give_gpus(fake_job)
    fake_job.wait_for()
    tell(fake_job, 2, "xid", 0.4, entity="gpu/GPU-5", code="79")
    fake_job.seconds_until("open", 12)
    diagnosis = fake_job.incident().diagnosis
    assert (diagnosis["verdict"], diagnosis["cause"], diagnosis["culprit_ranks"], diagnosis["owner"]) == (
        "all_joined_not_finished", "xid_79", [5], "infra",
    )  # fmt: skip
    assert diagnosis["culprits"][0]["gpu_uuid"] == "GPU-5"
    assert ": GPU 1 of host-2, Xid 79, fell off the bus at " in fake_job.incident().summary


def test_a_crash_gets_the_xid_before_it_and_not_the_one_after(fake_job: FakeJob) -> None:
    give_gpus(fake_job)
    tell(fake_job, 1, "xid", -0.5, entity="gpu/GPU-3", code="48")
    failed = {"type": "torch.AcceleratorError", "message": "CUDA error", "traceback": ""}
    fake_job.end(3, exit_code=1, exception=failed)
    tell(fake_job, 1, "xid", 2.0, entity="gpu/GPU-3", code="79")
    fake_job.seconds_until("open", 5)
    incident = fake_job.incident()
    assert (incident.verdict, incident.diagnosis["cause"], incident.owner) == (
        "rank_failed", "xid_48", "infra",
    )  # fmt: skip


def test_a_slow_rank_gets_the_throttle_of_its_gpu(trainer: Trainer) -> None:
    job = trainer.job
    give_gpus(job)
    tell(job, 1, "throttle", 2.0, entity="gpu/GPU-3", mask="72", reasons='["hw_thermal_slowdown"]')
    for _ in range(4):
        trainer.train(5, work={3: 0.6})
        trainer.look()
    incident = job.incident()
    assert (incident.fault_class, incident.diagnosis["culprit_ranks"]) == ("hardware", [3])
    assert incident.diagnosis["cause"] == "thermal_throttle"
    assert "thermal throttle since " in incident.summary
    assert "(hw_thermal_slowdown)" in incident.summary


def test_the_port_of_a_rank_is_known_by_what_its_agent_told_at_its_start(fake_job: FakeJob) -> None:
    give_gpus(fake_job)
    for rank in (4, 5):
        entity = f"job/{fake_job.job.key}/rank/{rank}"
        tell(fake_job, 2, "rank_map", 0.0, entity=entity, nic=f"mlx5_{rank}", gpu_uuid=f"GPU-{rank}")
    fake_job.wait_for()
    tell(fake_job, 2, "link_down", 0.4, entity="port/mlx5_5/1")
    fake_job.seconds_until("open", 40)
    diagnosis = fake_job.incident().diagnosis
    assert (diagnosis["cause"], diagnosis["culprit_ranks"], diagnosis["link"]) == ("link_down", [5], "mlx5_5")


def test_what_stands_by_hot_frames_alone_is_read_from_the_memory_of_the_health_rules(
    trainer: Trainer,
) -> None:
    job = trainer.job
    give_gpus(job)
    told = Signal(
        "throttle", job.now_ns + SECOND, None, job.nodes[1].pk, "host-1", "gpu/GPU-3", Severity.WARNING,
        "too hot", "hot frames", fields={"mask": "64"}, stands=True,
    )  # fmt: skip
    key = (job.nodes[1].pk, "gpu/GPU-3", "throttle", 0)
    health_memory.save(job.cluster.pk, health_memory.Memory(held=[(key, Held(told, told.at_ns))]))
    for _ in range(4):
        trainer.train(5, work={3: 0.6})
        trainer.look()
    assert job.incident().diagnosis["cause"] == "thermal_throttle"


def test_the_settings_of_nccl_and_the_clock_are_the_nodes_own_words(fake_job: FakeJob) -> None:
    rank = f"job/{fake_job.job.key}/rank/5"
    rows = [
        (rank, "fact_count", 1.0, {"fact": "env.NCCL_IB_TIMEOUT", "value": "14"}),
        ("host", "fact_count", 1.0, {"fact": "nccl_conf.NCCL_IB_RETRY_CNT", "value": "9"}),
        ("host", "clock_error_max_s", -0.004, {}),
    ]
    keep_readings(fake_job, 2, rows)
    node = fake_job.nodes[2].pk
    assert causes._retries(fake_job.job, [node], fake_job.now_ns) == Retries(14, 9)
    assert causes._clocks([node, fake_job.nodes[1].pk], fake_job.now_ns) == {node: 0.004}


def keep_readings(job: FakeJob, host: int, rows: list[tuple[str, str, float, dict[str, str]]]) -> None:
    """Readings of a host: (entity, metric, value, labels) each, of a source that has just looked."""
    entities, metrics = sorted({row[0] for row in rows}), sorted({row[1] for row in rows})
    table = readings.Table(
        sources=[readings.SourceWord("drift", "ok", 60.0, 1.0)],
        entities=entities,
        metrics=metrics,
        qualities=["ok"],
        entity=[entities.index(row[0]) for row in rows],
        metric=[metrics.index(row[1]) for row in rows],
        source=[0] * len(rows),
        quality=[0] * len(rows),
        value=[row[2] for row in rows],
        labels=[{}, *(row[3] for row in rows)],
        label=[place if row[3] else 0 for place, row in enumerate(rows, 1)],
    )
    row = NodeRow(job.nodes[host].pk, job.cluster.pk, job.now_ns, "e", 1, readings.pack(table))
    with transaction.atomic():
        node_readings.put([row], job.now_ns)
