"""One second of gateways and pulse for the seeded clusters."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import numpy as np

from clusterwatch.fleet.models import Node
from clusterwatch.store import frames, hot, hot_writes
from tests.web.seed_facts import SEQUENCE, STUCK_RANK

if TYPE_CHECKING:
    from tests.web.seed import Seeded


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
    hot_writes.write_gateway("g1", now, nodes, {seeded.job.pk: progress}, {})


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
