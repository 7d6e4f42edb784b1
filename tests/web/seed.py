"""A database as the screens meet it: a real 8-rank job that hangs, and a simulated cluster of 512 GPUs."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

import numpy as np
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
    GroupRef,
    MergedStack,
    Owner,
    Severity,
)
from clusterwatch.fleet.models import Cluster, Node, Slot
from clusterwatch.incidents import acts, services
from clusterwatch.incidents.models import Incident
from clusterwatch.jobs.models import Capture, Group, Job, Rank
from clusterwatch.store import frames, hot, series
from clusterwatch.store.models import IngestCursor
from collectors.formats.trace import RankTrace, TraceEntries, TraceGroup, pack

PASSWORD = "correct-horse-battery"
STALL_S = 74
STUCK_RANK = 5
SEQUENCE = 4183
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
        _captures(job, ranks, groups)
        _steps(job, ranks)
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


def hang_diagnosis() -> Diagnosis:
    """The verdict of the hang: rank 5 sleeps in its data loader."""
    top = "main (train.py:212)"
    finding = Finding(
        verdict="missing_rank",
        fault_class="hang",
        severity=Severity.CRITICAL,
        summary=(
            f"Job example-8 (8 ranks) stands since step 421: rank {STUCK_RANK} on node-c sits in its data "
            f"loader and never issued all_reduce #{SEQUENCE} of tp; the other 7 ranks only wait."
        ),
        rule="hang.missing_rank v1",
        confidence=0.94,
        cause="data_loading",
        owner=Owner.USER,
        culprit_ranks=(STUCK_RANK,),
        culprits=(Culprit(rank=STUCK_RANK, host="node-c", pid=41205),),
        group=GroupRef("3", "tp", (4, 5)),
        seq=SEQUENCE,
        op="all_reduce",
        node="node-c",
        downstream=Downstream(groups=9, ranks=7),
        why=(
            f"Group tp [4, 5]: rank 4 issued all_reduce #{SEQUENCE}, rank 5 stopped at #{SEQUENCE - 1}.",
            "Two looks 1.0 s apart show no advance of any rank.",
            "The stack of rank 5 ends in the data loader; its process is alive (state S).",
        ),
        recommended_action=(
            "Look at the data loader of rank 5 on node-c. Its worker waits for a batch that never comes; "
            "a restart from the last checkpoint resumes the job, but the same sample may hang it again."
        ),
        joined_ranks=(4,),
        missing_ranks=(STUCK_RANK,),
    )
    wait = "wait (torch/distributed/distributed_c10d.py:2811)"
    stacks = (
        MergedStack(
            (
                top,
                "next_batch (train.py:143)",
                "__next__ (torch/utils/data/dataloader.py:733)",
                "get (queue.py:171)",
            ),
            (STUCK_RANK,),
            "hook",
            "culprit",
        ),
        MergedStack((top, "forward (model.py:88)", "all_reduce (tensor.py:41)", wait), (4,), "hook"),
        MergedStack(
            (top, "backward (train.py:160)", "reduce_gradients (train.py:171)", wait),
            (0, 1, 2, 3, 6, 7),
            "hook",
        ),
    )
    return Diagnosis((finding,), Coverage(expected=8, reported=8, stale=0, truncated=1), stacks)


_RINGS = {"format": "packed", "ranks": {"5": "a" * 4000, "4": "b" * 4000}, "total": 7}


def _process_facts(ranks: list[Rank]) -> dict[str, Any]:
    """As ``detect.evidence`` freezes them."""
    rows = [
        {
            "rank": rank.rank,
            "host": rank.host,
            "gpu": None,
            "pid": rank.pid,
            "process": "running",
            "process_since_s": None,
            "phase": "data_loading" if rank.rank == STUCK_RANK else "train",
            "phase_s": 11.2,
            "step": 421 - (rank.rank == STUCK_RANK),
            "hook_silent_s": 0.4,
            "exit_code": None,
        }
        for rank in ranks
    ]
    return {"counts": {"running": 8}, "ranks": rows}


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
        services.Piece("process", "Processes: 8 running", "agents", _process_facts(ranks), 0.12),
        services.Piece("trace", "Rings of 7 of 7 ranks that gave one", "flight recorder", _RINGS, 0.05),
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


def _trace_of(rank: Rank, groups: list[Group]) -> RankTrace:
    mine = [g for g in groups if rank.rank in g.ranks]
    last = SEQUENCE if rank.rank != STUCK_RANK else SEQUENCE - 1
    now = time.time_ns() - STALL_S * 10**9
    entries = TraceEntries()
    for place in range(24):
        number = last - 23 + place
        newest = place == 23 and rank.rank != STUCK_RANK
        entries.record_id.append(900 + place)
        entries.group.append(place % len(mine))
        entries.sequence.append(number)
        entries.p2p_sequence.append(None)
        entries.op_id.append(number)
        entries.op.append("all_reduce" if place % 3 else "all_gather")
        entries.is_p2p.append(False)
        entries.state.append("scheduled" if newest else "completed")
        entries.retired.append(not newest)
        entries.created_ns.append(now - (23 - place) * 40_000_000)
        entries.started_ns.append(None)
        entries.completed_ns.append(None)
        entries.duration_ms.append(None if newest else 3.1 + place % 5)
        entries.timeout_ms.append(1_800_000)
        entries.input_sizes.append(((1024, 256),))
        entries.output_sizes.append(((1024, 256),))
        entries.input_dtypes.append(("Float",))
        entries.output_dtypes.append(("Float",))
        entries.frames.append(())
    trace_groups = tuple(TraceGroup(g.name, g.desc, tuple(g.ranks)) for g in mine)
    return RankTrace(rank.rank, "2.10", "gloo", trace_groups, entries, taken_ns=time.time_ns())


def _captures(job: Job, ranks: list[Rank], groups: list[Group]) -> None:
    nodes = sorted({r.node_id for r in ranks})
    capture = Capture.objects.create(
        job=job,
        requested_by="detect",
        reason="suspected",
        want=["ring", "stacks"],
        state="done",
        done_at=timezone.now(),
        expected_nodes=nodes,
        answered_nodes=nodes,
        silent_ranks={"7": "the hook did not answer within 10 s"},
    )
    now, rows, times = time.time_ns(), series.Rows(), []
    for number, rank in enumerate(r for r in ranks if r.rank != 7):
        head = (
            job.cluster_id,
            rank.node_id,
            now,
            "e1",
            100 + number,
            job.pk,
            0,
            "",
            rank.rank,
            rank.pid,
            capture.pk,
        )
        rows.add("trace", (*head, "ring", "generic", pack(_trace_of(rank, groups))))
        found = next(s for s in hang_diagnosis().stacks if rank.rank in s.ranks)
        threads = [{"name": "MainThread", "main": True, "frames": list(found.frames)}]
        threads.append(
            {"name": "pin_memory", "frames": ["_bootstrap (threading.py:1012)", "do_one_step (pin.py:33)"]}
        )
        rows.add("stacks", (*head, "hook", "", "S", "futex_wait", _jsonb(threads)))
        times += [("trace", now), ("stacks", now)]
    series.PartitionCache().prepare(times)
    rows.write()


def _jsonb(value: Any) -> Any:
    from psycopg.types.json import Jsonb

    return Jsonb(value)


def _steps(job: Job, ranks: list[Rank]) -> None:
    """Forty minutes of steps, a rank that slows down in the middle."""
    rng, end = np.random.default_rng(7), time.time_ns() - STALL_S * 10**9
    rows, times = series.Rows(), []
    for rank in ranks:
        for minute in range(40):
            start = end - (40 - minute) * 60 * 10**9
            count = 10
            ends = [start + int((k + 1) * 6e9) for k in range(count)]
            base = 5.6 + 0.5 * (rank.rank == 2 and 18 < minute < 30)
            took = [float(base + 0.12 * rng.standard_normal()) for _ in range(count)]
            steps = [minute * count + k for k in range(count)]
            none: list[float | None] = [None] * count
            head = (job.cluster_id, rank.node_id, ends[-1], "e1", 1000 + rank.rank * 100 + minute)
            who = (job.pk, 0, "", rank.rank)
            rows.add("steps", (*head, *who, steps, ends, took, none, none, none, none))
            times.append(("steps", ends[-1]))
    series.PartitionCache().prepare(times)
    rows.write()


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


def heartbeat(seeded: Seeded, *, progress_at_ns: int | None = None) -> None:
    """One second of gateways and pulse: hot arrays of the real job, a live frame per cluster."""
    now = time.time_ns()
    stall = progress_at_ns or int(seeded.incident.since.timestamp() * 1e9)
    _write_hot(seeded, now, stall)
    _publish_real(seeded, stall)
    _publish_simulated(seeded)


def _write_hot(seeded: Seeded, now: int, moved: int) -> None:
    every = np.array([n.pk for n in Node.objects.order_by("pk")], np.int64)
    of = np.array([n.cluster_id for n in Node.objects.order_by("pk")], np.int64)
    silent = set(Node.objects.filter(cluster=seeded.simulated, rack="r16").values_list("pk", flat=True)[:2])
    seen = np.array([now - (900 * 10**9 if pk in silent else 10**8) for pk in every], np.int64)
    nodes = hot.NodeStates(every, of, seen, np.zeros(len(every), np.uint8), seen)
    ranks, pairs = seeded.ranks, []
    for row, rank in enumerate(ranks):
        for group in seeded.groups:
            if rank.rank in group.ranks:
                number = SEQUENCE - (1 if rank.rank == STUCK_RANK else 0)
                open_call = (
                    rank.rank == 4 and group.desc == "tp" or rank.rank not in (4, 5) and group.desc == "dp"
                )
                if group.desc != "tp":
                    number = 812 if rank.rank != STUCK_RANK else 812 - (group.desc == "dp")
                pairs.append((row, group.pk, number, number - int(open_call), number))
    column = np.array(pairs, np.int64).T
    same = np.full(len(ranks), moved, np.int64)
    progress = hot.JobProgress(
        rank_id=np.array([r.pk for r in ranks], np.int64),
        node_id=np.array([r.node_id for r in ranks], np.int64),
        seen_ns=np.full(len(ranks), now, np.int64),
        step=np.array([420 if r.rank == STUCK_RANK else 421 for r in ranks], np.int64),
        phase=np.array([3 if r.rank == STUCK_RANK else 2 for r in ranks], np.uint8),
        phase_since_ns=same,
        moved_ns=same,
        heard_ns=np.full(len(ranks), now - 4 * 10**8, np.int64),
        row=column[0],
        group_id=column[1],
        enqueued=column[2],
        completed=column[3],
        sequence=column[4],
    )
    hot.write_gateway("g1", now, nodes, {seeded.job.pk: progress}, {})


def _publish_real(seeded: Seeded, stall: int) -> None:
    job = {
        "key": seeded.job.key,
        "name": seeded.job.name,
        "state": "running",
        "attempt": 0,
        "ranks": 8,
        "reported": 8,
        "step": 421,
        "step_rate": None,
        "phase": "train",
        "still_since_ms": stall // 10**6,
    }
    state = {
        "slots": bytes([1, 1, 3, 1]),
        "slots_version": seeded.real.slots_version,
        "total": 4,
        "counts": {"unknown": 0, "ok": 3, "idle": 0, "degraded": 1, "failed": 0, "drained": 0},
        "coverage": {"expected": 4, "reported": 4},
        "silent": {},
        "gateway_silent_since_ms": None,
        "jobs": {str(seeded.job.pk): job},
        "bands": {},
    }
    frames.publish(f"cluster:{seeded.real.pk}", state)


def _publish_simulated(seeded: Seeded) -> None:
    total = seeded.simulated.slot_count
    slots = np.full(total, 2, np.uint8)
    slots[: int(total * 0.75)] = 1
    for place, value in ((291, 4), (58, 3), (140, 3), (222, 3), (333, 3)):
        if place < total:
            slots[place] = value
    slots[-16:] = 0
    if total > 120:
        slots[-88:-64] = 5
    words = ("unknown", "ok", "idle", "degraded", "failed", "drained")
    counts = {word: int((slots == code).sum()) for code, word in enumerate(words)}
    expected = total // 8
    since = int((datetime.now(UTC) - timedelta(minutes=15)).timestamp() * 1000)
    jobs = {
        str(job.pk): {
            "key": job.key,
            "name": job.name,
            "state": "running",
            "attempt": 0,
            "ranks": size,
            "reported": size,
            "step": 183421 + int(time.time() / 4) % 1000,
            "step_rate": rate,
            "phase": "train",
            "still_since_ms": None,
        }
        for job, size, rate in zip(seeded.sim_jobs, (total // 2, total // 4), (0.24, 1.31), strict=False)
    }
    silent = Node.objects.filter(cluster=seeded.simulated).order_by("-name")[:2]
    state = {
        "slots": slots.tobytes(),
        "slots_version": seeded.simulated.slots_version,
        "total": total,
        "counts": counts,
        "coverage": {"expected": expected, "reported": expected - 2},
        "silent": {str(n.pk): {"name": n.name, "since_ms": since, "link": "open"} for n in silent},
        "gateway_silent_since_ms": None,
        "jobs": jobs,
        "bands": {},
    }
    frames.publish(f"cluster:{seeded.simulated.pk}", state)


def query_count_of(call: Any) -> int:
    """How many queries ``call`` makes."""
    from django.test.utils import CaptureQueriesContext

    with CaptureQueriesContext(connection) as seen:
        call()
    return len(seen)
