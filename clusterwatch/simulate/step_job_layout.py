"""Who is who in a made training job: ranks, nodes, groups, ports, leaves, and how its steps are built.

In: sizes. Out: ``JobShape`` with arrays over (pipeline, data, tensor) and the object of ``topology.json``.
Rank order, group names and the 1F1B order of micro-batches are those of the collective log, version 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_TENSOR_BYTES: Final = 64 * 2**20
"""Activations of a micro-batch."""
_GRADIENT_BYTES: Final = 4 * 2**30
"""Gradients of a stage in 32 bit, before tensor ranks share them; weights are half of it."""


class Half(NamedTuple):
    """Half of a micro-batch on one stage: its forward or its backward pass."""

    forward: bool
    micro_batch: int


@dataclass(frozen=True)
class JobShape:
    """Sizes of a job. Tensor groups are neighbours on a node, stages the outermost blocks of ranks."""

    tensor: int = 2
    pipeline: int = 2
    data: int = 4
    micro_batches: int = 4
    steps: int = 100
    gpus_per_node: int = 4
    pod_nodes: int = 2
    """nodes behind one leaf of each rail"""
    checkpoint_steps: int = 20

    def __post_init__(self) -> None:
        sizes = (self.tensor, self.pipeline, self.data, self.micro_batches, self.steps, self.gpus_per_node)
        if min(*sizes, self.pod_nodes, self.checkpoint_steps) < 1:
            raise ValueError("every size of a job is at least 1")
        if self.world % self.gpus_per_node or self.gpus_per_node % self.tensor:
            raise ValueError("ranks fill whole nodes, and tensor groups stay inside of one")

    @property
    def world(self) -> int:
        return self.tensor * self.pipeline * self.data

    @property
    def nodes(self) -> int:
        return self.world // self.gpus_per_node

    @property
    def grid(self) -> tuple[int, int, int]:
        """Shape of everything that is known rank by rank: (pipeline, data, tensor)."""
        return self.pipeline, self.data, self.tensor

    @cached_property
    def rank(self) -> Ints:
        return np.arange(self.world).reshape(self.grid)

    @cached_property
    def node(self) -> Ints:
        return self.rank // self.gpus_per_node

    @cached_property
    def gpu(self) -> Ints:
        return self.rank % self.gpus_per_node

    @cached_property
    def leaf(self) -> Ints:
        """Number of the leaf of a rank's port."""
        return self.node // self.pod_nodes * self.gpus_per_node + self.gpu

    def place(self, rank: int) -> tuple[int, int, int]:
        """(stage, replica, tensor place) of a rank."""
        stage, rest = divmod(rank, self.data * self.tensor)
        return (stage, *divmod(rest, self.tensor))

    def leaf_name(self, leaf: int) -> str:
        pod, rail = divmod(leaf, self.gpus_per_node)
        return f"leaf-p{pod}-r{rail}"

    def part_name(self, kind: str, rank: int) -> str:
        """Name of the ``nic`` or the ``nvlink`` of a rank's GPU."""
        node, gpu = divmod(rank, self.gpus_per_node)
        return f"{kind}:n{node}:g{gpu}"

    @property
    def tensor_bytes(self) -> int:
        return _TENSOR_BYTES

    @property
    def stage_bytes(self) -> int:
        """Of a message between two stages: what one tensor rank sends."""
        return _TENSOR_BYTES // self.tensor

    @property
    def gradient_bytes(self) -> int:
        return _GRADIENT_BYTES // self.tensor

    @property
    def weight_bytes(self) -> int:
        return self.gradient_bytes // 2

    def schedule(self, stage: int, micro_batches: int) -> tuple[Half, ...]:
        """The 1F1B order of a stage: warm-up, one forward and one backward in turn, cool-down."""
        ahead = min(self.pipeline - 1 - stage, micro_batches)
        order = [Half(True, number) for number in range(ahead)]
        for number in range(micro_batches):
            if ahead + number < micro_batches:
                order.append(Half(True, ahead + number))
            order.append(Half(False, number))
        return tuple(order)

    def topology(self) -> dict[str, Any]:
        """The object of ``topology.json``."""
        ranks = []
        for rank in range(self.world):
            stage, replica, place = self.place(rank)
            node, gpu = divmod(rank, self.gpus_per_node)
            leaf = self.leaf_name(int(self.leaf[stage, replica, place]))
            ranks.append(
                {"rank": rank, "node": node, "gpu": gpu, "tp": place, "dp": replica, "pp": stage,
                 "nic": self.part_name("nic", rank), "leaf": leaf}
            )  # fmt: skip
        return {
            "tp": self.tensor, "pp": self.pipeline, "dp": self.data, "microbatches": self.micro_batches,
            "steps": self.steps, "gpus_per_node": self.gpus_per_node, "ranks": ranks,
        }  # fmt: skip


SHAPES: Final = {
    16: JobShape(),
    32: JobShape(2, 4, 4, 8, 80, 8),
    64: JobShape(4, 4, 4, 8, 80, 8),
    128: JobShape(4, 4, 8, 8, 80, 8, 4),
    256: JobShape(8, 4, 8, 8, 60, 8, 4),
    512: JobShape(8, 8, 8, 8, 60, 8, 8),
}
"""A usual job of each number of ranks."""
