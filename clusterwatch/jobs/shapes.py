"""Process groups of a whole job folded by kind and size, without an object per group.

A job of 16,384 ranks has about as many groups again; a page shows a few of each shape. So the groups' states
come from columns, and only those shown are read with their members.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from django.db.models import F, Func, IntegerField
from numpy.typing import NDArray

from clusterwatch.analysis import motion
from clusterwatch.jobs.models import Group, Job
from clusterwatch.jobs.progress import GroupView, Looks, RankFacts, group_views
from clusterwatch.jobs.queries import groups_of

STATES: Final = ("stuck", "unknown", "ok")
"""Group states, the one to look at first in front."""
STUCK, UNKNOWN, OK = range(len(STATES))


@dataclass(frozen=True, slots=True)
class GroupShape:
    """Groups of one kind and size: ``4 tp groups of 2: 3 ok, 1 stuck``."""

    kind: str
    size: int
    total: int
    counts: dict[str, int]
    """groups per state; a state no group is in is left out"""
    groups: tuple[GroupView, ...]
    """the first of them, stuck first, then unknown"""


@dataclass(frozen=True, slots=True)
class JobGroups:
    """What a page shows of a job's groups."""

    shapes: tuple[GroupShape, ...]
    """standing ones first"""
    standing: tuple[GroupView, ...]
    """the first groups that stand with a member missing"""


class _Facts(NamedTuple):
    id: int
    name: str
    desc: str
    size: int


class _Folded(NamedTuple):
    kind: str
    size: int
    total: int
    counts: dict[str, int]
    shown: list[int]
    """group ids"""


def job_groups(
    job: Job, looks: Looks, ranks: Sequence[RankFacts], *, groups_max: int, per_shape: int, standing_max: int
) -> JobGroups:
    """The groups of a job's newest attempt by shape, and those that stand.

    Cost: two queries; linear in groups and in (rank, group) rows; members are read of what is shown only.

    Args:
        ranks: of the same attempt; rows of other ranks do not count.
        groups_max: groups read at all.
        per_shape: groups shown of one shape.
        standing_max: standing groups shown.
    """
    size = Func(F("ranks"), function="CARDINALITY", output_field=IntegerField())
    found = groups_of(job).annotate(size=size).values_list("id", "name", "desc", "size")[:groups_max]
    facts = [_Facts(*row) for row in found]
    states = group_states(looks, [group.id for group in facts], [rank.pk for rank in ranks])
    folded = _fold(facts, states, per_shape)
    standing = [facts[place].id for place in np.flatnonzero(states == STUCK)[:standing_max].tolist()]
    wanted = {*standing, *(group_id for shape in folded for group_id in shape.shown)}
    models = list(Group.objects.filter(pk__in=wanted))
    view = {shown.id: shown for shown in group_views(job, models, ranks, looks)}
    shapes = [
        GroupShape(s.kind, s.size, s.total, s.counts, tuple(view[i] for i in s.shown if i in view))
        for s in folded
    ]
    return JobGroups(tuple(shapes), tuple(view[i] for i in standing if i in view))


def group_states(looks: Looks, group_ids: Sequence[int], rank_ids: Sequence[int]) -> NDArray[np.int64]:
    """Index into ``STATES`` per group, from the numbers its members report.

    A group nobody reports is unknown; one in which a member lacks the newest call while none moves is stuck.
    """
    progress, count = looks.progress, len(group_ids)
    if not count or not len(progress.row):
        return np.full(count, UNKNOWN, np.int64)
    place = _places(progress.group_id, group_ids)
    used = (place >= 0) & np.isin(progress.rank_id, np.array(rank_ids, np.int64))[progress.row]
    group, row = place[used], progress.row[used]
    number = motion.newest_number(progress.sequence[used], progress.enqueued[used])
    front, moved_ns = np.full(count, -1, np.int64), np.zeros(count, np.int64)
    np.maximum.at(front, group, number)
    np.maximum.at(moved_ns, group, progress.moved_ns[row])
    missing, reported = np.zeros(count, bool), np.zeros(count, bool)
    reported[group] = True
    missing[group[number < front[group]]] = True
    still = (moved_ns > 0) & (looks.now_ns - moved_ns > motion.STILL_AFTER_NS)
    return np.select([~reported, missing & still], [UNKNOWN, STUCK], OK).astype(np.int64)


def _places(held: NDArray[np.int64], wanted: Sequence[int]) -> NDArray[np.int64]:
    """Place in ``wanted`` (not empty) of each of ``held``; -1 where it is not there."""
    ids = np.array(wanted, np.int64)
    order = np.argsort(ids, kind="stable")
    at = np.minimum(np.searchsorted(ids[order], held), len(ids) - 1)
    return np.where(ids[order][at] == held, order[at], -1)


def _fold(facts: Sequence[_Facts], states: NDArray[np.int64], per_shape: int) -> list[_Folded]:
    members: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for group, state in zip(facts, states.tolist(), strict=True):
        members.setdefault((kind_of(group.name, group.desc), group.size), []).append((state, group.id))
    folded = []
    for (kind, size), found in members.items():
        found.sort()
        counts = np.bincount([state for state, _ in found], minlength=len(STATES)).tolist()
        told = {word: count for word, count in zip(STATES, counts, strict=True) if count}
        folded.append(_Folded(kind, size, len(found), told, [group_id for _, group_id in found[:per_shape]]))
    return sorted(folded, key=lambda s: (STATES.index(next(iter(s.counts))), -s.size, s.kind))


def kind_of(name: str, desc: str) -> str:
    """``tp`` of ``tp``, ``tp_0`` or ``tensor.3.8``; the name where there is no description."""
    text = desc or ("" if name.isdigit() else name)
    kind = text.rstrip("0123456789._-:[]() ")
    return kind.lower() or "unnamed"
