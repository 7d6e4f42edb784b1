"""One world of a job as it lives: what its ranks say of themselves, how busy its GPUs are, who is gone.

In: plan, timeline, faults. Out: inventories, and ``Drivers`` of the telemetry for a range of nodes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from clusterwatch.simulate.plans import JobPlan, WorldPlan
from clusterwatch.simulate.progress import Columns, WorldProgress
from clusterwatch.simulate.telemetry import Drivers
from clusterwatch.simulate.timeline import CHECKPOINT, EVALUATION, STARTUP, TRAIN, Moment, Timeline
from clusterwatch.simulate.topology import SimulatedNode
from collectors.wire.records import GroupInfo, RankId, RankInventory, group_info

TORCH: Final = "2.13.0"
_COMMUNICATION_FROM: Final = 0.78
"""Part of a step after which gradients are summed: less work, more traffic."""
_STARTUP_MIN_S: Final = 4.0
_RANKS_A_SECOND: Final = 400.0
"""How much longer a larger world takes to start."""
_FIRST_PID: Final = 41_000
_PIDS_PER_ATTEMPT: Final = 1_000

Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Gone:
    """A process that ended; ``until_ns`` its successor starts."""

    rank: int
    from_ns: int
    until_ns: int | None


@dataclass(frozen=True, slots=True)
class Held:
    """Ranks that stay in a phase of their own while the others wait."""

    ranks: tuple[int, ...]
    phase: int
    from_ns: int
    until_ns: int | None


@dataclass
class World:
    """One world; faults change ``timeline``, ``progress.stalls``, ``gone`` and ``held`` before it lives."""

    job: JobPlan
    plan: WorldPlan
    timeline: Timeline
    progress: WorldProgress
    nodes: tuple[SimulatedNode, ...]
    """of this world, in order"""
    gone: list[Gone] = field(default_factory=list)
    held: list[Held] = field(default_factory=list)
    frames: dict[int, tuple[str, ...]] = field(default_factory=dict)
    """stack of ranks that a fault holds outside of collectives, outermost first"""
    _groups: dict[tuple[str, int], GroupInfo] = field(default_factory=dict)

    # --- what ranks say of themselves ---------------------------------------------------------------

    def rank_id(self, rank: int, attempt: int) -> RankId:
        return RankId(
            job=self.plan.job, rank=rank, attempt=attempt, world=self.plan.world, role=self.plan.role
        )

    def pid(self, rank: int, attempt: int) -> int:
        return _FIRST_PID + _PIDS_PER_ATTEMPT * attempt + rank % self.plan.gpus_per_node

    def first_ref(self, attempt: int) -> int:
        """The number by which a node's frames name its first rank."""
        return 1 + (attempt - self.timeline.attempt) * self.plan.gpus_per_node

    def inventories(self, node: int, attempt: int, started_ns: int, t_ns: int) -> Iterator[RankInventory]:
        """What the ranks of a node (counted from the world's first) say when they start."""
        place = self.nodes[node]
        for local, gpu in enumerate(place.gpus):
            rank = node * self.plan.gpus_per_node + local
            yield RankInventory(
                t_ns=t_ns, ref=self.first_ref(attempt) + local, id=self.rank_id(rank, attempt),
                pid=self.pid(rank, attempt), host=place.name, world_size=self.plan.size, local_rank=local,
                gpu_index=local, gpu_uuid=gpu.uuid, started_ns=started_ns, torch_version=TORCH,
                backend="nccl",
                command=f"python train.py --config {self.job.name}.toml", groups=self.groups(rank),
                job_name=self.job.name, user=self.job.account, labels={"simulated": "yes"},
            )  # fmt: skip

    def groups(self, rank: int) -> list[GroupInfo]:
        """The process groups of a rank, named and numbered as its recorder names them."""
        layout, found = self.plan.layout, []
        for number, role in enumerate(layout.roles):
            index = int(layout.group_index[role][rank])
            group = self._groups.get((role, index))
            if group is None:
                name = str(layout.first_name[role] + index)
                members = layout.members(role, index)
                group = self._groups[role, index] = group_info(number, name, role, "nccl", members, number)
            found.append(group)
        return found

    # --- who is there -------------------------------------------------------------------------------

    def living(self, nodes: slice, t_ns: int) -> Bools | None:
        """Which ranks of some nodes are there, shape (nodes, ranks a node); None when all are."""
        first, last = nodes.start * self.plan.gpus_per_node, nodes.stop * self.plan.gpus_per_node
        gone = [
            g.rank - first
            for g in self.gone
            if first <= g.rank < last and g.from_ns <= t_ns and (g.until_ns is None or t_ns < g.until_ns)
        ]
        if not gone:
            return None
        found = np.ones(last - first, bool)
        found[gone] = False
        return found.reshape(-1, self.plan.gpus_per_node)

    def columns(self, nodes: slice, t_ns: int) -> Columns:
        """Progress of some nodes, with what holds single ranks in another phase."""
        found = self.progress.columns(nodes, t_ns)
        first, last = nodes.start * self.plan.gpus_per_node, nodes.stop * self.plan.gpus_per_node
        for held in self.held:
            rows = [rank - first for rank in held.ranks if first <= rank < last]
            if rows and held.from_ns <= t_ns and (held.until_ns is None or t_ns < held.until_ns):
                found.phase.reshape(-1)[rows] = held.phase
                found.phase_since_ns.reshape(-1)[rows] = held.from_ns
        return found

    # --- how busy it is -----------------------------------------------------------------------------

    def drivers(self, nodes: slice, t_ns: int, columns: Columns, living: Bools | None) -> Drivers:
        """What the GPUs of some nodes do at a moment."""
        moment = self.timeline.moment(t_ns)
        shape = (nodes.stop - nodes.start, self.plan.gpus_per_node)
        activity, traffic, resident, reading, writing = _levels(moment, self.timeline.rate(t_ns), t_ns)
        found = Drivers(
            np.full(shape, activity, np.float32), np.full(shape, traffic, np.float32),
            np.full(shape, resident, np.float32), np.full(shape[0], reading, np.float32),
            np.full(shape[0], writing, np.float32),
        )  # fmt: skip
        if self.progress.stall_at(moment) is not None and self.timeline.rate(t_ns) == 0.0:
            waiting = (columns.enqueued > columns.completed).any(axis=2)
            found.activity[:] = np.where(waiting, 0.08, 0.0)
            found.traffic[:] = 0.0
            found.resident[:] = waiting
            found.reading[:] = 0.0
        if living is not None:
            for driver in (found.activity, found.traffic, found.resident):
                driver[~living] = 0.0
        return found


def _levels(moment: Moment, rate: float, t_ns: int) -> tuple[float, float, float, float, float]:
    """Activity, traffic, resident, reading and writing of a world that goes well."""
    if moment.phase == STARTUP:
        begun_s = (t_ns - moment.phase_since_ns) / 1e9
        return 0.03, 0.0, float(begun_s > _STARTUP_MIN_S / 2), 1.6, 0.0
    if moment.phase == CHECKPOINT:
        return 0.04, 0.0, 1.0, 0.0, 1.0
    if moment.phase == EVALUATION:
        return 0.62, 0.2, 1.0, 0.6, 0.0
    if moment.phase != TRAIN:
        return 0.0, 0.0, 1.0, 0.0, 0.0
    summing = moment.done_ratio > _COMMUNICATION_FROM
    return (0.55 if summing else 1.0) * rate, (1.0 if summing else 0.32) * rate, 1.0, 0.5, 0.0


def startup_s(size: int) -> float:
    """Seconds from the start of the processes to the first step."""
    return _STARTUP_MIN_S + size / _RANKS_A_SECOND


def make(
    job: JobPlan, plan: WorldPlan, nodes: tuple[SimulatedNode, ...], attempt: int, started_ns: int, seed: int
) -> World:
    """A world that has no fault yet. ``nodes``: of the whole cluster."""
    timeline = Timeline(started_ns, plan.step_s, startup_s(plan.size), attempt)
    progress = WorldProgress(plan, timeline, seed)
    return World(job, plan, timeline, progress, nodes[plan.first_node : plan.end_node])
