"""Reads of jobs, ranks and groups: database rows joined with what hot state says of them right now."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from django.contrib.auth.models import AnonymousUser
from django.db.models import Q, QuerySet

from clusterwatch.accounts.models import User
from clusterwatch.jobs.models import Capture, Group, Job, Rank
from clusterwatch.store import hot
from collectors.wire.limits import SILENT_AFTER_S
from collectors.wire.records import PHASES

STILL_AFTER_S = 5.0
"""A group none of whose members moved for so long is shown as standing; a verdict needs more (detect)."""


def jobs_for(user: User | AnonymousUser) -> QuerySet[Job]:
    """Jobs a person may see: operators and admins all, a viewer those of the own teams and of no team."""
    jobs = Job.objects.select_related("cluster", "team")
    if not isinstance(user, User):
        return jobs.none()
    if user.is_staff or user.role in (User.Role.OPERATOR, User.Role.ADMIN):
        return jobs
    return jobs.filter(Q(team__isnull=True) | Q(team__in=user.teams.all()))


for_user = jobs_for
"""The name every room uses for this filter."""


@dataclass(frozen=True, slots=True)
class RankView:
    """One process with its newest word. Times are aware datetimes; None = not known."""

    id: int
    rank: int
    world: str
    role: str
    attempt: int
    world_size: int
    host: str
    node_id: int
    pid: int
    local_rank: int | None
    gpu_index: int | None
    gpu_uuid: str
    backend: str
    state: str
    """``running``, ``stopped``, ``blocked``, ``exited``, ``failed``, ``agent_gone``, ``node_silent`` or
    ``unknown``"""
    step: int | None
    phase: str | None
    phase_since: datetime | None
    last_progress_at: datetime | None
    heard_at: datetime | None
    exited_at: datetime | None
    exit_code: int | None
    exit_signal: int | None
    exception: dict[str, Any] | None
    blind: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupView:
    """One process group and how far each member is. Rank lists are global ranks, sorted."""

    id: int
    name: str
    desc: str
    backend: str
    world: str
    ranks: tuple[int, ...]
    state: str
    """``ok``, ``stuck`` or ``unknown``"""
    sequence: int | None
    """the newest call any member issued"""
    joined: tuple[int, ...] = ()
    missing: tuple[int, ...] = ()
    unreported: tuple[int, ...] = ()
    moved_at: datetime | None = None

    @property
    def label(self) -> str:
        return self.desc or self.name


@dataclass(frozen=True, slots=True)
class GroupShape:
    """Groups of one kind and size: ``4 tp groups of 2: 3 ok, 1 stuck``."""

    kind: str
    size: int
    groups: tuple[GroupView, ...]
    """stuck first, then unknown"""
    counts: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class JobLive:
    """A job's progress in one line."""

    step: int | None
    last_progress_at: datetime | None
    reported: int
    expected: int


def _at(ns: int) -> datetime | None:
    return datetime.fromtimestamp(ns / 1e9, UTC) if ns > 0 else None


def job_live(job_ids: Iterable[int]) -> dict[int, JobLive]:
    """Progress of each job from hot state; a job nobody reports is left out."""
    found = {}
    fresh_ns = time.time_ns() - int(SILENT_AFTER_S * 1e9)
    for job_id in job_ids:
        progress = hot.read_job(job_id)
        if not len(progress.rank_id):
            continue
        found[job_id] = JobLive(
            step=int(progress.step.max()) if progress.step.max() >= 0 else None,
            last_progress_at=_at(int(progress.moved_ns.max())),
            reported=int((progress.seen_ns >= fresh_ns).sum()),
            expected=len(progress.rank_id),
        )
    return found


def _process_state(rank: Rank, nodes: dict[int, tuple[int, int]], now_ns: int) -> str:
    if rank.exited_at is not None:
        return "exited" if rank.clean_exit or (rank.exit_code == 0 and not rank.exit_signal) else "failed"
    node = nodes.get(rank.node_id)
    if node is None:
        return "unknown"
    link, seen_ns = node
    if link != hot.OPEN:
        return "agent_gone"
    if now_ns - seen_ns > SILENT_AFTER_S * 1e9:
        return "node_silent"
    return rank.process_state


def _node_states() -> dict[int, tuple[int, int]]:
    nodes = hot.read_nodes()
    links = zip(nodes.link.tolist(), nodes.seen_ns.tolist(), strict=True)
    return dict(zip(nodes.node_id.tolist(), links, strict=True))


def rank_views(job: Job, ranks: Sequence[Rank]) -> list[RankView]:
    """Each of ``ranks`` with its newest word.

    Cost: two reads of hot state, linear in ranks.
    """
    progress, nodes, now_ns = hot.read_job(job.pk), _node_states(), time.time_ns()
    row_of = {rank_id: row for row, rank_id in enumerate(progress.rank_id.tolist())}
    return [_rank_view(rank, row_of.get(rank.pk), progress, nodes, now_ns) for rank in ranks]


def _rank_view(
    rank: Rank,
    row: int | None,
    progress: hot.JobProgress,
    nodes: dict[int, tuple[int, int]],
    now_ns: int,
) -> RankView:
    known = row is not None
    step = int(progress.step[row]) if known else -1
    phase = int(progress.phase[row]) if known else 0
    return RankView(
        id=rank.pk,
        rank=rank.rank,
        world=rank.world,
        role=rank.role,
        attempt=rank.attempt,
        world_size=rank.world_size,
        host=rank.host,
        node_id=rank.node_id,
        pid=rank.pid,
        local_rank=rank.local_rank,
        gpu_index=rank.gpu_index,
        gpu_uuid=rank.gpu_uuid,
        backend=rank.backend,
        state=_process_state(rank, nodes, now_ns),
        step=step if step >= 0 else None,
        phase=PHASES[phase] if 0 < phase < len(PHASES) else None,
        phase_since=_at(int(progress.phase_since_ns[row])) if known else None,
        last_progress_at=_at(int(progress.moved_ns[row])) if known else None,
        heard_at=_at(int(progress.heard_ns[row])) if known else None,
        exited_at=rank.exited_at,
        exit_code=rank.exit_code,
        exit_signal=rank.exit_signal,
        exception=rank.exception,
        blind=tuple(str(word) for word in rank.blind),
    )


def ranks_of(job: Job, attempt: int | None = None) -> QuerySet[Rank]:
    """Ranks of one attempt (the newest by default), in (world, rank) order."""
    wanted = job.attempt if attempt is None else attempt
    return Rank.objects.filter(job=job, attempt=wanted).order_by("world", "rank")


def group_views(job: Job, groups: Sequence[Group], ranks: Sequence[Rank]) -> list[GroupView]:
    """How far each member of each group is, from hot state.

    Cost: linear in (rank, group) rows.
    """
    progress, now_ns = hot.read_job(job.pk), time.time_ns()
    rank_of = {rank.pk: rank.rank for rank in ranks}
    numbers: dict[int, dict[int, int]] = {}
    moved: dict[int, int] = {}
    best = [
        s if s >= 0 else e
        for s, e in zip(progress.sequence.tolist(), progress.enqueued.tolist(), strict=True)
    ]
    for row, group_id, number in zip(progress.row.tolist(), progress.group_id.tolist(), best, strict=True):
        rank = rank_of.get(int(progress.rank_id[row]))
        if rank is None:
            continue
        numbers.setdefault(group_id, {})[rank] = number
        moved[group_id] = max(moved.get(group_id, 0), int(progress.moved_ns[row]))
    return [_group_view(g, numbers.get(g.pk, {}), moved.get(g.pk, 0), now_ns) for g in groups]


def _group_view(group: Group, numbers: dict[int, int], moved_ns: int, now_ns: int) -> GroupView:
    members = tuple(sorted(group.ranks))
    front = max(numbers.values(), default=-1)
    joined = tuple(r for r in members if numbers.get(r) == front) if front >= 0 else ()
    missing = tuple(r for r in members if r in numbers and numbers[r] < front)
    still = moved_ns > 0 and now_ns - moved_ns > STILL_AFTER_S * 1e9
    state = "unknown" if not numbers else "stuck" if missing and still else "ok"
    return GroupView(
        id=group.pk,
        name=group.name,
        desc=group.desc,
        backend=group.backend,
        world=group.world,
        ranks=members,
        state=state,
        sequence=front if front >= 0 else None,
        joined=joined,
        missing=missing,
        unreported=tuple(r for r in members if r not in numbers),
        moved_at=_at(moved_ns),
    )


def groups_of(job: Job, attempt: int | None = None) -> QuerySet[Group]:
    """Process groups of one attempt (``None``: the newest), by name."""
    wanted = job.attempt if attempt is None else attempt
    return Group.objects.filter(job=job, attempt=wanted).order_by("world", "name", "desc", "id")


def active_jobs(cluster_id: int | None = None) -> QuerySet[Job]:
    """Jobs that have not ended, newest first."""
    jobs = Job.objects.filter(ended_at__isnull=True).select_related("cluster").order_by("-started_at")
    return jobs if cluster_id is None else jobs.filter(cluster_id=cluster_id)


def current_ranks(job: Job) -> QuerySet[Rank]:
    """Every rank of the job's newest attempt, exited ones too, by world and rank."""
    ranks = Rank.objects.filter(job=job, attempt=job.attempt)
    return ranks.select_related("node").order_by("world", "rank")


def newest_by_key(cluster_id: int, key: str) -> Job | None:
    """The newest job with the scheduler's id ``key``, ended or not."""
    return Job.objects.filter(cluster_id=cluster_id, key=key).order_by("-id").first()


def open_captures() -> QuerySet[Capture]:
    """Captures that still wait for an answer, oldest first."""
    return Capture.objects.filter(state=Capture.State.REQUESTED).select_related("job").order_by("id")


def ranks_by_ref(node_id: int, epoch: str) -> QuerySet[Rank]:
    """Ranks a node announced in one epoch of its spool and that have not exited."""
    return Rank.objects.filter(node_id=node_id, epoch=epoch, exited_at__isnull=True).order_by("id")


def group_shapes(groups: Iterable[GroupView]) -> list[GroupShape]:
    """Groups folded by kind (description without its numbers) and size, standing ones first."""
    folded: dict[tuple[str, int], list[GroupView]] = {}
    for group in groups:
        folded.setdefault((_kind(group), len(group.ranks)), []).append(group)
    order = {"stuck": 0, "unknown": 1, "ok": 2}
    shapes = []
    for (kind, size), members in folded.items():
        members.sort(key=lambda g: (order[g.state], g.id))
        counts = {state: sum(g.state == state for g in members) for state in order}
        shapes.append(GroupShape(kind, size, tuple(members), {k: v for k, v in counts.items() if v}))
    return sorted(shapes, key=lambda s: (order[s.groups[0].state], -s.size, s.kind))


def _kind(group: GroupView) -> str:
    """``tp`` of ``tp``, ``tp_0`` or ``tensor.3.8``; the name where there is no description."""
    text = group.desc or ("" if group.name.isdigit() else group.name)
    kind = text.rstrip("0123456789._-:[]() ")
    return kind.lower() or "unnamed"
