"""How long the collectives of a simulated world take: one fabric, its rings, and what faults leave of them.

In: a world, told steps, ``LinkPace`` of faults. Out: ``records.Edges`` of a node's ranks. A ring moves at the
pace of its slowest member: latency by hop, then bytes by bandwidth (Hockney's alpha-beta model; "Optimization
of Collective Communication Operations in MPICH", Thakur et al.). All members of a call end together. Who
comes last waits for nobody: its call lasts as long as the transfer; the others' calls hold their waiting.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from clusterwatch.simulate.plans import WorldPlan
from clusterwatch.simulate.steps import StepTimes
from clusterwatch.simulate.world import World
from collectors.wire.records import Edges

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Link = Literal["nic", "nvlink"]

_BYTES_PER_S: Final[dict[Link, float]] = {"nic": 45e9, "nvlink": 330e9}
"""Of one GPU: a 400G port and NVLink 4 under a ring, less than their names."""
_HOP_S: Final[dict[Link, float]] = {"nic": 12e-6, "nvlink": 3e-6}
_TELL_EVERY_S: Final = 7.5
"""A hook tells the first power of two of steps that is enough."""
_FIRST_TOLD: Final = 32
_NOISE: Final = 0.02
"""Of a call's transfer, one standard deviation of its logarithm: the fabric is shared."""
_JITTER: Final = 0.004
"""Between what the members of a call measure."""


@dataclass(frozen=True, slots=True)
class _Traffic:
    """One kind of call of a role in a step."""

    role: str
    op: str
    count: int
    share: float
    """of a step, while every link is well"""


_TRAFFIC: Final = (
    _Traffic("tp", "all_gather_into_tensor", 128, 0.045),
    _Traffic("tp", "reduce_scatter_tensor", 128, 0.045),
    _Traffic("cp", "all_gather_into_tensor", 32, 0.02),
    _Traffic("ep", "all_to_all_single", 64, 0.025),
    _Traffic("dp", "reduce_scatter_tensor", 16, 0.06),
    _Traffic("dp", "all_gather_into_tensor", 16, 0.04),
    _Traffic("edp", "reduce_scatter_tensor", 16, 0.03),
    _Traffic("pp", "send", 32, 0.015),
    _Traffic("pp", "recv", 32, 0.015),
)
_OPS: Final = tuple(dict.fromkeys(one.op for one in _TRAFFIC))
_P2P: Final = ("send", "recv")


@dataclass(frozen=True, slots=True)
class LinkPace:
    """What a fault leaves of the bandwidth of some ranks' links between two moments, as a ratio."""

    ranks: tuple[int, ...]
    link: Link
    ratio: float
    start_ns: int
    end_ns: int | None

    def is_on(self, t_ns: int) -> bool:
        return self.start_ns <= t_ns and (self.end_ns is None or t_ns < self.end_ns)


def link_of(plan: WorldPlan, role: str, domain_nodes: int) -> Link:
    """What the groups of a role go over. Groups of one NVLink domain use no port."""
    members = np.array(plan.layout.members(role, 0))
    nodes = (plan.first_node + members // plan.gpus_per_node) // domain_nodes
    return "nvlink" if len(np.unique(nodes)) == 1 else "nic"


def slowdown(plan: WorldPlan, link: Link, ratio: float, domain_nodes: int) -> float:
    """How much longer a step takes when some of a world's links have only ``ratio`` of their bandwidth."""
    over = sum(
        one.share
        for one in _TRAFFIC
        if one.role in plan.layout.roles and link_of(plan, one.role, domain_nodes) == link
    )
    return 1.0 + over * (1.0 / ratio - 1.0)


def is_told(step: int, step_s: float) -> bool:
    """Whether hooks tell the transfers of a step: decided by its number, alike on all ranks."""
    power = 0
    while (1 << power) * step_s < _TELL_EVERY_S:
        power += 1
    return step <= _FIRST_TOLD or not step % (1 << power)


class Fabric:
    """Transfers of one world."""

    def __init__(self, world: World, domain_nodes: int, seed: int) -> None:
        self._world = world
        self._seed = seed
        plan = world.plan
        self._kinds = [one for one in _TRAFFIC if one.role in plan.layout.roles]
        self._links = [link_of(plan, one.role, domain_nodes) for one in self._kinds]
        self._sizes = [self._size(one, link) for one, link in zip(self._kinds, self._links, strict=True)]
        self._paces: dict[tuple[LinkPace, ...], list[Floats]] = {}

    def _size(self, one: _Traffic, link: Link) -> int:
        """Bytes that one rank passes to a call, so that all calls of a step take its share."""
        hops = 1 if one.op in _P2P else self._world.plan.layout.size(one.role) - 1
        each_s = self._world.plan.step_s * one.share / one.count
        total = max(each_s - hops * _HOP_S[link], 0.1 * each_s) * _BYTES_PER_S[link]
        return max(1 << 16, int(total if one.op in _P2P else total / hops))

    def records(
        self, ranks: range, times: StepTimes, paces: Sequence[LinkPace], t_ns: int, clock_ns: int
    ) -> Iterator[Edges]:
        """A record for each rank of a node; none where no step is told. ``clock_ns``: error of the clock."""
        plan = self._world.plan
        chosen = [place for place, step in enumerate(times.step.tolist()) if is_told(step, plan.step_s)]
        if not chosen or not self._kinds:
            return
        steps, ends_ns = times.step[chosen], times.end_ns[chosen].tolist()
        transfer_s, last = self._transfers(ranks, steps, ends_ns, paces)
        counts = np.array([one.count for one in self._kinds])
        spent = (transfer_s * counts).sum(axis=2)
        left_s = np.maximum(times.collective_s[:, chosen] - spent, 0.0)
        wait_s = (left_s / counts.sum())[:, :, None] * np.where(last, 0.0, 1.0)
        random = np.random.default_rng([self._seed, 11, plan.first_node, ranks.start, int(times.step[0])])
        yield from self._rows(ranks, times, chosen, transfer_s, wait_s, random, t_ns, clock_ns)

    def _rows(
        self, ranks: range, times: StepTimes, chosen: list[int], transfer_s: Floats, wait_s: Floats,
        random: np.random.Generator, t_ns: int, clock_ns: int,
    ) -> Iterator[Edges]:  # fmt: skip
        """Shapes (ranks, told steps, kinds)."""
        shape, plan = transfer_s.shape, self._world.plan
        measured = transfer_s * (1.0 + _JITTER * np.abs(random.standard_normal(shape)))
        early = wait_s * random.gamma(1.5, 0.1, shape)
        least_s, p10_s = measured + 0.2 * early, measured + early
        p50_s = p10_s + 0.7 * wait_s
        counts = np.array([one.count for one in self._kinds])
        sum_s = (measured + wait_s) * counts
        columns = {"sum_s": sum_s, "min_s": least_s, "p10_s": p10_s, "p50_s": p50_s}
        roles = plan.layout.roles
        fixed = {
            "group": [roles.index(one.role) for one in self._kinds] * len(chosen),
            "op": [_OPS.index(one.op) for one in self._kinds] * len(chosen),
            "size_bytes": self._sizes * len(chosen),
            "count": counts.tolist() * len(chosen),
        }
        step = np.repeat(times.step[chosen], len(self._kinds)).tolist()
        attempt = self._world.timeline.moment(int(times.end_ns[-1])).attempt
        for row, rank in enumerate(ranks):
            seconds = {name: column[row].reshape(-1).round(7).tolist() for name, column in columns.items()}
            yield Edges(
                t_ns=t_ns + clock_ns, id=self._world.rank_id(rank, attempt), ops=list(_OPS), step=step,
                **fixed, **seconds,
            )  # fmt: skip

    def _transfers(
        self, ranks: range, steps: Ints, ends_ns: Sequence[int], paces: Sequence[LinkPace]
    ) -> tuple[Floats, NDArray[np.bool_]]:
        """Seconds of one call's transfer and who comes last to it, shape (ranks, steps, kinds)."""
        layout = self._world.plan.layout
        on = [tuple(one for one in paces if one.is_on(end_ns)) for end_ns in ends_ns]
        shape = (len(ranks), len(steps), len(self._kinds))
        found, last = np.empty(shape), np.empty(shape, np.bool_)
        for kind, (one, link, size) in enumerate(zip(self._kinds, self._links, self._sizes, strict=True)):
            hops = 1 if one.op in _P2P else layout.size(one.role) - 1
            call = _mixed(self._group(one.role, ranks)[:, None], steps[None, :], self._seed, kind)
            pace = np.stack([self._paces_of(each)[kind][ranks.start : ranks.stop] for each in on], axis=1)
            least_s = hops * _HOP_S[link] + hops * size / (_BYTES_PER_S[link] * pace)
            found[:, :, kind] = least_s * np.exp(_NOISE * _normal(call))
            chosen = (_mixed(call, 3) % np.uint64(layout.size(one.role))).astype(np.int64)
            place = self._place_in_group[one.role][ranks.start : ranks.stop]
            last[:, :, kind] = place[:, None] == chosen
        return found, last

    def _group(self, role: str, ranks: range) -> Ints:
        index: Ints = self._world.plan.layout.group_index[role][ranks.start : ranks.stop]
        return index

    def _paces_of(self, paces: tuple[LinkPace, ...]) -> list[Floats]:
        """By kind: the pace of each rank's ring, shape (ranks of the world,); that of its slowest member."""
        found = self._paces.get(paces)
        if found is None:
            if len(self._paces) > 16:
                self._paces.clear()
            found = self._paces[paces] = [
                self._pace(one, link, paces) for one, link in zip(self._kinds, self._links, strict=True)
            ]
        return found

    def _pace(self, one: _Traffic, link: Link, paces: Sequence[LinkPace]) -> Floats:
        layout = self._world.plan.layout
        own = np.ones(layout.world)
        for pace in paces:
            if pace.link == link:
                own[list(pace.ranks)] *= pace.ratio
        groups = np.argsort(layout.group_index[one.role], kind="stable").reshape(-1, layout.size(one.role))
        found = np.empty(layout.world)
        if one.op in _P2P:  # a rank's own port and that of the better neighbour: the fastest tenth is told
            line = own[groups]
            before = np.minimum(line, np.roll(line, 1, axis=1))
            after = np.minimum(line, np.roll(line, -1, axis=1))
            before[:, 0], after[:, -1] = after[:, 0], before[:, -1]
            found[groups] = np.maximum(before, after)
        else:
            found[groups] = own[groups].min(axis=1, keepdims=True)
        return found

    @cached_property
    def _place_in_group(self) -> dict[str, Ints]:
        """Role -> place of each rank of the world among the members of its group."""
        layout, found = self._world.plan.layout, {}
        for role in layout.roles:
            order = np.argsort(layout.group_index[role], kind="stable")
            found[role] = np.empty(layout.world, np.int64)
            found[role][order] = np.arange(layout.world) % layout.size(role)
        return found


# --- what all members of a call share, on whatever node they are -------------------------------------------


def _normal(call: NDArray[np.uint64]) -> Floats:
    """A normal number by call, the same on every node (Box and Muller)."""
    first, second = ((_mixed(call, salt).astype(np.float64) + 1.0) / 2.0**64 for salt in (1, 2))
    found: Floats = np.sqrt(-2.0 * np.log(first)) * np.cos(2.0 * np.pi * second)
    return found


def _mixed(of: Ints | NDArray[np.uint64], *salts: int | Ints) -> NDArray[np.uint64]:
    """64 bits by numbers. Source: splitmix64, Steele et al., "Fast Splittable PRNGs"."""
    found = of.astype(np.uint64)
    with np.errstate(over="ignore"):
        for salt in salts:
            found = found * np.uint64(0x9E3779B97F4A7C15) + np.asarray(salt).astype(np.uint64)
            found ^= found >> np.uint64(30)
            found *= np.uint64(0xBF58476D1CE4E5B9)
            found ^= found >> np.uint64(27)
            found *= np.uint64(0x94D049BB133111EB)
            found ^= found >> np.uint64(31)
    return found
