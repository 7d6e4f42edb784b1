"""Jobs for the tests of reports: a tensor rank that never came, hostile names, a job of any size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from clusterwatch.analysis import Diagnosis, Observation, diagnose
from clusterwatch.analysis.groups import reduced
from clusterwatch.analysis.overview import Overview, overview
from clusterwatch.analysis.tables import Window
from tests.analysis.looks import traces
from tests.data.recorder import Job, name_of, parallel, steps

HOSTILE = "</script><img src=x onerror=alert(1)>\x1b[31m\"'&\u202e"


def write(job: Job, target: Path, without: tuple[int, ...] = ()) -> Path:
    """The job's dumps as files of ``target``."""
    target.mkdir(exist_ok=True)
    for rank in range(job.world):
        if rank not in without:
            (target / f"nccl_trace_rank_{rank}").write_bytes(job.pickled(rank))
    return target


def windows(job: Job, without: tuple[int, ...] = ()) -> tuple[Window, ...]:
    return tuple(reduced(Observation(traces=traces(job, without))))


def stuck_job(**options: Any) -> Job:
    """8 NCCL ranks; rank 5 never joins the fifth call of its tensor group, and 4 waits there."""
    job = parallel("nccl", **options)
    steps(job, 2)
    for rank in range(8):
        if rank != 5:
            state = "scheduled" if rank == 4 else "completed"
            job.call(rank, name_of(job, "tp", rank), state=state)
    return job


def hostile_job() -> Job:
    job = Job(2)
    job.group("1", HOSTILE, (0, 1))
    job.all(group="1", op=HOSTILE)
    job.call(0, "1", op=HOSTILE, state="scheduled")
    for ring in job.rings:
        for entry in ring.entries:
            entry["frames"] = [{"name": HOSTILE, "filename": HOSTILE, "line": 3}]
    return job


def judged(found: tuple[Window, ...], **facts: Any) -> tuple[Diagnosis, Overview]:
    diagnosis = diagnose(Observation(windows=found, **facts))
    return diagnosis, overview(found, diagnosis)
