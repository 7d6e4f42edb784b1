"""Where the ranks of a job sit: pipeline stage, replica, node, GPU, network port and leaf switch.

In: what a topology file declares, checked against the groups that were seen. Out: ``Layout``. A stage is a
set of ranks with like work; a replica is what works through one share of the data. Where nothing is declared,
or what is declared contradicts the calls, both are told from the calls: point-to-point names, group members.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
UNKNOWN = -1


@dataclass(frozen=True, slots=True)
class Layout:
    """Arrays of length ``rank_count``; ``UNKNOWN`` where nothing is known.

    Attributes:
        stage: pipeline stage, from 0.
        replica: index of the data-parallel replica.
        node: index of the host.
        nic: name of the rank's network port; empty where unknown.
        leaf: name of the switch behind that port.
        is_declared: stage and replica come from the topology, not from the calls.
        parts_told: GPU and port are known; else each rank is taken to have one of its own, without a name.
    """

    stage: Ints
    replica: Ints
    node: Ints
    gpu: Ints
    nic: tuple[str, ...]
    leaf: tuple[str, ...]
    hosts: tuple[str, ...] = ()
    is_declared: bool = True
    parts_told: bool = True

    @property
    def rank_count(self) -> int:
        return len(self.stage)

    def node_ranks(self, node: int) -> tuple[int, ...]:
        return tuple(np.flatnonzero(self.node == node).tolist())

    def host(self, rank: int) -> str:
        """Name of a rank's host, or its index in words."""
        if self.hosts and self.hosts[rank]:
            return self.hosts[rank]
        return f"node {self.node[rank]}" if self.node[rank] != UNKNOWN else "an unknown host"


@dataclass(frozen=True, slots=True)
class Members:
    """Members of each group as the calls show them: ``ranks[start[g]:start[g + 1]]``, rising."""

    start: Ints
    ranks: Ints

    @classmethod
    def of(cls, group: Ints, rank: Ints, group_count: int) -> Members:
        """From one (group, rank) per call. Cost: O(n log n)."""
        wide = int(rank.max(initial=0)) + 1
        pairs = np.unique(group * wide + rank)
        counts = np.bincount(pairs // wide, minlength=group_count)
        return cls(np.concatenate(([0], np.cumsum(counts))), pairs % wide)

    def of_group(self, group: int) -> Ints:
        return self.ranks[self.start[group] : self.start[group + 1]]

    def sizes(self) -> Ints:
        return np.diff(self.start)

    @property
    def count(self) -> int:
        return len(self.start) - 1


def is_consistent(stage: Ints, replica: Ints, members: Members) -> bool:
    """Whether each group varies in as few coordinates as a group of such a layout may.

    A group of some ranks joins ranks of one stage (tensor, data) or of one replica (tensor, pipeline); only
    the group of all joins what has neither in common.
    """
    for group in range(members.count):
        ranks = members.of_group(group)
        if len(ranks) < 2 or len(ranks) == len(stage) or ranks[-1] >= len(stage):
            continue
        if len(np.unique(stage[ranks])) > 1 and len(np.unique(replica[ranks])) > 1:
            return False
    return True


def derived(
    rank_count: int, members: Members, stage_told: Ints, works_in: Sequence[bool], is_world: Sequence[bool]
) -> tuple[Ints, Ints]:
    """(stage, replica) from the calls.

    Args:
        stage_told: stage by rank as point-to-point names tell it, ``UNKNOWN`` where they do not.
        works_in: by group: it is used during micro-batches (tensor, pipeline), so it lies in one replica.
        is_world: by group: it holds all ranks.
    """
    parent = np.arange(rank_count)

    def root(rank: int) -> int:
        while parent[rank] != rank:
            parent[rank] = parent[parent[rank]]
            rank = int(parent[rank])
        return rank

    for group in range(members.count):
        ranks = members.of_group(group)
        if not works_in[group] or is_world[group]:
            continue
        for rank in ranks[1:].tolist():
            parent[root(rank)] = root(int(ranks[0]))
    roots = np.fromiter((root(rank) for rank in range(rank_count)), np.int64, rank_count)
    replica = np.unique(roots, return_inverse=True)[1].astype(np.int64)
    stage = np.where(stage_told == UNKNOWN, 0, stage_told)
    return stage, replica
