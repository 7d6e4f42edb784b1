"""What nodes stored of the seeded job: forty minutes of steps, traces and stacks of a capture."""

from __future__ import annotations

import time

import numpy as np
from django.utils import timezone
from psycopg.types.json import Jsonb

from clusterwatch.jobs.models import Capture, Group, Job, Rank
from clusterwatch.store import series
from collectors.formats.columns import COMPLETED, NULL, SCHEDULED, Entries, Signature, TraceColumns, pack
from collectors.formats.trace import TraceGroup
from collectors.wire import records
from tests.web.seed_facts import SEQUENCE, STALL_S, STUCK_RANK, hang_diagnosis


def captures(job: Job, ranks: list[Rank], groups: list[Group]) -> None:
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
        rows.add("stacks", (*head, "hook", "", "S", "futex_wait", Jsonb(threads)))
        times += [("trace", now), ("stacks", now)]
    series.PartitionCache().prepare(times)
    rows.write()


def _trace_of(rank: Rank, groups: list[Group]) -> TraceColumns:
    mine = [g for g in groups if rank.rank in g.ranks]
    last = SEQUENCE if rank.rank != STUCK_RANK else SEQUENCE - 1
    now = time.time_ns() - STALL_S * 10**9
    entries = Entries()
    for place in range(24):
        number = last - 23 + place
        newest = place == 23 and rank.rank != STUCK_RANK
        entries.record_id.append(900 + place)
        entries.group.append(place % len(mine))
        entries.sequence.append(number)
        entries.p2p_sequence.append(NULL)
        entries.op_id.append(number)
        entries.signature.append(0 if place % 3 else 1)
        entries.stack.append(NULL)
        entries.state.append(SCHEDULED if newest else COMPLETED)
        entries.retired.append(not newest)
        entries.created_ns.append(now - (23 - place) * 40_000_000)
        entries.started_ns.append(NULL)
        entries.completed_ns.append(NULL)
        entries.duration_ns.append(NULL if newest else 3_100_000 + place % 5 * 1_000_000)
        entries.timeout_ms.append(1_800_000)
    trace_groups = tuple(TraceGroup(g.name, g.desc, tuple(g.ranks)) for g in mine)
    sizes, dtypes = ((1024, 256),), ("Float",)
    calls = tuple(Signature(op, False, sizes, sizes, dtypes, dtypes) for op in ("all_reduce", "all_gather"))
    return TraceColumns(rank.rank, "2.10", "gloo", trace_groups, calls, (), entries, taken_ns=time.time_ns())


def steps(job: Job, ranks: list[Rank]) -> None:
    """Forty minutes of steps, a rank that slows down in the middle; the last rank cannot time its waiting."""
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
            part: list[float | None] = [0.125] * count
            waits: list[float | None] = [one - 4.5 - 0.5 * (rank.rank == 2) for one in took]
            waits = waits if rank.rank != STUCK_RANK else []
            who = records.RankId(job.key, rank.rank)
            record = records.Steps(ends[-1], who, steps, ends, took, part, [0.0] * count, part, none, waits)
            sequence = 1000 + rank.rank * 100 + minute
            rows.add_told("steps", (job.cluster_id, rank.node_id, "e1"), sequence, job.pk, record)
            times.append(("steps", ends[-1]))
    series.PartitionCache().prepare(times)
    rows.write()
