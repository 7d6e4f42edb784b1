"""A job as its page shows it: verdict line, ranks by host, groups by shape, open calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from clusterwatch.incidents.models import LIVE_STATES, Incident
from clusterwatch.jobs.models import Job
from clusterwatch.jobs.progress import GroupView, RankFacts, RankView
from clusterwatch.jobs.shapes import GroupShape, JobGroups
from clusterwatch.web.job_rows import JobRow
from clusterwatch.web.words import Badge, verdict_badge

RANKS_MAX = 16_384
GROUPS_MAX = 20_000
RANK_GROUPS_MAX = 64
"""Groups of one rank on its page."""
TABLE_RANKS = 128
"""Ranks in the table of the page; the worst come first, REST has them all."""
HOSTS_MAX = 48
HOST_RANKS_MAX = 16
CALLS_MAX = 8
SHAPE_GROUPS_MAX = 24

RANK_BADGES = {
    "moving": Badge("ok", "Moves"),
    "waiting": Badge("idle", "Waits"),
    "behind": Badge("degraded", "Behind"),
    "still": Badge("degraded", "Stands still"),
    "stopped": Badge("degraded", "Stopped"),
    "ended": Badge("idle", "Ended"),
    "failed": Badge("failed", "Failed"),
    "unknown": Badge("unknown", "Unknown"),
}
_ORDER = {name: place for place, name in enumerate(("failed", "stopped", "behind", "still", "unknown"))}
NAMED = Badge("failed", "Named")


@dataclass(frozen=True, slots=True)
class RankLine:
    """A row of the table of ranks."""

    view: RankView
    badge: Badge
    named: bool
    """a live incident names this rank"""


@dataclass(frozen=True, slots=True)
class RankChip:
    """A rank in the box of its host."""

    rank: int
    world: str
    badge: Badge
    why: str
    named: bool


@dataclass(frozen=True, slots=True)
class HostBox:
    """A host and the first ranks on it."""

    name: str
    ranks: tuple[RankChip, ...]


@dataclass(frozen=True, slots=True)
class RankStates:
    """All ranks of a job with their states, in columns of one length."""

    facts: Sequence[RankFacts]
    words: Sequence[tuple[str, str]]
    """(state, why)"""
    named: frozenset[int]
    """numbers of the ranks that a live incident names"""

    def worst(self, count: int) -> list[int]:
        """Places of the ranks a table shows: all in order where they fit, else the worst first."""
        places = range(len(self.facts))
        if len(places) <= count:
            return list(places)
        return sorted(places, key=lambda at: (self.facts[at].rank not in self.named, self._order(at)))[:count]

    def _order(self, at: int) -> int:
        return _ORDER.get(self.words[at][0], len(_ORDER))

    def chip(self, at: int) -> RankChip:
        fact, (state, why) = self.facts[at], self.words[at]
        named = fact.rank in self.named
        return RankChip(fact.rank, fact.world, _badge(state, named), why, named)


@dataclass(frozen=True, slots=True)
class JobPage:
    """All the template draws."""

    job: Job
    row: JobRow
    incidents: Sequence[Incident]
    live_incident: Incident | None
    badge: Badge
    ranks: tuple[RankLine, ...]
    """at most ``TABLE_RANKS``, worst first where not all fit"""
    rank_total: int
    hosts: tuple[HostBox, ...]
    host_total: int
    shapes: tuple[GroupShape, ...]
    calls: tuple[GroupView, ...]
    """groups that stand with a member missing"""
    named_ranks: frozenset[int]
    counts: dict[str, int]
    several_worlds: bool


def build(
    job: Job,
    row: JobRow,
    ranks: RankStates,
    shown: Sequence[RankView],
    groups: JobGroups,
    incidents: Sequence[Incident],
) -> JobPage:
    """Arranges what was read; asks nothing more.

    Args:
        shown: the ranks of the table, in its order.
    """
    live = live_incident(incidents)
    hosts, host_total = _hosts(ranks)
    return JobPage(
        job=job,
        row=row,
        incidents=incidents,
        live_incident=live,
        badge=verdict_badge(live.fault_class, live.verdict, live.severity) if live else row.badge,
        ranks=tuple(
            RankLine(v, _badge(v.state, v.rank in ranks.named), v.rank in ranks.named) for v in shown
        ),
        rank_total=len(ranks.facts),
        hosts=hosts,
        host_total=host_total,
        shapes=groups.shapes,
        calls=groups.standing,
        named_ranks=ranks.named,
        counts=dict(Counter(state for state, _ in ranks.words)),
        several_worlds=len({fact.world for fact in ranks.facts}) > 1,
    )


def live_incident(incidents: Sequence[Incident]) -> Incident | None:
    """The incident a job's page is about."""
    return next((i for i in incidents if i.state in LIVE_STATES), None)


def named_ranks(incident: Incident | None) -> frozenset[int]:
    """Ranks an incident holds to be the culprits."""
    return (
        frozenset() if incident is None else frozenset((incident.diagnosis or {}).get("culprit_ranks") or ())
    )


def _badge(state: str, named: bool) -> Badge:
    return NAMED if named and state not in ("failed", "stopped") else RANK_BADGES[state]


def _hosts(ranks: RankStates) -> tuple[tuple[HostBox, ...], int]:
    """Hosts in name order, those with a named or failed rank first; and how many there are."""
    by_host: dict[str, list[int]] = {}
    faulty: set[str] = set()
    for at, (fact, (state, _)) in enumerate(zip(ranks.facts, ranks.words, strict=True)):
        by_host.setdefault(fact.host, []).append(at)
        if state == "failed" or (state != "stopped" and fact.rank in ranks.named):
            faulty.add(fact.host)
    names = sorted(by_host, key=lambda name: (name not in faulty, name))[:HOSTS_MAX]
    boxes = [HostBox(n, tuple(ranks.chip(at) for at in by_host[n][:HOST_RANKS_MAX])) for n in names]
    return tuple(boxes), len(by_host)
