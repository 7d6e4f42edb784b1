"""A job as its page shows it: verdict line, ranks by host, groups by shape, open calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from clusterwatch.incidents.models import LIVE_STATES, Incident
from clusterwatch.jobs.models import Job
from clusterwatch.jobs.progress import GroupShape, GroupView, RankView, group_shapes
from clusterwatch.web.job_rows import JobRow
from clusterwatch.web.words import Badge, verdict_badge

RANKS_MAX = 16_384
GROUPS_MAX = 20_000
TABLE_RANKS = 256
"""Ranks in the table of the page; the worst come first, REST has them all."""
HOSTS_MAX = 128
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
    view: RankView
    badge: Badge
    named: bool
    """a live incident names this rank"""


@dataclass(frozen=True, slots=True)
class HostBox:
    """A host and the ranks on it."""

    name: str
    ranks: tuple[RankLine, ...]


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
    views: Sequence[RankView],
    groups: Sequence[GroupView],
    incidents: Sequence[Incident],
) -> JobPage:
    """Arranges what was read; asks nothing more."""
    live = next((i for i in incidents if i.state in LIVE_STATES), None)
    named = frozenset(_named(live))
    lines = [RankLine(v, _badge(v, v.rank in named), v.rank in named) for v in views]
    worst_first = sorted(lines, key=lambda line: (not line.named, _ORDER.get(line.view.state, 9)))
    shown = lines if len(lines) <= TABLE_RANKS else worst_first[:TABLE_RANKS]
    hosts = _hosts(lines)
    counts: dict[str, int] = {}
    for line in lines:
        counts[line.view.state] = counts.get(line.view.state, 0) + 1
    return JobPage(
        job=job,
        row=row,
        incidents=incidents,
        live_incident=live,
        badge=verdict_badge(live.fault_class, live.verdict, live.severity) if live else row.badge,
        ranks=tuple(shown),
        rank_total=len(lines),
        hosts=tuple(hosts[:HOSTS_MAX]),
        host_total=len(hosts),
        shapes=tuple(group_shapes(groups)),
        calls=tuple(g for g in groups if g.state == "stuck")[:CALLS_MAX],
        named_ranks=named,
        counts=counts,
        several_worlds=len({v.world for v in views}) > 1,
    )


def _named(incident: Incident | None) -> list[int]:
    return [] if incident is None else list((incident.diagnosis or {}).get("culprit_ranks") or ())


def _badge(view: RankView, named: bool) -> Badge:
    return NAMED if named and view.state not in ("failed", "stopped") else RANK_BADGES[view.state]


def _hosts(lines: Sequence[RankLine]) -> list[HostBox]:
    """Hosts in name order, those with a named or failed rank first."""
    by_host: dict[str, list[RankLine]] = {}
    for line in lines:
        by_host.setdefault(line.view.host, []).append(line)
    boxes = [HostBox(name, tuple(ranks)) for name, ranks in sorted(by_host.items())]
    return sorted(boxes, key=lambda box: not any(line.badge.state == "failed" for line in box.ranks))
