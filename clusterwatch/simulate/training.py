"""Training jobs as they live: layout in tensor, pipeline and data groups, and progress as a function of time.

A job's numbers at any moment follow from the moment it started, so they rise for ever, also over a restart of
the simulator, and the ranks of one group differ by what sampling makes them differ.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from clusterwatch.simulate.topology import GPUS_PER_NODE, SimulatedNode
from collectors.wire.records import PHASES, GroupInfo, HotProgress, RankId, RankInventory

GROUPS: Final = ("tp", "pp", "dp")
CALLS_PER_STEP: Final = np.array([320, 32, 24])
"""Collectives a rank issues per step in each kind of group; at 4 s a step every kind moves each second."""
_LAG_MAX_S: Final = 0.02
_TRAIN: Final = PHASES.index("train")
_S: Final = 1_000_000_000

Int = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class JobPlan:
    """A job on ``node_count`` nodes from ``first_node`` on; tensor groups stay inside a node."""

    key: str
    name: str
    user: str
    first_node: int
    node_count: int
    pipeline: int
    step_s: float

    @property
    def world_size(self) -> int:
        return self.node_count * GPUS_PER_NODE

    @property
    def data(self) -> int:
        """Replicas: size of a data-parallel group."""
        return self.node_count // self.pipeline

    def groups(self, rank: int) -> list[GroupInfo]:
        """The groups of a rank. Ranks count tensor first, then data, then pipeline, as Megatron-LM does."""
        node, tensor = divmod(rank, GPUS_PER_NODE)
        stage, replica = divmod(node, self.data)
        tp = range(node * GPUS_PER_NODE, (node + 1) * GPUS_PER_NODE)
        pp = range(rank - stage * self.data * GPUS_PER_NODE, self.world_size, self.data * GPUS_PER_NODE)
        first_of_stage = stage * self.data * GPUS_PER_NODE + tensor
        dp = range(first_of_stage, first_of_stage + self.data * GPUS_PER_NODE, GPUS_PER_NODE)
        numbers = (
            node,
            self.node_count + replica * GPUS_PER_NODE + tensor,
            self.node_count + self.data * GPUS_PER_NODE + stage * GPUS_PER_NODE + tensor,
        )
        members = (tp, pp, dp)
        return [
            GroupInfo(index, str(numbers[index] + 1), desc, "nccl", list(members[index]))
            for index, desc in enumerate(GROUPS)
            if len(members[index]) > 1
        ]


def plan(node_count: int, seed: int) -> tuple[JobPlan, ...]:
    """Jobs of half, a quarter and an eighth of the cluster; the rest stays idle, as in any real one."""
    shares = ((2, "llama-405b-pretrain", "maya"), (4, "video-encoder", "ines"), (8, "rl-policy", "tomas"))
    jobs: list[JobPlan] = []
    first = 0
    for place, (share, name, user) in enumerate(shares):
        count = node_count // share or (1 if place == 0 else 0)
        if count:
            key, step_s = str(88_213 + 211 * place + seed), 4.0 - 0.7 * place
            jobs.append(JobPlan(key, name, user, first, count, _pipeline(count), step_s))
            first += count
    return tuple(jobs)


def _pipeline(node_count: int) -> int:
    """The most stages, of up to 16, that leave at least two replicas."""
    return next((p for p in (16, 8, 4, 2) if node_count % p == 0 and node_count // p >= 2), 1)


@dataclass(frozen=True, slots=True)
class Run:
    """Which attempt of the jobs runs, and since when."""

    attempt: int
    started_ns: int


class RunningJob:
    """A job that trains. Rows are its ranks in order, so each node holds ``GPUS_PER_NODE`` rows in a row."""

    def __init__(self, job: JobPlan, nodes: tuple[SimulatedNode, ...], run: Run, seed: int) -> None:
        """``nodes``: of the whole cluster."""
        self.plan = job
        self.started_ns = run.started_ns
        self._attempt = run.attempt
        self._nodes = nodes[job.first_node : job.first_node + job.node_count]
        random = np.random.default_rng([seed, int(job.key)])
        self._lag_s = random.uniform(0.0, _LAG_MAX_S, job.world_size)
        self._seed = seed
        held = [index for index, size in enumerate((GPUS_PER_NODE, job.pipeline, job.data)) if size > 1]
        self._calls = CALLS_PER_STEP[held]
        self._group_count = np.full(GPUS_PER_NODE, len(held), "<u2").tobytes()
        self._group_index = np.tile(np.array(held, "<u2"), GPUS_PER_NODE).tobytes()

    def inventories(self, node: int, t_ns: int) -> Iterator[RankInventory]:
        """What the ranks of a node of the job (counted from its first) say of themselves."""
        place = self._nodes[node]
        for local, gpu in enumerate(place.gpus):
            rank = node * GPUS_PER_NODE + local
            yield RankInventory(
                t_ns=t_ns, ref=local + 1, id=self.rank_id(rank), pid=41_000 + local, host=place.name,
                world_size=self.plan.world_size, local_rank=local, gpu_index=local, gpu_uuid=gpu.uuid,
                started_ns=self.started_ns, torch_version="2.13.0", backend="nccl",
                command=f"python train.py --config {self.plan.name}.toml", groups=self.plan.groups(rank),
                job_name=self.plan.name, user=self.plan.user, labels={"simulated": "yes"},
            )  # fmt: skip

    def rank_id(self, rank: int) -> RankId:
        return RankId(job=self.plan.key, rank=rank, attempt=self._attempt)

    def progress(self, node: int, now_ns: int) -> HotProgress:
        """Hot progress of one node's ranks at a moment. Cost: a few numpy calls on 8 rows."""
        rows = slice(node * GPUS_PER_NODE, (node + 1) * GPUS_PER_NODE)
        steps = ((now_ns - self.started_ns) / _S - self._lag_s[rows]) / self.plan.step_s
        calls = np.maximum(0.0, steps[:, None] * self._calls)
        issued = np.floor(calls).astype("<i8")
        # A call runs for the first fifth of the time to the next one.
        completed = issued - (calls - issued < 0.2)
        since_call_s = ((calls - issued) / self._calls).min(axis=1) * self.plan.step_s
        moved_ns = now_ns - (since_call_s * _S).astype("<i8")
        return HotProgress(
            ref=_REFS,
            step=np.floor(steps).astype("<i8").tobytes(),
            phase=_PHASES,
            phase_since_ns=np.full(GPUS_PER_NODE, self.started_ns, "<i8").tobytes(),
            moved_ns=moved_ns.tobytes(),
            heard_ns=np.full(GPUS_PER_NODE, now_ns - _S // 4, "<i8").tobytes(),
            group_count=self._group_count,
            group_index=self._group_index,
            enqueued=issued.tobytes(),
            completed=completed.astype("<i8").tobytes(),
            sequence=issued.tobytes(),
        )

    def steps_between(self, node: int, start_ns: int, end_ns: int) -> tuple[Int, Int, NDArray[np.float64]]:
        """Steps that ended in [start, end) on a node.

        Returns:
            step numbers (K), their ends in ns (K), and seconds each rank of the node took (8, K).
        """
        step_ns = self.plan.step_s * _S
        first = max(0, int(np.ceil((start_ns - self.started_ns) / step_ns)) - 1)
        last = max(first, int(np.ceil((end_ns - self.started_ns) / step_ns)) - 1)
        numbers = np.arange(first, last, dtype=np.int64)
        ends = self.started_ns + ((numbers + 1) * step_ns).astype(np.int64)
        random = np.random.default_rng([self._seed, int(self.plan.key), node, first])
        noise = random.normal(1.0, 0.004, (GPUS_PER_NODE, len(numbers)))
        return numbers, ends, self.plan.step_s * noise


_REFS: Final = np.arange(1, GPUS_PER_NODE + 1, dtype="<u4").tobytes()
_PHASES: Final = np.full(GPUS_PER_NODE, _TRAIN, np.uint8).tobytes()
