"""Where a fault happens: the target somebody named, or one that the seed chooses.

In: a ``Case``. Out: nodes, GPUs, ranks, switches of the scenario. Raises ``FaultError`` where there is none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from clusterwatch.simulate.faults.requests import FaultError, Request
from clusterwatch.simulate.scenario import Scenario
from clusterwatch.simulate.topology import SimulatedNode
from clusterwatch.simulate.world import World

Fits = Callable[[World], bool]


@dataclass(frozen=True)
class Case:
    """One fault to be injected."""

    scene: Scenario
    request: Request
    start_ns: int
    end_ns: int | None
    random: np.random.Generator = field(compare=False)

    @property
    def name(self) -> str:
        return self.request.name

    @property
    def target(self) -> str | None:
        return self.request.target

    def wrong_target(self, wanted: str) -> FaultError:
        return FaultError(f"{self.name}: there is no {wanted} {self.target!r} in this cluster")


@dataclass(frozen=True, slots=True)
class Place:
    """A GPU, and the rank on it."""

    world: World
    rank: int
    node: SimulatedNode
    gpu: int

    @property
    def nic(self) -> str:
        return f"nic:{self.node.name}:g{self.gpu}"

    @property
    def nvlink(self) -> str:
        return f"nvlink:{self.node.name}:g{self.gpu}"

    @property
    def uuid(self) -> str:
        return self.node.gpus[self.gpu].uuid or ""

    @property
    def pci(self) -> str:
        """As the kernel log writes it: 0000:9b:00."""
        return (self.node.gpus[self.gpu].pci or "").lower().rsplit(".", 1)[0].rsplit(":", 1)[0][4:]

    @property
    def node_ranks(self) -> tuple[int, ...]:
        """All ranks of the world on the node."""
        return tuple(self.world.plan.ranks_of(self.node.place))


def anything(_world: World) -> bool:
    return True


def world(case: Case, fits: Fits = anything) -> World:
    """``JOB`` or ``JOB/ROLE``; by default the largest world that fits and is not yet to stand still."""
    candidates = [w for w in case.scene.worlds if fits(w)]
    if case.target is not None:
        wanted, _, role = case.target.partition("/")
        candidates = [
            w for w in candidates if wanted in (w.plan.job, w.job.name) and role in ("", w.plan.role)
        ]
    if not candidates:
        target = f" {case.target!r}" if case.target else ""
        raise FaultError(
            f"{case.name}: no job{target} of this cluster is split so that this can happen in it"
        )
    return max(candidates, key=lambda w: (not w.progress.stalls, w.plan.size))


def gpu(case: Case, fits: Fits = anything) -> Place:
    """``NODE/GPU``, ``JOB/RANK`` or ``JOB/ROLE/RANK`` of a GPU that a job uses."""
    if case.target is None:
        found = world(case, fits)
        return place_of(found, int(case.random.integers(found.plan.size)))
    head, _, tail = case.target.rpartition("/")
    if not tail.isdecimal() or not head:
        raise case.wrong_target("GPU (NODE/GPU or JOB/RANK)")
    number = int(tail)
    for node in case.scene.nodes:
        if node.name == head:
            user = case.scene.world_at(node.place)
            rank = user.plan.rank_of(node.place, number) if user and number < len(node.gpus) else None
            if user is None or rank is None or not fits(user):
                raise case.wrong_target("GPU with a rank that this can happen to")
            return place_of(user, rank)
    job, _, role = head.partition("/")
    for candidate in case.scene.worlds:
        named = job in (candidate.plan.job, candidate.job.name) and role in ("", candidate.plan.role)
        if named and number < candidate.plan.size and fits(candidate):
            return place_of(candidate, number)
    raise case.wrong_target("rank")


def place_of(of: World, rank: int) -> Place:
    node = of.nodes[rank // of.plan.gpus_per_node]
    return Place(of, rank, node, rank % of.plan.gpus_per_node)


def node(case: Case) -> Place:
    """``NODE`` (or anything that names a GPU): the first GPU of a node that a job uses."""
    if case.target is None or "/" in case.target:
        found = gpu(case)
        return place_of(found.world, found.node_ranks[0])
    for candidate in case.scene.nodes:
        if candidate.name == case.target:
            user = case.scene.world_at(candidate.place)
            if user is not None:
                return place_of(user, user.plan.ranks_of(candidate.place)[0])
    raise case.wrong_target("node with a job")


def nodes_where(
    case: Case, wanted: str, names: Callable[[SimulatedNode], tuple[str, ...]]
) -> tuple[str, tuple[int, ...]]:
    """The rack or switch of the target (by default one that a job uses), and its nodes."""
    chosen = case.target
    if chosen is None:
        chosen = str(case.random.choice(names(node(case).node)))
    found = tuple(n.place for n in case.scene.nodes if chosen in names(n))
    if not found:
        raise case.wrong_target(wanted)
    return chosen, found


def ranks_on(
    case: Case, nodes: tuple[int, ...], gpus: Callable[[int], tuple[int, ...]]
) -> dict[int, tuple[int, ...]]:
    """Ranks on some GPUs, by the first node of their world. ``gpus``: of each node."""
    found: dict[int, list[int]] = {}
    for number in nodes:
        user = case.scene.world_at(number)
        if user is not None:
            first = user.plan.ranks_of(number).start
            found.setdefault(user.plan.first_node, []).extend(first + gpu for gpu in gpus(number))
    return {key: tuple(ranks) for key, ranks in found.items()}
