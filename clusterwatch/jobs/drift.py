"""Nodes that differ from their peers: how a comparison is kept, and as pages and REST show it.

In: groups of nodes and what ``odd_ones`` said of them. Out: ``DriftView`` for one person: groups of jobs that
are not theirs are left out. A cluster has one comparison, the newest; a finding keeps the time it was first
found. Nobody is named where large groups of nodes differ, and not enough data is never "fine".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django.db import transaction
from django.db.models import Q, QuerySet
from django.utils import timezone

from clusterwatch.accounts.models import User
from clusterwatch.analysis import peers
from clusterwatch.analysis.odd_ones import PEERS_MIN, Differences
from clusterwatch.fleet.models import Node
from clusterwatch.jobs.models import DriftFinding, DriftGroup, DriftRun, Job
from clusterwatch.jobs.queries import for_user

ODD_MAX: Final = 1_000
"""Findings kept of a cluster; what is beyond is counted."""
ODD_OF_NODE_MAX: Final = 32
"""A node with another image differs in everything; the rest must still have room."""
CAMPS_MAX: Final = 200
GROUPS_MAX: Final = 256
OLD_AFTER_S: Final = 300.0
"""A comparison runs every minute; one that old says nothing of now."""
ODD, CAMPS, FINE, NOT_ENOUGH = "odd", "camps", "fine", "not_enough_data"

Judged = Sequence[tuple[peers.Group, Differences]]
Key = tuple[str, str, int | None, str, str, str]


@dataclass(frozen=True, slots=True)
class Outcome:
    """One comparison. ``node_ids``: by name."""

    cluster_id: int
    ran_at: datetime
    took_s: float
    window_s: float
    node_ids: Mapping[str, int]
    compared_count: int
    stale_count: int
    silent_count: int
    damaged_count: int
    judged: Judged


@dataclass(frozen=True, slots=True)
class Finding:
    """``node`` None: the fact has camps and nobody is odd."""

    row: DriftFinding
    node: Node | None
    node_count: int
    """nodes of the group"""

    @property
    def fact(self) -> str:
        return f"{self.row.part} {self.row.fact}" if self.row.part else self.row.fact

    @property
    def coverage(self) -> float:
        """Share of the group's nodes of which the fact is known."""
        return min(1.0, self.row.known_count / self.node_count) if self.node_count else 0.0

    @property
    def sentence(self) -> str:
        row = self.row
        if self.node is None:
            camps = ", ".join(f"{count:,} have {value or 'none'}" for value, count in row.camps)
            return f"{self.fact}: {camps}; nodes are in several camps, so none of them is odd"
        where = f" ({', '.join(row.parts)})" if row.parts else ""
        has = "does not set it" if row.value == peers.NOT_SET else f"has {row.value or 'none'}"
        return (
            f"{row.usual_count:,} of {row.known_count:,} nodes have {self.fact} {row.usual or 'empty'}; "
            f"{self.node.name} {has}{where}"
        )


@dataclass(frozen=True, slots=True)
class GroupView:
    """Nodes that should be alike."""

    row: DriftGroup
    odd: tuple[Finding, ...] = ()
    """the surest first"""
    camps: tuple[Finding, ...] = ()

    @property
    def state(self) -> str:
        if self.row.node_count < PEERS_MIN or not self.row.fact_count:
            return NOT_ENOUGH
        return ODD if self.odd else CAMPS if self.camps else FINE


@dataclass(frozen=True, slots=True)
class DriftView:
    """A cluster's newest comparison."""

    run: DriftRun
    groups: tuple[GroupView, ...]
    """those with odd nodes first"""
    is_old: bool

    @property
    def odd_count(self) -> int:
        return sum(len(group.odd) for group in self.groups)

    @property
    def state(self) -> str:
        """The worst of its groups; not enough data where none had enough."""
        states = {group.state for group in self.groups}
        return next((state for state in (ODD, CAMPS, FINE) if state in states), NOT_ENOUGH)


@dataclass(frozen=True, slots=True)
class NodeDrift:
    """One node against its peers. ``group``: the nodes of its kind; None: too few were heard."""

    run: DriftRun | None
    group: DriftGroup | None
    findings: tuple[Finding, ...]
    """the surest first"""
    is_heard: bool

    @property
    def is_old(self) -> bool:
        return self.run is not None and _is_old(self.run)

    @property
    def state(self) -> str:
        """What was found stays told; fine is only a node that was heard and compared lately."""
        if self.findings:
            return ODD
        if self.run is None or self.group is None or self.is_old or not self.is_heard:
            return NOT_ENOUGH
        return NOT_ENOUGH if GroupView(self.group).state == NOT_ENOUGH else FINE


def keep(outcome: Outcome) -> int:
    """Replaces the cluster's comparison; returns how many findings were kept. Runs in one transaction."""
    judged = sorted(outcome.judged, key=lambda one: -one[1].peer_count)[:GROUPS_MAX]
    jobs = _jobs(outcome.cluster_id, [group.name for group, _ in judged if group.kind == peers.JOB])
    with transaction.atomic():
        since = _first_found(outcome.cluster_id)
        run, _ = DriftRun.objects.update_or_create(
            cluster_id=outcome.cluster_id,
            defaults={
                "ran_at": outcome.ran_at, "took_s": outcome.took_s, "window_s": outcome.window_s,
                "node_count": len(outcome.node_ids), "compared_count": outcome.compared_count,
                "stale_count": outcome.stale_count, "silent_count": outcome.silent_count,
                "damaged_count": outcome.damaged_count, "left_out_count": 0,
            },
        )  # fmt: skip
        DriftGroup.objects.filter(run=run).delete()
        groups = DriftGroup.objects.bulk_create(
            DriftGroup(
                run=run, kind=group.kind, name=group.name[:255], job=jobs.get(group.name),
                node_count=found.peer_count, fact_count=found.compared_count,
            )
            for group, found in judged
        )  # fmt: skip
        rows = _rows(outcome, list(zip(groups, judged, strict=True)), since)
        kept = _bounded(rows)
        DriftFinding.objects.bulk_create(kept, batch_size=500)
        if len(kept) < len(rows):
            DriftRun.objects.filter(pk=run.pk).update(left_out_count=len(rows) - len(kept))
    return len(kept)


def view(cluster_id: int, user: User | Any) -> DriftView | None:
    """The newest comparison for one person; None before the first. Cost: three queries."""
    run = DriftRun.objects.filter(cluster_id=cluster_id).first()
    if run is None:
        return None
    groups = list(_visible(user).filter(run=run).select_related("job"))
    found: dict[int, list[Finding]] = {}
    counts = {group.pk: group.node_count for group in groups}
    for row in DriftFinding.objects.filter(group__in=counts).select_related("node").order_by("id"):
        found.setdefault(row.group_id, []).append(Finding(row, row.node, counts[row.group_id]))
    views = [_group_view(group, found.get(group.pk, [])) for group in groups]
    views.sort(key=lambda one: (not one.odd, not one.camps, -one.row.node_count, one.row.kind, one.row.name))
    return DriftView(run, tuple(views), _is_old(run))


def of_node(node: Node, user: User | Any, kind: str, is_heard: bool) -> NodeDrift:
    """What one node has that its peers have not. Cost: three queries.

    Args:
        kind: of the node, as ``peers.class_of`` names it.
        is_heard: whether it told any facts lately.
    """
    run = DriftRun.objects.filter(cluster_id=node.cluster_id).first()
    if run is None:
        return NodeDrift(None, None, (), is_heard)
    groups = _visible(user).filter(run=run)
    rows = (
        DriftFinding.objects.filter(node=node, group__in=groups)
        .select_related("group", "group__job")
        .order_by("-confidence", "part", "fact")
    )
    findings = tuple(Finding(row, node, row.group.node_count) for row in rows[: 2 * ODD_OF_NODE_MAX])
    return NodeDrift(run, groups.filter(kind=peers.CLASS, name=kind[:255]).first(), findings, is_heard)


def _is_old(run: DriftRun) -> bool:
    return (timezone.now() - run.ran_at).total_seconds() > OLD_AFTER_S


def _visible(user: User | Any) -> QuerySet[DriftGroup]:
    """Classes; jobs that the person may see; jobs without a row of ours only for those who see all."""
    mine = Q(kind=peers.CLASS) | Q(job__in=for_user(user))
    if isinstance(user, User) and (user.is_staff or user.role in (User.Role.OPERATOR, User.Role.ADMIN)):
        mine |= Q(job__isnull=True)
    return DriftGroup.objects.filter(mine)


def _group_view(group: DriftGroup, findings: list[Finding]) -> GroupView:
    odd = [one for one in findings if one.node is not None]
    return GroupView(group, tuple(odd), tuple(one for one in findings if one.node is None))


def _jobs(cluster_id: int, keys: list[str]) -> dict[str, Job]:
    """Living jobs by the scheduler's id."""
    living = Job.objects.filter(cluster_id=cluster_id, key__in=keys, ended_at__isnull=True)
    return {job.key: job for job in living}


def _first_found(cluster_id: int) -> dict[Key, datetime]:
    """When each finding of the comparison before was first found."""
    before = DriftFinding.objects.filter(group__run__cluster_id=cluster_id)
    columns = ("group__kind", "group__name", "node_id", "part", "fact", "value", "since")
    return {(row[0], row[1], row[2], row[3], row[4], row[5]): row[6] for row in before.values_list(*columns)}


def _rows(
    outcome: Outcome,
    groups: Sequence[tuple[DriftGroup, tuple[peers.Group, Differences]]],
    since: Mapping[Key, datetime],
) -> list[DriftFinding]:
    rows = []
    for kept, (group, found) in groups:
        for one in found.odd:
            part, fact = peers.name_of(one.fact)
            rows.append(
                DriftFinding(
                    group=kept, node_id=outcome.node_ids[one.node], part=part[:128], fact=fact[:128],
                    value=one.value[:255], usual=one.usual[:255], same_count=one.same_count,
                    usual_count=one.usual_count, known_count=one.known_count, confidence=one.confidence,
                    parts=peers.different_parts(group, one.node, one.fact, one.usual),
                )
            )  # fmt: skip
        for camp in found.camps:
            part, fact = peers.name_of(camp.fact)
            camps = [[value[:255], count] for value, count in camp.camps]
            rows.append(
                DriftFinding(
                    group=kept, part=part[:128], fact=fact[:128], known_count=camp.known_count, camps=camps
                )
            )
    for row in rows:
        key = (row.group.kind, row.group.name, row.node_id, row.part, row.fact, row.value)
        row.since = since.get(key, outcome.ran_at)
    return rows


def _bounded(rows: list[DriftFinding]) -> list[DriftFinding]:
    """As many as may be kept: of each node some, in the order they come."""
    kept, odd, camps = [], 0, 0
    of_node: dict[int, int] = {}
    for row in rows:
        if row.node_id is None:
            camps += 1
            if camps <= CAMPS_MAX:
                kept.append(row)
            continue
        of_node[row.node_id] = of_node.get(row.node_id, 0) + 1
        if odd < ODD_MAX and of_node[row.node_id] <= ODD_OF_NODE_MAX:
            odd += 1
            kept.append(row)
    return kept
