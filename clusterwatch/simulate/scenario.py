"""Everything that is going to happen in a simulated cluster: worlds, and what faults add to them.

In: size, shape, seed, when it begins. Out: worlds with their timelines, changes to telemetry and steps,
records that are due at a moment, what happens to agents. Built whole before the cluster lives, so that one
seed gives one story.
"""

from __future__ import annotations

import heapq
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from clusterwatch.simulate import plans, topology, world
from clusterwatch.simulate.edges import LinkPace
from clusterwatch.simulate.steps import StepShift
from clusterwatch.simulate.telemetry import Shift
from clusterwatch.simulate.world import Gone, World
from collectors.wire import records
from collectors.wire.records import ExceptionInfo, RankExit

Make = Callable[[], Iterable[records.Spooled]]


@dataclass(frozen=True, slots=True)
class AgentFault:
    """What happens to the agent of a node between two moments.

    ``dead``: its connection breaks. ``lagging``: a frame every ``value`` seconds only, and late blocks.
    ``clock``: the node's clock is ``value`` seconds ahead.
    """

    node: int
    kind: Literal["dead", "lagging", "clock"]
    start_ns: int
    end_ns: int | None
    value: float = 0.0

    def is_on(self, t_ns: int) -> bool:
        return t_ns >= self.start_ns and (self.end_ns is None or t_ns < self.end_ns)


@dataclass
class Scenario:
    """The story of one cluster."""

    shape: topology.Shape
    nodes: tuple[topology.SimulatedNode, ...]
    jobs: tuple[plans.JobPlan, ...]
    worlds: tuple[World, ...]
    begun_ns: int
    seed: int
    shifts: list[Shift] = field(default_factory=list)
    step_shifts: dict[int, list[StepShift]] = field(default_factory=lambda: defaultdict(list))
    """by first node of the world"""
    link_paces: dict[int, list[LinkPace]] = field(default_factory=lambda: defaultdict(list))
    """the same"""
    agents: list[AgentFault] = field(default_factory=list)
    _due: list[tuple[int, int, int, Make]] = field(default_factory=list)
    _count: Iterator[int] = field(default_factory=itertools.count)

    # --- who is where -------------------------------------------------------------------------------

    def world_at(self, node: int) -> World | None:
        """The world that has a node of the cluster."""
        found = (w for w in self.worlds if w.plan.first_node <= node < w.plan.end_node)
        return next(found, None)

    def worlds_of(self, job: str) -> tuple[World, ...]:
        return tuple(w for w in self.worlds if w.plan.job == job)

    # --- what happens when --------------------------------------------------------------------------

    def at(self, t_ns: int, node: int, make: Make) -> None:
        """Records of a node that are made when their time has come."""
        heapq.heappush(self._due, (t_ns, next(self._count), node, make))

    def event(
        self,
        t_ns: int,
        node: int,
        source: str,
        kind: str,
        severity: records.Severity,
        text: str,
        fields: dict[str, str] | None = None,
    ) -> None:
        """An event of a node."""
        event = records.Event(t_ns, source, kind, severity, text, fields or {})
        self.at(t_ns, node, lambda: (event,))

    def take_due(self, t_ns: int) -> Iterator[tuple[int, Make]]:
        """What is due, each once: (node, what makes its records)."""
        while self._due and self._due[0][0] <= t_ns:
            _, _, node, make = heapq.heappop(self._due)
            yield node, make

    def end_process(
        self,
        of: World,
        rank: int,
        t_ns: int,
        *,
        signal: int | None = None,
        exit_code: int | None = None,
        exception: ExceptionInfo | None = None,
        back_ns: int | None = None,
    ) -> None:
        """A process ends; its agent tells how. ``back_ns``: its successor starts."""
        attempt = of.timeline.moment(t_ns).attempt
        of.gone.append(Gone(rank, t_ns, back_ns))
        record = RankExit(
            t_ns=t_ns, ref=of.first_ref(attempt) + rank % of.plan.gpus_per_node, id=of.rank_id(rank, attempt),
            pid=of.pid(rank, attempt), exit_code=exit_code, signal=signal, exception=exception,
            clean=None if signal is None else False,
        )  # fmt: skip
        self.at(t_ns, of.plan.node_of(rank), lambda: (record,))

    def restart_job(self, job: str, ended_ns: int, resume_ns: int) -> None:
        """Whoever still lives is told to end, and all start again from the last checkpoint."""
        told_ns = max(ended_ns, resume_ns - 5 * 10**9)
        for of in self.worlds_of(job):
            dead = {gone.rank for gone in of.gone if gone.from_ns <= told_ns and gone.until_ns is None}
            of.gone = [
                Gone(g.rank, g.from_ns, resume_ns) if g.rank in dead and g.until_ns is None else g
                for g in of.gone
            ]
            for rank in range(of.plan.size):
                if rank not in dead:
                    self.end_process(of, rank, told_ns, signal=15, back_ns=resume_ns)
            of.timeline.restart(told_ns, resume_ns)
            for place in range(of.plan.node_count):
                self.at(resume_ns, of.plan.first_node + place, _starts(of, place, resume_ns))


def _starts(of: World, place: int, t_ns: int) -> Make:
    return lambda: of.inventories(place, of.timeline.moment(t_ns).attempt, t_ns, t_ns)


def build(
    gpu_count: int,
    seed: int,
    shape: topology.Shape,
    attempt: int,
    started_ns: int,
    begun_ns: int,
    jobs_max: int,
) -> Scenario:
    """The story without any fault.

    Args:
        attempt: of the jobs, which run since ``started_ns``.
        begun_ns: when the simulator began.
    Raises:
        ValueError: no GPU at all.
    """
    nodes = topology.build(gpu_count, seed, shape)
    jobs = plans.plan(len(nodes), seed, shape, jobs_max)
    worlds = tuple(
        world.make(job, plan, nodes, attempt, started_ns, seed) for job in jobs for plan in job.worlds
    )
    return Scenario(shape, nodes, jobs, worlds, begun_ns, seed)
