"""How a made job splits its ranks: up to five dimensions, and the process groups that follow from them.

In: sizes of the dimensions. Out: for every rank its group of each role, and the members of each group. Ranks
count tensor first, then context, data and pipeline, as Megatron-LM does; experts are blocks of the data
dimension. A group of one rank makes no call, so it is left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

ROLES: Final = ("default_pg", "tp", "cp", "dp", "pp", "ep", "edp", "mp")
"""World, tensor, context, data, pipeline, expert, replicas of one expert, and all ranks of one replica of the
model (tensor x pipeline). Their order is the order in which a job makes them."""


@dataclass(frozen=True)
class Layout:
    """Sizes of the dimensions; their product (``expert`` aside) is the world.

    Raises:
        ValueError: a size below one, experts that do not divide the data dimension, or a world of one rank.
    """

    tensor: int = 1
    context: int = 1
    pipeline: int = 1
    data: int = 1
    expert: int = 1
    """ranks over which experts are spread; divides ``data``"""

    def __post_init__(self) -> None:
        sizes = (self.tensor, self.context, self.pipeline, self.data, self.expert)
        if min(sizes) < 1 or self.data % self.expert or self.world < 2:
            raise ValueError(f"{self} is no layout of two ranks or more whose experts divide its replicas")

    @property
    def world(self) -> int:
        return self.tensor * self.context * self.pipeline * self.data

    @property
    def roles(self) -> tuple[str, ...]:
        return tuple(role for role in ROLES if self.size(role) > 1)

    def size(self, role: str) -> int:
        """Ranks in each group of a role; 1 where the role tells nothing that another does not."""
        return {
            "default_pg": self.world,
            "tp": self.tensor,
            "cp": self.context,
            "dp": self.data,
            "pp": self.pipeline,
            "ep": self.expert,
            "edp": self.data // self.expert if self.expert > 1 else 1,
            "mp": self.tensor * self.pipeline if min(self.tensor, self.pipeline) > 1 else 1,
        }[role]

    def stage(self, rank: int) -> int:
        return rank // (self.world // self.pipeline)

    def expert_place(self, rank: int) -> int:
        """Place of a rank among those that share its experts."""
        return rank // (self.tensor * self.context) % self.data % self.expert

    @cached_property
    def _coordinates(self) -> dict[str, Ints]:
        ranks = np.arange(self.world)
        tensor, rest = ranks % self.tensor, ranks // self.tensor
        context, rest = rest % self.context, rest // self.context
        data, stage = rest % self.data, rest // self.data
        return {"t": tensor, "c": context, "d": data, "p": stage}

    @cached_property
    def group_index(self) -> dict[str, Ints]:
        """Role -> number of the group of each rank among the groups of that role, length world."""
        at = self._coordinates
        per_stage = self.tensor * self.context
        lane = at["c"] * self.tensor + at["t"]
        ranks = np.arange(self.world)
        blocks = self.data // self.expert
        index = {
            "default_pg": np.zeros(self.world, np.int64),
            "tp": ranks // self.tensor,
            "cp": ranks // per_stage * self.tensor + at["t"],
            "dp": at["p"] * per_stage + lane,
            "pp": ranks % (self.world // self.pipeline),
            "ep": (at["p"] * blocks + at["d"] // self.expert) * per_stage + lane,
            "edp": (at["p"] * self.expert + at["d"] % self.expert) * per_stage + lane,
            "mp": at["d"] * self.context + at["c"],
        }
        return {role: index[role] for role in self.roles}

    @cached_property
    def first_name(self) -> dict[str, int]:
        """Role -> name, a number, of its first group: names count over all groups of a job."""
        names, next_name = {}, 0
        for role in self.roles:
            names[role] = next_name
            next_name += self.world // self.size(role)
        return names

    @cached_property
    def _members(self) -> dict[str, Ints]:
        """Role -> members, shape (groups, size), each row rising."""
        return {
            role: np.argsort(index, kind="stable").reshape(-1, self.size(role))
            for role, index in self.group_index.items()
        }

    def members(self, role: str, index: int) -> tuple[int, ...]:
        """Global ranks of a group, rising, which is also the order of their group ranks."""
        return tuple(self._members[role][index].tolist())

    def peers(self, role: str, rank: int) -> tuple[int, ...]:
        return self.members(role, int(self.group_index[role][rank]))
