"""Reads of incidents, as screens, REST and the command line show them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import zstandard
from django.db.models import Case, Count, IntegerField, Q, QuerySet, Value, When

from clusterwatch.accounts.models import User
from clusterwatch.analysis.verdicts import SLOW_CLASSES
from clusterwatch.incidents.models import LIVE_STATES, Evidence, Incident
from clusterwatch.jobs.queries import for_user as jobs_for_user

EVIDENCE_MAX_BYTES = 8 * 1024 * 1024
"""A piece of evidence is never unpacked beyond this."""
SUMMARY_MAX = 50
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
        if hashlib.sha256(raw).hexdigest() != piece.sha256:
            raise ValueError("its content is not what was hashed when it was frozen")
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


def lost_gpus(incident: Incident) -> float | None:
    """GPUs that burn for nothing: all that stand still, or the share of a step that something slow costs.

    None where that share is not known; what a fault of a part costs is told by the incidents of its jobs.
    """
    if incident.fault_class == "health":
        return None
    if incident.fault_class not in SLOW_CLASSES:
        return float(incident.gpu_count)
    ratio = (incident.diagnosis or {}).get("lost_ratio")
    return None if ratio is None else incident.gpu_count * float(ratio)


def lost_gpu_hours(incident: Incident, now: datetime | None = None) -> float | None:
    """GPU-hours burnt from the last progress, or the first slow step, to the end (or now)."""
    end, lost = incident.resolved_at or now or datetime.now(UTC), lost_gpus(incident)
    return None if lost is None else lost * max(0.0, (end - incident.since).total_seconds()) / 3600


def newest_of_job(job_id: int) -> Incident | None:
    """The incident to show first for a job: the worst live one, else the last one resolved."""
    incidents = Incident.objects.filter(job_id=job_id).select_related("cluster", "job")
    return live_first(incidents).first() or incidents.order_by("-resolved_at", "-id").first()


def live_summary(cluster_id: int) -> list[dict[str, Any]]:
    """Live incidents of a cluster in few words, worst first, at most ``SUMMARY_MAX``."""
    rows = live_first(Incident.objects.filter(cluster_id=cluster_id)).select_related("job")
    return [
        {
            "id": row.pk,
            "state": row.state,
            "severity": row.severity,
            "verdict": row.verdict,
            "summary": row.summary,
            "job_id": row.job_id,
            "job_key": row.job.key if row.job else None,
            "since_ms": int(row.since.timestamp() * 1000),
            "checked_ms": int(row.checked_at.timestamp() * 1000),
            "culprits": list(row.diagnosis.get("culprits") or ()),
            "culprit_ranks": list(row.diagnosis.get("culprit_ranks") or ()),
        }
        for row in rows[:SUMMARY_MAX]
    ]


def live_counts(cluster_id: int) -> dict[str, int]:
    """How many live incidents a cluster has in each state."""
    counted = dict(
        Incident.objects.filter(cluster_id=cluster_id, state__in=LIVE_STATES)
        .order_by()
        .values_list("state")
        .annotate(Count("pk"))
    )
    return {state: counted.get(state, 0) for state in LIVE_STATES}


def evidence_json(piece: Evidence) -> Any:
    """The frozen JSON of a piece of evidence.

    Raises:
        ValueError: it cannot be unpacked, or it is not what was hashed when it was frozen.
    """
    opened = open_evidence(piece)
    if opened.problem:
        raise ValueError(opened.problem)
    return opened.payload
