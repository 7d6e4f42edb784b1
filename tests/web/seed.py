"""A database as the screens meet it: a real 8-rank job that hangs, and a simulated cluster of 512 GPUs."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from typing import Any

from django.contrib.auth.hashers import make_password
from django.db import connection
from django.utils import timezone

from clusterwatch.accounts.models import User
from clusterwatch.analysis.model import (
    Coverage,
    Culprit,
    Diagnosis,
    Downstream,
    Finding,
    Owner,
    Severity,
)
from clusterwatch.fleet.models import Cluster, Node, Slot
from clusterwatch.incidents import acts, services
from clusterwatch.incidents.models import Incident
from clusterwatch.jobs.models import Group, Job, Rank
from clusterwatch.store.models import IngestCursor
from tests.web.seed_facts import RINGS, SEQUENCE, STALL_S, hang_diagnosis, process_facts
from tests.web.seed_history import captures, steps
from tests.web.seed_live import heartbeat

__all__ = ["hang_diagnosis", "heartbeat"]

PASSWORD = "correct-horse-battery"
GIB = 1024**3


@dataclass
class Seeded:
    """What tests refer to by name."""

    real: Cluster
    simulated: Cluster
    job: Job
    incident: Incident
    ranks: list[Rank]
    groups: list[Group]
    nodes: list[Node]
    sim_jobs: list[Job] = field(default_factory=list)
    resolved: Incident | None = None


@cache
def _hashed() -> str:
    """The password's hash; made once, since that is slow on purpose."""
    return make_password(PASSWORD)


def people() -> dict[str, User]:
    """An admin, an operator on call, and a viewer."""
    made, hashed = {}, _hashed()
    for name, role, staff in (
        ("admin", "admin", True),
        ("olga", "operator", False),
        ("vera", "viewer", False),
    ):
        made[name] = User.objects.create(username=name, password=hashed, role=role, is_staff=staff)
    return made


def seed(simulated_nodes: int = 64, *, history: bool = True) -> Seeded:
    """Everything, hot state too; without ``history`` no stored steps, traces and stacks."""
    real = Cluster.objects.create(name="lab")
    nodes = [_node(real, f"node-{letter}", cpus=16) for letter in "abcd"]
    job, ranks, groups = _job(real, nodes)
    incident = _hang(job, ranks)
    resolved = _resolved_crash(job)
    if history:
        captures(job, ranks, groups)
        steps(job, ranks)
    simulated = Cluster.objects.create(name="demo-512", simulated=True)
    sim_jobs = _simulated(simulated, simulated_nodes)
    seeded = Seeded(real, simulated, job, incident, ranks, groups, nodes, sim_jobs, resolved)
    heartbeat(seeded)
    return seeded


def _node(cluster: Cluster, name: str, *, cpus: int = 192, gpus: int = 0, rack: str = "") -> Node:
    node = Node.objects.create(
        cluster=cluster,
        name=name,
        machine_id=name,
        agent_version="0.1.0",
        rack=rack,
        cpu_count=cpus,
        memory_bytes=64 * GIB if not gpus else 2048 * GIB,
        last_hello_at=timezone.now() - timedelta(hours=5),
    )
    for lane in ("urgent", "bulk"):
        IngestCursor.objects.create(
            cluster=cluster.name, node=name, epoch="e1", lane=lane, sequence=412, stored_count=412
        )
    for index in range(gpus) if gpus else (None,):
        Slot.objects.create(cluster=cluster, number=cluster.slot_count, node=node, gpu_index=index)
        cluster.slot_count += 1
    cluster.slots_version += 1
    cluster.save()
    return node


def _job(cluster: Cluster, nodes: list[Node]) -> tuple[Job, list[Rank], list[Group]]:
    started = timezone.now() - timedelta(minutes=42)
    job = Job.objects.create(
        cluster=cluster, key="example-8", name="tp2-pp2-dp2", user="sam", started_at=started
    )
    ranks = [
        Rank.objects.create(
            job=job,
            attempt=0,
            rank=number,
            world_size=8,
            node=nodes[number // 2],
            host=nodes[number // 2].name,
            ref=number,
            epoch="e1",
            pid=41200 + number,
            local_rank=number % 2,
            torch_version="2.13.0",
            backend="gloo",
            blind=["p2p on gloo"],
            started_at=started,
        )
        for number in range(8)
    ]
    members = {
        "default_pg": [[*range(8)]],
        "tp": [[0, 1], [2, 3], [4, 5], [6, 7]],
        "pp": [[0, 4], [1, 5], [2, 6], [3, 7]],
        "dp": [[0, 2], [1, 3], [4, 6], [5, 7]],
    }
    groups = [
        Group.objects.create(
            job=job,
            attempt=0,
            name=str(place),
            desc=desc,
            backend="gloo",
            members_hash=f"{place:032x}",
            ranks=some,
        )
        for place, (desc, some) in enumerate(
            (desc, some) for desc, lists in members.items() for some in lists
        )
    ]
    return job, ranks, groups


def _hang(job: Job, ranks: list[Rank]) -> Incident:
    now = time.time_ns()
    since = now - STALL_S * 10**9
    sighting = services.Sighting(
        fingerprint=f"{job.cluster_id}:{job.pk}:hang",
        cluster_id=job.cluster_id,
        job_id=job.pk,
        diagnosis=hang_diagnosis(),
        since_ns=since,
        threshold_s=10.0,
        threshold_source="train: default, no history of this group yet",
        gpu_count=8,
    )
    incident, _ = services.suspect(sighting, since + 4 * 10**9)
    services.open_(incident.pk, since + 11 * 10**9, "the stall is longer than 10 s")
    pieces = [
        services.Piece("progress", "No rank advances", "hot state, two looks", {"looks": 2}, 0.46, "rank 5"),
        services.Piece(
            "collective_state", "Open call", "flight recorder, window", {"seq": SEQUENCE}, 0.31, "rank 5"
        ),
        services.Piece("stacks", "Stacks", "hook, captured", {"ranks": 8}, 0.2, "rank 5"),
        services.Piece("process", "Processes: 8 running", "agents", process_facts(ranks), 0.12),
        services.Piece("trace", "Rings of 7 of 7 ranks that gave one", "flight recorder", RINGS, 0.05),
    ]
    services.freeze(incident.pk, pieces, since + 12 * 10**9)
    services.confirm(incident.pk, now - 2 * 10**9)
    acts.add_note(incident.pk, "olga", "Sam is looking at shard 118, the last file the loader opened.")
    incident.refresh_from_db()
    return incident


def _resolved_crash(job: Job) -> Incident:
    start = time.time_ns() - 26 * 3600 * 10**9
    finding = Finding(
        verdict="rank_failed",
        fault_class="crash",
        severity=Severity.CRITICAL,
        summary="Job example-7: rank 2 on node-b raised ValueError at step 88; 7 ranks ended because of it.",
        rule="crash.rank_failed v1",
        confidence=0.9,
        owner=Owner.USER,
        culprit_ranks=(2,),
        culprits=(Culprit(rank=2, host="node-b", pid=40011),),
        downstream=Downstream(groups=9, ranks=7),
        recommended_action="Read the exception of rank 2.",
        decisive=True,
    )
    sighting = services.Sighting(
        fingerprint=f"{job.cluster_id}:gone:crash",
        cluster_id=job.cluster_id,
        diagnosis=Diagnosis((finding,), Coverage(8, 8)),
        since_ns=start,
        gpu_count=8,
    )
    incident, _ = services.suspect(sighting, start + 10**9)
    services.open_(incident.pk, start + 10**9, "decisive evidence")
    payload = {"type": "ValueError", "message": "label 4127 is out of range", "rank": 2, "at_step": 88}
    services.freeze(
        incident.pk,
        [services.Piece("exception", "Rank 2 raised first", "hook", payload, 0.8, "rank 2")],
        start,
    )
    services.resolve(incident.pk, start + 300 * 10**9, "the job ended")
    incident.refresh_from_db()
    return incident


def _simulated(cluster: Cluster, count: int) -> list[Job]:
    nodes = [
        _node(cluster, f"gpu-r{n // 4 + 1:02}-n{n % 4 + 1:02}", gpus=8, rack=f"r{n // 4 + 1:02}")
        for n in range(count)
    ]
    started = timezone.now() - timedelta(hours=31)
    jobs = []
    for key, name, share in (("88213", "pretrain-70b", 0.5), ("88190", "ablate-8b-mix7", 0.25)):
        jobs.append(Job.objects.create(cluster=cluster, key=key, name=name, user="sim", started_at=started))
        take = [nodes.pop(0) for _ in range(int(count * share))]
        Rank.objects.bulk_create(
            Rank(
                job=jobs[-1],
                attempt=0,
                rank=n * 8 + g,
                world_size=len(take) * 8,
                node=node,
                host=node.name,
                ref=n * 8 + g,
                epoch="s1",
                pid=9000 + g,
                local_rank=g,
                gpu_index=g,
                backend="nccl",
                started_at=started,
            )
            for n, node in enumerate(take)
            for g in range(8)
        )
    slow = Finding(
        verdict="slow_gpu",
        fault_class="hardware",
        severity=Severity.WARNING,
        rule="slow.gpu v1",
        confidence=0.86,
        summary="Job 88190: GPU 3 of gpu-r10-n01 (rank 35) makes each step 6.8 % longer; 127 ranks wait.",
        owner=Owner.INFRA,
        culprit_ranks=(35,),
        culprits=(Culprit(35, "gpu-r10-n01", 3, "GPU-35", 9003),),
        downstream=Downstream(3, 127),
        recommended_action="Swap gpu-r10-n01 at the next checkpoint.",
    )
    sighting = services.Sighting(
        fingerprint=f"{cluster.pk}:{jobs[1].pk}:slow",
        cluster_id=cluster.pk,
        job_id=jobs[1].pk,
        diagnosis=Diagnosis((slow,), Coverage(128, 128)),
        since_ns=time.time_ns() - 4000 * 10**9,
        gpu_count=128,
    )
    incident, _ = services.suspect(sighting, time.time_ns() - 3990 * 10**9)
    services.open_(incident.pk, time.time_ns() - 3900 * 10**9, "cost above its bound")
    return jobs


def query_count_of(call: Any) -> int:
    """How many queries ``call`` makes."""
    from django.test.utils import CaptureQueriesContext

    with CaptureQueriesContext(connection) as seen:
        call()
    return len(seen)
