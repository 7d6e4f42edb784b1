"""Jobs as lines of a table: state, steps, last progress, and the incident that explains it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from django.db.models import Count, F, QuerySet

from clusterwatch.fleet.overview import ClusterNow
from clusterwatch.incidents.models import Incident
from clusterwatch.incidents.queries import live_first
from clusterwatch.jobs.models import Job, Rank
from clusterwatch.jobs.progress import job_live
from clusterwatch.web.words import Badge, job_badge


@dataclass(frozen=True, slots=True)
class JobRow:
    """One line. None = not known."""

    job: Job
    badge: Badge
    ranks: int
    reported: int | None
    step: int | None
    step_rate: float | None
    """steps per second over the last 30 s"""
    phase: str | None
    last_progress_at: datetime | None
    moving: bool
    """within the last three seconds some rank moved"""
    incident: Incident | None


def job_rows(jobs: Sequence[Job], now: ClusterNow | None, incidents: QuerySet[Incident]) -> list[JobRow]:
    """Lines of ``jobs`` (two queries); the cluster's live frame first, hot state where it says nothing."""
    ids = [job.pk for job in jobs]
    counts = dict(
        Rank.objects.filter(job__in=ids, attempt=F("job__attempt"))
        .values_list("job_id")
        .annotate(count=Count("id"))
    )
    worst: dict[int | None, Incident] = {}
    for incident in live_first(incidents.filter(job__in=ids))[:500]:
        worst.setdefault(incident.job_id, incident)
    live = now.jobs if now is not None and now.fresh else {}
    return [_row(job, counts.get(job.pk, 0), live.get(str(job.pk)), worst.get(job.pk)) for job in jobs]


def _row(job: Job, ranks: int, live: dict[str, Any] | None, incident: Incident | None) -> JobRow:
    badge = job_badge(job.state, incident.severity if incident else None)
    if job.ended_at is not None:
        return JobRow(job, badge, ranks, None, None, None, None, job.ended_at, False, incident)
    if live is None:
        seen = job_live([job.pk]).get(job.pk)
        if seen is None:
            return JobRow(job, badge, ranks, None, None, None, None, None, False, incident)
        return JobRow(
            job, badge, ranks, seen.reported, seen.step, None, None, seen.last_progress_at, False, incident
        )
    still_ms = live.get("still_since_ms")
    return JobRow(
        job=job,
        badge=badge,
        ranks=int(live.get("ranks") or ranks),
        reported=live.get("reported"),
        step=live.get("step"),
        step_rate=live.get("step_rate"),
        phase=live.get("phase"),
        last_progress_at=datetime.now(UTC)
        if still_ms is None
        else datetime.fromtimestamp(still_ms / 1e3, UTC),
        moving=still_ms is None,
        incident=incident,
    )
