"""Short way from a made training job to its verdict, in memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from clusterwatch.analysis import Observation, diagnose
from clusterwatch.analysis.model import RankFacts
from clusterwatch.analysis.slow.calls import COMPLETED, NEVER, SCHEDULED, STARTED, Calls
from clusterwatch.analysis.slow.layout import Layout
from clusterwatch.analysis.slow.log import CallLog, call_log, hang_traces
from clusterwatch.simulate import step_job_records
from clusterwatch.simulate.step_job import JobShape, StepJob
from tests.cases.judged import Verdict

_STATES = {"scheduled": SCHEDULED, "started": STARTED, "completed": COMPLETED}
_NAMES = {"group": "pg", "sequence": "seq", "microbatch": "mb", "size_bytes": "bytes"}


def log_of(job: StepJob) -> CallLog:
    """The log as a reader would have made it."""
    told = job.columns
    columns: dict[str, Any] = {}
    for name in Calls.__slots__[:-2]:
        values = getattr(told, _NAMES.get(name, name))
        columns[name] = np.where(values == step_job_records.NONE, NEVER, values).astype(np.int64)
    columns["state"] = np.array([_STATES[name] for name in step_job_records.STATES])[told.state]
    return call_log(Calls(**columns, groups=told.pg_names, ops=told.op_names), layout_of(job.shape))


def layout_of(shape: JobShape) -> Layout:
    ranks = sorted(shape.topology()["ranks"], key=lambda place: place["rank"])
    column = {
        ours: np.array([place[theirs] for place in ranks])
        for ours, theirs in (("stage", "pp"), ("replica", "dp"), ("node", "node"), ("gpu", "gpu"))
    }
    names = {key: tuple(place[key] for place in ranks) for key in ("nic", "leaf")}
    return Layout(**column, **names)


def judged(job: StepJob) -> Verdict:
    log = log_of(job)
    facts = {
        rank: RankFacts(rank, host=f"node {node}", gpu=int(gpu))
        for rank, (node, gpu) in enumerate(zip(log.layout.node, log.layout.gpu, strict=True))
    }
    seen = Observation(world_size=log.layout.rank_count, traces=hang_traces(log), facts=facts, call_log=log)
    return diagnose(seen).to_dict()
