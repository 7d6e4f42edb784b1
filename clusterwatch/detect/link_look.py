"""Transfers of a job's ranks as arrays, and the slow links they show: a part of the look at slow ranks.

In: what ranks told of their calls since the last look, how the job is wired. Out: ``KeptLinks`` by world and
findings. Ports, leaves and far ends of cables are asked for only while something stands out.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from clusterwatch.analysis.model import Finding, RankFacts
from clusterwatch.analysis.slow import link_findings, live_links
from clusterwatch.analysis.slow.edges import Edges, Ints, Paths, paths_of
from clusterwatch.analysis.slow.layout import UNKNOWN, Layout, Members
from clusterwatch.analysis.slow.live_links import KeptLinks
from clusterwatch.detect import link_names
from clusterwatch.fleet.models import Node
from clusterwatch.incidents.services import Piece
from clusterwatch.jobs.models import Group, Rank
from clusterwatch.store import edge_history
from clusterwatch.store.edge_history import EdgeRows
from clusterwatch.store.edge_pack import EdgesDamaged

FIRST_LOOK_NS: Final = 10 * 60 * 10**9
AGAIN_NS: Final = 180 * 10**9
"""Read again at most: later than ``live_links.LATE_NS`` nobody is waited for."""
SLACK_NS: Final = 30 * 10**9
"""Ranks of different nodes tell one step within this, by their clocks."""
PATHS_SHOWN: Final = 16
NAME_MAX_CHARS: Final = 80
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Wiring:
    """How a world's ranks are joined.

    Attributes:
        paths: groups, and each rank's own sends and receives.
        inventory: (R, indices) number of a path by rank and the rank's own index, ``UNKNOWN`` where free.
        leaf: name of each rank's leaf switch, empty where nobody told it.
        ranks: by number.
    """

    paths: Paths
    inventory: Ints
    leaf: tuple[str, ...]
    ranks: tuple[Rank | None, ...]


@dataclass(frozen=True, slots=True)
class Seats:
    """Leaf and NVLink domain by node, as agents told them; empty words where they did not."""

    leaf: Mapping[int, str]
    domain: Mapping[int, str]

    @classmethod
    def of(cls, ranks: Iterable[Rank]) -> Seats:
        nodes = Node.objects.filter(pk__in={rank.node_id for rank in ranks})
        rows = list(nodes.values_list("pk", "leaf", "nvlink_domain"))
        return cls({pk: leaf for pk, leaf, _ in rows}, {pk: domain for pk, _, domain in rows})


def wiring(
    ranks: Sequence[Rank | None], groups: Sequence[Group], layout: Layout, members: Members,
    seats: Seats,
) -> Wiring:  # fmt: skip
    """Args: ``ranks`` by number; ``groups`` in the order of ``members``."""
    place = {group.pk: number for number, group in enumerate(groups)}
    width = max((len(rank.groups) for rank in ranks if rank is not None), default=0)
    inventory = np.full((len(ranks), width), UNKNOWN)
    domains: dict[str, int] = {}
    island = np.full(len(ranks), UNKNOWN)
    for number, rank in enumerate(ranks):
        if rank is not None:
            inventory[number, : len(rank.groups)] = [place.get(one, UNKNOWN) for one in rank.groups]
            domain = seats.domain.get(rank.node_id) or f"node {rank.node_id}"
            island[number] = domains.setdefault(domain, len(domains))
    by_host = np.array(["nccl" not in group.backend.lower() for group in groups], np.bool_)
    names = tuple(_title(group) for group in groups)
    keys = np.array([group.pk for group in groups], np.int64)
    leaf = tuple("" if rank is None else seats.leaf.get(rank.node_id, "") for rank in ranks)
    paths = paths_of(layout, members, names, keys, island, by_host)
    return Wiring(paths, _of_members(inventory, members), leaf, tuple(ranks))


def _title(group: Group) -> str:
    """Description and name: a job has many groups of one description."""
    return " ".join(dict.fromkeys(word for word in (group.desc, group.name) if word))[:NAME_MAX_CHARS]


def _of_members(inventory: Ints, members: Members) -> Ints:
    """The inventory without groups that the rank says it is in and that do not have it."""
    wide = max(1, len(inventory))
    group = np.repeat(np.arange(members.count), members.sizes())
    known = np.isin(inventory * wide + np.arange(len(inventory))[:, None], group * wide + members.ranks)
    found: Ints = np.where(known & (inventory != UNKNOWN), inventory, UNKNOWN)
    return found


class Look:
    """One look at an attempt's transfers."""

    def __init__(
        self, cluster_id: int, job_id: int, attempt: int, now_ns: int, until_ns: int | None = None
    ) -> None:
        self._cluster_id, self._job_id, self._attempt = cluster_id, job_id, attempt
        self._now_ns, self._until_ns = now_ns, until_ns
        self._kept: dict[str, KeptLinks] = {}
        self._rows: EdgeRows | None = None

    def read(self, kept: Mapping[str, KeptLinks]) -> None:
        """Reads what was told since the last look. Args: what was kept, by world. Cost: one query."""
        self._kept = dict(kept)
        if not kept:
            return
        from_ns = min(self._from_ns(one) for one in kept.values())
        try:
            self._rows = edge_history.since(self._job_id, self._attempt, from_ns, self._until_ns)
        except EdgesDamaged as fault:
            log.warning("transfers_unreadable job=%d reason=%s", self._job_id, fault)

    def _from_ns(self, kept: KeptLinks) -> int:
        if not kept.read_ns:
            return self._now_ns - FIRST_LOOK_NS
        again_ns = self._now_ns - AGAIN_NS
        return max(again_ns, kept.ends_ns[-1] - SLACK_NS) if kept.ends_ns else again_ns

    def take(self, world: str, how: Wiring, living: NDArray[np.bool_], step_s: float) -> KeptLinks:
        """Adds a world's new transfers. Args: ``step_s``: the job's newest step, NaN where there is none."""
        kept = self._kept[world]
        kept.read_ns = self._now_ns
        kept.step_s = step_s if np.isfinite(step_s) else kept.step_s
        edges = edges_of(self._rows, world, how) if self._rows is not None else None
        if edges is not None:
            kept.take(edges, how.paths, living, self._now_ns)
        kept.close()
        return kept

    def findings(
        self, world: str, how: Wiring, layout: Layout, facts: Mapping[int, RankFacts]
    ) -> list[Finding]:
        """What a world's transfers show, with names of ports and switches where they are told."""
        kept = self._kept[world]
        if not kept.stands_out:
            return []
        called = link_names.names(
            self._cluster_id, self._job_id, world, how.ranks, how.leaf, self._now_ns
        )
        placed = replace(layout, nic=called.nic, leaf=called.leaf)
        return [called.with_far_end(one) for one in link_findings.findings(kept, how.paths, placed, facts)]


def edges_of(rows: EdgeRows, world: str, how: Wiring) -> Edges | None:
    """The rows of one world with the job's groups for each rank's own; None where it told nothing."""
    if world not in rows.worlds:
        return None
    count, width = how.inventory.shape
    mine = (rows.world == rows.worlds.index(world)) & (rows.rank >= 0) & (rows.rank < count)
    rank, own = rows.rank[mine], rows.group[mine]
    known = (own >= 0) & (own < width)
    group = np.full(len(rank), UNKNOWN)
    group[known] = how.inventory[rank[known], own[known]]
    return Edges(
        rank, rows.step[mine], group, rows.op[mine], rows.size_bytes[mine], rows.count[mine],
        rows.p10_s[mine].astype(np.float64), rows.min_s[mine].astype(np.float64), rows.at_ns[mine], rows.ops,
    )  # fmt: skip


def kept_of(data: bytes, rank_count: int) -> KeptLinks:
    """What was kept of a world, or a new one where that is of another size, of another version or damaged."""
    if data:
        try:
            kept = live_links.unpack(data)
        except ValueError as fault:
            log.warning("kept_transfers_unreadable reason=%s", fault)
        else:
            if len(kept.told) == rank_count:
                return kept
    return KeptLinks.of(rank_count)


def piece(found: Finding, kept: KeptLinks, how: Wiring) -> Piece:
    """The transfers behind a finding, by told step."""
    ranks = set(found.culprit_ranks or found.suspect_ranks)
    rows: list[dict[str, Any]] = []
    for one in kept.slow(how.paths):
        members = how.paths.members.of_group(one.path)
        if len(rows) < PATHS_SHOWN and not ranks.isdisjoint(members.tolist()):
            column = int(np.searchsorted(kept.key, how.paths.key[one.path]))
            rows.append({
                "path": how.paths.names[one.path], "ranks": members[:PATHS_SHOWN],
                "longer_than_others_ratio": np.expm1(kept.excess[:, column].astype(np.float64)),
            })  # fmt: skip
    payload = {"steps": kept.steps, "paths": rows}
    title = "Transfers of the slow paths against others of their kind"
    return Piece("transfers", title, "calls of all ranks", payload, 1.0)
