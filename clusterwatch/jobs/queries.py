"""Reads of jobs, ranks, groups and captures. Lists are bounded; who may see what goes through ``for_user``."""

from __future__ import annotations

from typing import Any

from django.db.models import Q, QuerySet

from clusterwatch.accounts.models import User
from clusterwatch.jobs.models import Capture, Group, Job, Rank


def for_user(user: User | Any) -> QuerySet[Job]:
    """Jobs a person may see: an administrator every one, others those of their teams and of no team."""
    jobs = Job.objects.select_related("cluster", "team")
    if not getattr(user, "is_authenticated", False):
        return jobs.none()
    if user.is_staff or user.role == User.Role.ADMIN:
        return jobs
    return jobs.filter(Q(team__isnull=True) | Q(team__members=user)).distinct()


def active_jobs(cluster_id: int | None = None) -> QuerySet[Job]:
    """Jobs that have not ended, newest first."""
    jobs = Job.objects.filter(ended_at__isnull=True).select_related("cluster").order_by("-started_at")
    return jobs if cluster_id is None else jobs.filter(cluster_id=cluster_id)


def newest_by_key(cluster_id: int, key: str) -> Job | None:
    """The newest job with the scheduler's id ``key``, ended or not."""
    return Job.objects.filter(cluster_id=cluster_id, key=key).order_by("-id").first()


def current_ranks(job: Job) -> QuerySet[Rank]:
    """Every rank of the job's newest attempt, exited ones too, by world and rank."""
    ranks = Rank.objects.filter(job=job, attempt=job.attempt)
    return ranks.select_related("node").order_by("world", "rank")


def groups_of(job: Job, attempt: int | None = None) -> QuerySet[Group]:
    """Process groups of one attempt (``None``: the newest), by name."""
    wanted = job.attempt if attempt is None else attempt
    return Group.objects.filter(job=job, attempt=wanted).order_by("world", "name", "desc", "id")


def open_captures() -> QuerySet[Capture]:
    """Captures that still wait for an answer, oldest first."""
    return Capture.objects.filter(state=Capture.State.REQUESTED).select_related("job").order_by("id")


def ranks_by_ref(node_id: int, epoch: str) -> QuerySet[Rank]:
    """Ranks a node announced in one epoch of its spool and that have not exited."""
    return Rank.objects.filter(node_id=node_id, epoch=epoch, exited_at__isnull=True).order_by("id")
