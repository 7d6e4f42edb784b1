"""Transfers as hooks tell them: each call has a last arriver, the others wait for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from clusterwatch.analysis.slow.edges import Edges, Paths, paths_of
from clusterwatch.analysis.slow.layout import Layout, Members

SECOND = 10**9
EVERY = 8
"""each eighth step is told"""
CALLS = 4
SIZES = {"tp": 2**23, "dp": 2**28, "pp": 2**24, "default_pg": 4}
RATES = {"tp": 300e9, "dp": 40e9, "pp": 40e9, "default_pg": 1e9}
OPS = ("all_reduce", "send", "recv")


@dataclass
class Job:
    """Tensor ranks nearest, then data, then stages; a node holds one tensor group of ``tp`` ranks."""

    tp: int = 4
    dp: int = 4
    pp: int = 4
    seed: int = 1
    by_host: bool = False
    nodes_per_leaf: int = 2
    layout: Layout = field(init=False)
    paths: Paths = field(init=False)

    def __post_init__(self) -> None:
        rank = np.arange(self.tp * self.dp * self.pp)
        node = rank // self.tp
        stage, lane = rank // (self.tp * self.dp), rank % (self.tp * self.dp)
        members = {
            "tp": [rank[node == n] for n in range(node[-1] + 1)],
            "dp": [
                rank[(stage == s) & (rank % self.tp == t)] for s in range(self.pp) for t in range(self.tp)
            ],
            "pp": [rank[lane == one] for one in range(self.tp * self.dp)],
            "default_pg": [rank],
        }
        told = [(role, one) for role, all_of in members.items() for one in all_of if len(one) > 1]
        self.roles = [role for role, _ in told]
        start = np.concatenate(([0], np.cumsum([len(one) for _, one in told])))
        groups = Members(start, np.concatenate([one for _, one in told]))
        names = tuple(f"{role}:{number}" for number, role in enumerate(self.roles))
        hosts = tuple(f"host-{n}" for n in node.tolist())
        nic = tuple(f"mlx5_{gpu}" for gpu in (rank % self.tp).tolist())
        leaf = tuple(f"leaf-{n // self.nodes_per_leaf}" for n in node.tolist())
        self.layout = Layout(stage, rank // self.tp % self.dp, node, rank % self.tp, nic, leaf, hosts)
        keys = 100 + np.arange(groups.count)
        host = np.full(groups.count, self.by_host)
        self.paths = paths_of(self.layout, groups, names, keys, node, host)
        self.random = np.random.default_rng(self.seed)

    @property
    def ranks(self) -> int:
        return self.layout.rank_count

    def group(self, role: str, rank: int) -> int:
        """Number of a rank's group of a role."""
        return next(
            n for n, name in enumerate(self.roles)
            if name == role and rank in self.paths.members.of_group(n)
        )  # fmt: skip

    def edges(
        self, steps: range, slow_rank: Mapping[int, float] | None = None,
        slow_group: Mapping[int, float] | None = None, waits_s: float = 0.05, silent: tuple[int, ...] = (),
    ) -> Edges:  # fmt: skip
        """Rows of these told steps. Args: factors of transfers that leave a node by a rank's port, or of a
        group; ``silent`` ranks tell nothing."""
        ports = np.ones(self.ranks)
        for rank, factor in (slow_rank or {}).items():
            ports[rank] = factor
        rows: list[tuple[float, ...]] = []
        for step in steps:
            for group, role in enumerate(self.roles):
                factor = (slow_group or {}).get(group, 1.0)
                rows += self._calls(step, group, role, ports, factor, waits_s)
        told = np.array([row for row in rows if row[0] not in silent]).reshape(-1, 9).T
        order = np.lexsort((told[0], told[1]))
        rank, step, group, op, size, calls, p10, least, at = told[:, order]
        whole = [one.astype(np.int64) for one in (rank, step, group, op, size, calls)]
        return Edges(*whole, p10, least, at.astype(np.int64), OPS)

    def _calls(
        self, step: int, group: int, role: str, ports: np.ndarray, factor: float, waits_s: float
    ) -> list[tuple[float, ...]]:
        members = self.paths.members.of_group(group)
        base_s = SIZES[role] / RATES[role] * factor
        if role == "pp":
            return self._pairs(step, group, members, ports, base_s, waits_s)
        crosses = self.paths.crosses[group]
        time_s = base_s * (ports[members].max() if crosses else 1.0) * self._noise(CALLS)
        waits = self.random.exponential(waits_s, (len(members), CALLS))
        waits -= waits.min(axis=0)
        told = zip(members, time_s + waits, strict=True)
        return [self._row(rank, step, group, 0, role, one) for rank, one in told]

    def _pairs(
        self, step: int, group: int, members: np.ndarray, ports: np.ndarray, base_s: float, waits_s: float
    ) -> list[tuple[float, ...]]:
        sends: dict[int, list[float]] = {int(rank): [] for rank in members}
        receives: dict[int, list[float]] = {int(rank): [] for rank in members}
        for one, other in zip(members[:-1].tolist(), members[1:].tolist(), strict=True):
            for source, target in ((one, other), (other, one)):
                time_s = base_s * max(ports[source], ports[target]) * self._noise(CALLS)
                sends[source] += time_s.tolist()
                receives[target] += (time_s + self.random.exponential(waits_s, CALLS)).tolist()
        return [
            self._row(rank, step, group, op, "pp", np.array(times))
            for op, told in ((1, sends), (2, receives))
            for rank, times in told.items()
        ]

    def _noise(self, count: int) -> np.ndarray:
        return np.exp(self.random.normal(0.0, 0.02, count))

    @staticmethod
    def _row(rank: int, step: int, group: int, op: int, role: str, times_s: np.ndarray) -> tuple[float, ...]:
        ordered = np.sort(times_s)
        at = step * SECOND
        return (rank, step, group, op, SIZES[role], len(ordered), ordered[(len(ordered) - 1) // 10],
                ordered[0], at)  # fmt: skip


def told_steps(first: int, count: int) -> range:
    """``count`` told steps from the ``first`` told one on."""
    return range(first * EVERY, (first + count) * EVERY, EVERY)


def joined(*parts: Edges) -> Edges:
    """Rows of several, in order of step and rank."""
    names = [name for name in Edges.__slots__ if name != "ops"]
    columns = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
    both = replace(parts[0], **columns)
    order = np.lexsort((both.rank, both.step))
    return Edges(**{name: getattr(both, name)[order] for name in names}, ops=both.ops)
