"""Slurm: which jobs are on a node, with how many nodes, GPUs and restarts, until when, below which switch.

In: ``squeue --json`` (commands/squeue_--json.json), etc/slurm/topology.conf. Out: an event ``job`` for each
job that holds this node; ``scheduler_error`` when squeue does not answer as it should. Poll one place: each
call costs the controller.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from collectors.pollers import slurm_jobs
from collectors.sources import tools
from collectors.sources.base import HOST, Reading, SourceEvent
from collectors.sources.hostlist import short
from collectors.sources.slurm_topology import leaf_of
from collectors.sources.tree import Tree

RECORDED: Final = "squeue_--json.json"
QUEUE_MAX_BYTES: Final = 64 * 1024 * 1024
TIMEOUT_S: Final = 20.0


class SlurmPoller:
    """The queue, as it concerns the node of the tree."""

    name = "slurm"
    period_s = 60.0
    deadline_s = 30.0
    metrics = ()

    def read(self, tree: Tree, at_s: float) -> Reading:
        host = tree.host_name()
        argv = ["squeue", "--json", f"--nodelist={short(host)}"]
        try:
            queue = slurm_jobs.parse(tools.output(tree, RECORDED, argv, TIMEOUT_S, QUEUE_MAX_BYTES))
        except FileNotFoundError:
            return Reading()
        except (OSError, ValueError) as error:
            return Reading((), [_failure(f"squeue: {error}"[:300])])
        events = list(_jobs(tree, queue, host))
        if queue.errors:
            events.append(_failure(f"squeue: {'; '.join(queue.errors)}"[:300]))
        return Reading((), events)


def _jobs(tree: Tree, queue: slurm_jobs.Queue, host: str) -> Iterator[SourceEvent]:
    switch = leaf_of(tree, host)
    for job in queue.jobs:
        index = job.index_of(host) if job.on_nodes else None
        if index is None:
            continue
        doing = job.state.lower() if job.state else "in an unknown state"
        noun = "node" if job.nodes == 1 else "nodes"
        yield SourceEvent(
            f"job/{job.id}", "job", f"{job.name} {doing} on {job.nodes} {noun}", "info",
            attributes={
                "nodes": job.nodes,
                "gpus": job.gpus,
                "restarts": job.restarts,
                "state": job.state,
                "node_index": index,
                "time_limit_s": job.time_limit_s,
                "switch": switch,
            },
            standing=True,
        )  # fmt: skip


def _failure(text: str) -> SourceEvent:
    return SourceEvent(HOST, "scheduler_error", text, "warning", standing=True)
