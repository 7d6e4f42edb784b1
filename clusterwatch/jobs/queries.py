"""Reads of jobs, ranks, groups and captures from the database. What hot state adds to them: ``progress``."""

from __future__ import annotations

from django.contrib.auth.models import AnonymousUser
from django.db.models import Q, QuerySet

from clusterwatch.accounts.models import User
from clusterwatch.jobs.models import Capture, Group, Job, Rank


def for_user(user: User | AnonymousUser) -> QuerySet[Job]:
    """Jobs a person may see: operators and admins all, a viewer those of the own teams and of no team."""
    jobs = Job.objects.select_related("cluster", "team")
    if not isinstance(user, User):
        return jobs.none()
    if user.is_staff or user.role in (User.Role.OPERATOR, User.Role.ADMIN):
        return jobs
    return jobs.filter(Q(team__isnull=True) | Q(team__in=user.teams.all()))


def groups_of(job: Job, attempt: int | None = None) -> QuerySet[Group]:
    """Process groups of one attempt (``None``: the newest), by name."""
    wanted = job.attempt if attempt is None else attempt
    return Group.objects.filter(job=job, attempt=wanted).order_by("world", "name", "desc", "id")


def current_ranks(job: Job) -> QuerySet[Rank]:
    """Every rank of the job's newest attempt, exited ones too, by world and rank."""
    ranks = Rank.objects.filter(job=job, attempt=job.attempt)
    return ranks.select_related("node").order_by("world", "rank")


def open_captures() -> QuerySet[Capture]:
    """Captures that still wait for an answer, oldest first."""
    return Capture.objects.filter(state=Capture.State.REQUESTED).select_related("job").order_by("id")


def ranks_by_ref(node_id: int, epoch: str) -> QuerySet[Rank]:
    """Ranks a node announced in one epoch of its spool and that have not exited."""
    return Rank.objects.filter(node_id=node_id, epoch=epoch, exited_at__isnull=True).order_by("id")
