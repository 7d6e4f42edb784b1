"""Which jobs a simulated cluster runs, on which nodes, split how.

In: nodes and their shape. Out: ``JobPlan`` with one or more worlds; each world fills whole nodes in a row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from clusterwatch.simulate.topology import Shape
from clusterwatch.simulate.traces_layout import Layout

JOBS_MAX: Final = 12
_BUSY_RATIO: Final = 0.94
"""The rest stays idle, as in any real cluster."""
_RANKS_MIN: Final = 2
"""A world of one rank calls nobody."""
_FIRST_KEY: Final = 88_213
_KEY_STEP: Final = 211


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of job: its share of the cluster, and how it likes to split its ranks."""

    name: str
    account: str
    share: float
    step_s: float
    pipeline: int
    context: int = 1
    expert: int = 1
    roles: tuple[str, ...] = ("",)
    """one world each"""


_KINDS: Final = (
    _Kind("llm-405b-pretrain", "svc-pretrain", 0.29, 4.0, 16, context=2),
    _Kind("moe-pretrain", "svc-pretrain", 0.17, 3.2, 8, context=2, expert=8),
    _Kind("long-context-tuning", "svc-longcontext", 0.11, 6.0, 4, context=4, expert=4),
    _Kind("policy-rl", "svc-rl", 0.10, 2.6, 4, roles=("learner", "actor")),
    _Kind("video-encoder", "svc-vision", 0.08, 1.8, 1),
    _Kind("code-model", "svc-code", 0.06, 2.2, 4),
    _Kind("speech-encoder", "svc-speech", 0.05, 1.2, 1),
    _Kind("reward-model", "svc-rl", 0.04, 1.5, 2),
    _Kind("distillation", "svc-serving", 0.04, 2.0, 2),
    _Kind("retrieval-encoder", "svc-search", 0.03, 0.9, 1),
    _Kind("moe-ablation", "svc-research", 0.02, 1.6, 2, expert=2),
    _Kind("eval-sweep", "svc-research", 0.01, 1.0, 1),
)


@dataclass(frozen=True)
class WorldPlan:
    """One world: ranks 0.. on ``node_count`` nodes from ``first_node`` on, in order."""

    job: str
    world: str
    role: str
    first_node: int
    node_count: int
    gpus_per_node: int
    layout: Layout
    step_s: float

    @property
    def size(self) -> int:
        return self.layout.world

    @property
    def end_node(self) -> int:
        return self.first_node + self.node_count

    def node_of(self, rank: int) -> int:
        """Number in the cluster of the node a rank runs on."""
        return self.first_node + rank // self.gpus_per_node

    def rank_of(self, node: int, gpu: int) -> int | None:
        """The rank on a GPU of the cluster, None where another world or none has it."""
        if not self.first_node <= node < self.end_node:
            return None
        return (node - self.first_node) * self.gpus_per_node + gpu

    def ranks_of(self, node: int) -> range:
        """The ranks on a node of this world."""
        first = (node - self.first_node) * self.gpus_per_node
        return range(first, first + self.gpus_per_node)


@dataclass(frozen=True)
class JobPlan:
    """A job and its worlds."""

    key: str
    name: str
    account: str
    worlds: tuple[WorldPlan, ...]

    @cached_property
    def nodes(self) -> range:
        return range(self.worlds[0].first_node, self.worlds[-1].end_node)


def plan(node_count: int, seed: int, shape: Shape, jobs_max: int = JOBS_MAX) -> tuple[JobPlan, ...]:
    """The jobs of a cluster: larger clusters run more of them; a small one runs one, and has an idle node."""
    kinds = _KINDS[: max(1, min(jobs_max, node_count // 4))]
    busy = max(1, min(node_count - 1, int(node_count * _BUSY_RATIO)))
    total = sum(kind.share for kind in kinds)
    made, first = [], 0
    for place, kind in enumerate(kinds):
        least = len(kind.roles) * -(-_RANKS_MIN // shape.gpus_per_node)
        count = max(least, int(busy * kind.share / total))
        if first + count > busy:
            break
        key = str(_FIRST_KEY + _KEY_STEP * place + seed)
        worlds = tuple(_worlds(kind, key, first, count, shape))
        made.append(JobPlan(key, kind.name, kind.account, worlds))
        first = worlds[-1].end_node
    return tuple(made)


def _worlds(kind: _Kind, key: str, first: int, count: int, shape: Shape) -> Iterator[WorldPlan]:
    each = count // len(kind.roles)
    for role in kind.roles:
        layout, nodes = _layout(kind, each, shape)
        name = role and f"{role}-0.{kind.name}:29500"
        yield WorldPlan(key, name, role, first, nodes, shape.gpus_per_node, layout, kind.step_s)
        first += nodes


def _layout(kind: _Kind, node_count: int, shape: Shape) -> tuple[Layout, int]:
    """The split that fits best, and the nodes it takes: tensor groups stay inside of an NVLink domain."""
    tensor = _tensor(shape)
    domain = max(1, tensor // shape.gpus_per_node)
    for pipeline in _halves(kind.pipeline):
        for context in _halves(kind.context):
            unit = domain * pipeline * context  # nodes of one replica, where a node holds one tensor group
            replicas = node_count // unit
            if replicas >= 2 or (pipeline == 1 and context == 1 and replicas):
                data = replicas * shape.gpus_per_node * domain // tensor
                expert = next(size for size in _halves(kind.expert) if data >= 2 * size or size == 1)
                if tensor >= shape.gpus_per_node:  # whole nodes more or less keep the replicas even
                    replicas -= replicas % expert
                    data = replicas
                else:
                    expert = next(size for size in _halves(expert) if data % size == 0)
                return Layout(tensor, context, pipeline, data, expert), replicas * unit
    return Layout(data=node_count * shape.gpus_per_node), node_count


def _tensor(shape: Shape) -> int:
    """Ranks of a tensor group: at most eight, whole nodes or a whole part of one."""
    return next(size for size in (8, 4, 2, 1) if _fits(size, shape))


def _fits(size: int, shape: Shape) -> bool:
    if size <= shape.gpus_per_node:
        return shape.gpus_per_node % size == 0
    domain = shape.gpus_per_node * shape.domain_nodes
    return domain % size == 0 and size % shape.gpus_per_node == 0


def _halves(size: int) -> Iterator[int]:
    """``size``, half of it, and so on down to one."""
    while size >= 1:
        yield size
        size //= 2
