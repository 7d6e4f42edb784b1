"""A made training job judged without files: the log as a reader would have made it, and the verdict on it.

In: ``StepJob``. Out: ``CallLog``, and the object of a diagnosis. What ``bench detect --arrays`` judges; the
columns are those of ``readers.collective_log``, so only the reading of lines is left out.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from clusterwatch.analysis import Observation, diagnose
from clusterwatch.analysis.model import RankFacts
from clusterwatch.analysis.slow.calls import COLUMNS, COMPLETED, NEVER, SCHEDULED, STARTED, Calls
from clusterwatch.analysis.slow.layout import Layout
from clusterwatch.analysis.slow.log import CallLog, call_log, hang_traces
from clusterwatch.simulate import step_job_records
from clusterwatch.simulate.step_job import JobShape, StepJob

_STATES: Final = {"scheduled": SCHEDULED, "started": STARTED, "completed": COMPLETED}
_NAMES: Final = {"group": "pg", "sequence": "seq", "microbatch": "mb", "size_bytes": "bytes"}


def log_of(job: StepJob) -> CallLog:
    """The log of a job."""
    told = job.columns
    columns: dict[str, Any] = {}
    for name in COLUMNS:
        values = getattr(told, _NAMES.get(name, name))
        columns[name] = np.where(values == step_job_records.NONE, NEVER, values)
    columns["state"] = np.array([_STATES[name] for name in step_job_records.STATES])[told.state]
    return call_log(Calls(**columns, groups=told.pg_names, ops=told.op_names), layout_of(job.shape))


def layout_of(shape: JobShape) -> Layout:
    """The layout that the job's ``topology.json`` tells."""
    ranks = sorted(shape.topology()["ranks"], key=lambda place: int(place["rank"]))
    stage, replica, node, gpu = (
        np.array([place[name] for place in ranks], np.int64) for name in ("pp", "dp", "node", "gpu")
    )
    nic, leaf = (tuple(str(place[name]) for place in ranks) for name in ("nic", "leaf"))
    return Layout(stage, replica, node, gpu, nic, leaf)


def verdict_on(log: CallLog) -> dict[str, Any]:
    """What ``clusterwatch analyze --json`` would say to the log's folder."""
    facts = {
        rank: RankFacts(rank, host=f"node {node}", gpu=int(gpu))
        for rank, (node, gpu) in enumerate(zip(log.layout.node, log.layout.gpu, strict=True))
    }
    seen = Observation(world_size=log.layout.rank_count, traces=hang_traces(log), facts=facts, call_log=log)
    return diagnose(seen).to_dict()
