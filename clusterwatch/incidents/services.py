"""What detection does with incidents: raise, sharpen, open, resolve, freeze evidence.

In: sightings with a ``Diagnosis``. Out: rows. One live incident per fingerprint; every state move is a
conditional update with its ``IncidentChange`` (the outbox) in the same transaction, so of two workers one
moves it and the other sees that it was moved. What people do is in ``acts``. Times come in as ns.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import orjson
import zstandard
from django.db import IntegrityError, transaction

from clusterwatch.analysis.model import Diagnosis
from clusterwatch.incidents.announce import announce
from clusterwatch.incidents.models import LIVE_STATES, Evidence, Incident, IncidentChange
from clusterwatch.incidents.queries import EVIDENCE_MAX_BYTES

State = Incident.State
_UNPAGED: Final = (State.SUSPECTED,)


@dataclass(frozen=True, slots=True)
class Sighting:
    """A fault as detection sees it now."""

    fingerprint: str
    cluster_id: int
    diagnosis: Diagnosis
    since_ns: int
    """last progress, or first failure"""
    job_id: int | None = None
    node_id: int | None = None
    threshold_s: float | None = None
    threshold_source: str = ""
    gpu_count: int = 0


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of evidence to freeze; ``payload`` is JSON (dataclasses and numpy allowed)."""

    kind: str
    title: str
    source: str
    payload: Any
    weight: float = 0.0
    names: str = ""


def moment(at_ns: int) -> datetime:
    """ns UTC as an aware datetime."""
    return datetime.fromtimestamp(at_ns / 1e9, UTC)


def suspect(sighting: Sighting, now_ns: int) -> tuple[Incident, bool]:
    """Raises a suspected incident, or finds the live one of the same fingerprint.

    Returns: the incident and whether it is new. An existing one is returned as it is: ``sharpen`` it.
    """
    live = live_incident(sighting.fingerprint)
    if live is not None:
        return live, False
    try:
        with transaction.atomic():
            incident = _create(sighting, now_ns)
    except IntegrityError:
        joined = live_incident(sighting.fingerprint)
        if joined is None:
            raise
        return joined, False
    return incident, True


def live_incident(fingerprint: str) -> Incident | None:
    """The live incident of a fingerprint."""
    return Incident.objects.filter(fingerprint=fingerprint, state__in=LIVE_STATES).first()


def _create(sighting: Sighting, now_ns: int) -> Incident:
    incident = Incident.objects.create(
        cluster_id=sighting.cluster_id,
        job_id=sighting.job_id,
        node_id=sighting.node_id,
        fingerprint=sighting.fingerprint[:200],
        state=State.SUSPECTED,
        since=moment(sighting.since_ns),
        suspected_at=moment(now_ns),
        checked_at=moment(now_ns),
        threshold_s=sighting.threshold_s,
        threshold_source=sighting.threshold_source[:200],
        gpu_count=sighting.gpu_count,
        **_verdict_columns(sighting.diagnosis),
    )
    _change(incident.pk, now_ns, "state", "", State.SUSPECTED, f"Suspected: {incident.summary}")
    announce(incident.pk)
    return incident


def _verdict_columns(diagnosis: Diagnosis) -> dict[str, Any]:
    worst = diagnosis.worst
    return {
        "severity": str(worst.severity),
        "verdict": worst.verdict[:40],
        "fault_class": worst.fault_class[:20],
        "owner": str(worst.owner),
        "summary": worst.summary[:400],
        "diagnosis": diagnosis.to_dict(),
    }


def sharpen(incident_id: int, sighting: Sighting, now_ns: int) -> bool:
    """Confirms or changes the verdict of a live incident.

    Returns: whether the verdict, its ranks or its cause changed; only then a change is written. An incident
    that is no longer live stays as it was.
    """
    columns = _verdict_columns(sighting.diagnosis)
    with transaction.atomic():
        incident = Incident.objects.select_for_update().filter(pk=incident_id, state__in=LIVE_STATES).first()
        if incident is None:
            return False
        changed = _essence(incident.diagnosis) != _essence(columns["diagnosis"])
        reworded = incident.summary != columns["summary"]
        Incident.objects.filter(pk=incident_id).update(
            checked_at=moment(now_ns),
            threshold_s=sighting.threshold_s,
            threshold_source=sighting.threshold_source[:200],
            gpu_count=sighting.gpu_count,
            **columns,
        )
        if changed:
            _change(incident_id, now_ns, "verdict", incident.verdict, columns["verdict"], columns["summary"])
        if changed or reworded:
            announce(incident_id)
    return changed


def _essence(diagnosis: dict[str, Any]) -> tuple[Any, ...]:
    """What makes a verdict another one: a changed confidence or age does not."""
    names = ("verdict", "cause", "culprit_ranks", "suspect_ranks", "node", "seq", "op")
    return tuple(diagnosis.get(name) for name in names)


def confirm(incident_id: int, now_ns: int) -> None:
    """Says that the verdict still holds at ``now_ns``."""
    Incident.objects.filter(pk=incident_id, state__in=LIVE_STATES).update(checked_at=moment(now_ns))


def open_(incident_id: int, now_ns: int, reason: str) -> bool:
    """Opens a suspected incident, which pages; False when another worker or a person was first."""
    with transaction.atomic():
        moved = Incident.objects.filter(pk=incident_id, state__in=_UNPAGED).update(
            state=State.OPEN, opened_at=moment(now_ns), checked_at=moment(now_ns)
        )
        if moved:
            _change(incident_id, now_ns, "state", State.SUSPECTED, State.OPEN, f"Opened: {reason}")
            announce(incident_id)
    return bool(moved)


def resolve(incident_id: int, now_ns: int, reason: str) -> bool:
    """Closes a live incident with a reason in words; False when it was closed already."""
    with transaction.atomic():
        incident = Incident.objects.select_for_update().filter(pk=incident_id, state__in=LIVE_STATES).first()
        if incident is None:
            return False
        Incident.objects.filter(pk=incident_id).update(
            state=State.RESOLVED, resolved_at=moment(now_ns), resolution=reason[:255]
        )
        _change(incident_id, now_ns, "state", incident.state, State.RESOLVED, f"Resolved: {reason}")
        announce(incident_id)
    return True


def freeze(incident_id: int, pieces: Sequence[Piece], now_ns: int) -> int:
    """Keeps pieces of evidence for good: compressed JSON with its hash.

    A piece equal to one the incident already has is not kept again; one over the size limit is replaced by
    a note that says so. Returns how many were kept.
    """
    rows = [_evidence(incident_id, piece, now_ns) for piece in pieces]
    with transaction.atomic():
        held = set(Evidence.objects.filter(incident_id=incident_id).values_list("kind", "sha256"))
        fresh = [row for row in rows if (row.kind, row.sha256) not in held]
        Evidence.objects.bulk_create(fresh)
        if fresh:
            kinds = ", ".join(sorted({row.kind for row in fresh}))
            _change(incident_id, now_ns, "evidence", "", "", f"Evidence kept: {kinds}")
            announce(incident_id)
    return len(fresh)


def _evidence(incident_id: int, piece: Piece, now_ns: int) -> Evidence:
    text = orjson.dumps(
        piece.payload,
        option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY,
    )
    if len(text) > EVIDENCE_MAX_BYTES:
        text = orjson.dumps({"too_large_bytes": len(text), "limit_bytes": EVIDENCE_MAX_BYTES})
    return Evidence(
        incident_id=incident_id,
        at=moment(now_ns),
        kind=piece.kind,
        title=piece.title[:200],
        source=piece.source[:200],
        weight=piece.weight,
        names=piece.names[:200],
        payload=zstandard.ZstdCompressor(level=3, write_checksum=True).compress(text),
        sha256=hashlib.sha256(text).hexdigest(),
    )


def _change(incident_id: int, now_ns: int, kind: str, before: str, after: str, text: str) -> None:
    IncidentChange.objects.create(
        incident_id=incident_id,
        at=moment(now_ns),
        kind=kind,
        before=before[:40],
        after=after[:40],
        text=text[:400],
    )
