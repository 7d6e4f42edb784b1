"""Reads of incidents, as screens, REST and the command line show them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import zstandard
from django.db.models import Case, IntegerField, Q, QuerySet, Value, When

from clusterwatch.accounts.models import User
from clusterwatch.incidents.models import LIVE_STATES, Evidence, Incident
from clusterwatch.jobs.queries import for_user as jobs_for_user

EVIDENCE_MAX_BYTES = 8 * 1024 * 1024
"""A piece of evidence is never unpacked beyond this."""
NEAR = timedelta(minutes=10)
"""Incidents that began so close together may have one cause."""
_WEIGHT = Case(
    When(severity="critical", then=Value(0)),
    When(severity="warning", then=Value(1)),
    When(severity="unknown", then=Value(2)),
    default=Value(3),
    output_field=IntegerField(),
)


def for_user(user: User | Any) -> QuerySet[Incident]:
    """Incidents a person may see: those of jobs the person may see, and those of no job."""
    incidents = Incident.objects.select_related("cluster", "job", "node")
    if not getattr(user, "is_authenticated", False):
        return incidents.none()
    return incidents.filter(Q(job__isnull=True) | Q(job__in=jobs_for_user(user).order_by().values("pk")))


def live_first(incidents: QuerySet[Incident]) -> QuerySet[Incident]:
    """Live incidents, worst first, then the ones that last longest."""
    return incidents.filter(state__in=LIVE_STATES).order_by(_WEIGHT, "since", "id")


@dataclass(frozen=True, slots=True)
class EvidenceView:
    """A piece of evidence, opened: ``payload`` is its JSON, None when it cannot be read any more."""

    id: int
    at: datetime
    kind: str
    title: str
    source: str
    weight: float
    names: str
    sha256: str
    payload: Any
    problem: str = ""


def open_evidence(piece: Evidence) -> EvidenceView:
    """Unpacks one piece; damage is told in words, never raised."""
    payload, problem = None, ""
    try:
        raw = zstandard.ZstdDecompressor().decompress(
            bytes(piece.payload), max_output_size=EVIDENCE_MAX_BYTES
        )
        payload = json.loads(raw)
    except (zstandard.ZstdError, ValueError, RecursionError) as fault:
        problem = f"this piece cannot be read: {fault}"
    return EvidenceView(
        id=piece.pk,
        at=piece.at,
        kind=piece.kind,
        title=piece.title,
        source=piece.source,
        weight=piece.weight,
        names=piece.names,
        sha256=piece.sha256,
        payload=payload,
        problem=problem,
    )


def neighbours(incident: Incident, visible: QuerySet[Incident]) -> Sequence[Incident]:
    """Other incidents of the same cluster that began close to this one, at most ten."""
    near = visible.filter(
        cluster=incident.cluster_id, since__range=(incident.since - NEAR, incident.since + NEAR)
    )
    return list(near.exclude(pk=incident.pk).order_by("since")[:10])


def lost_gpu_hours(incident: Incident, now: datetime | None = None) -> float:
    """GPU-hours burnt between the last progress and the end (or now)."""
    end = incident.resolved_at or now or datetime.now(UTC)
    return incident.gpu_count * max(0.0, (end - incident.since).total_seconds()) / 3600
