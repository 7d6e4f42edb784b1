"""What people do with an incident: take it, hand it over, write on it, close it.

Each act is one conditional update with its change and its audit entry in one transaction; an act that
comes too late (somebody else was first) changes nothing and says so by its return value.
"""

from __future__ import annotations

from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from clusterwatch.accounts.services import audit
from clusterwatch.incidents.announce import announce
from clusterwatch.incidents.models import LIVE_STATES, Incident, IncidentChange, Note

NOTE_MAX_CHARS = 4000
NAME_MAX_CHARS = 255


def acknowledge(incident_id: int, actor: str) -> bool:
    """Stops the escalation; False when it is already acknowledged or no longer live."""
    now = timezone.now()
    with transaction.atomic():
        before = _state(incident_id)
        changed = Incident.objects.filter(pk=incident_id, state__in=("suspected", "open")).update(
            state=Incident.State.ACKNOWLEDGED, acknowledged_at=now, acknowledged_by=actor
        )
        if changed:
            _record(incident_id, actor, "acknowledge", before, "acknowledged", f"Acknowledged by {actor}")
    return bool(changed)


def assign(incident_id: int, actor: str, assignee: str) -> bool:
    """Hands the incident to a person; an empty name takes it away again."""
    assignee = assignee.strip()[:NAME_MAX_CHARS]
    with transaction.atomic():
        before = Incident.objects.filter(pk=incident_id).values_list("assigned_to", flat=True).first()
        changed = (
            Incident.objects.filter(pk=incident_id, state__in=LIVE_STATES)
            .filter(~Q(assigned_to=assignee))
            .update(assigned_to=assignee)
        )
        if changed:
            text = f"Assigned to {assignee} by {actor}" if assignee else f"Assignment removed by {actor}"
            _record(incident_id, actor, "assign", before or "", assignee, text)
    return bool(changed)


def resolve(incident_id: int, actor: str, reason: str) -> bool:
    """Closes a live incident by hand, with a reason; False when it was closed already."""
    reason = reason.strip()[:NAME_MAX_CHARS] or "closed by hand"
    with transaction.atomic():
        before = _state(incident_id)
        changed = Incident.objects.filter(pk=incident_id, state__in=LIVE_STATES).update(
            state=Incident.State.RESOLVED, resolved_at=timezone.now(), resolution=reason
        )
        if changed:
            _record(incident_id, actor, "resolve", before, "resolved", f"Resolved by {actor}: {reason}")
    return bool(changed)


def add_note(incident_id: int, author: str, text: str) -> Note | None:
    """Writes on the incident; an empty text writes nothing."""
    text = text.strip()[:NOTE_MAX_CHARS]
    if not text:
        return None
    with transaction.atomic():
        note = Note.objects.create(incident_id=incident_id, author=author, text=text)
        audit(author, "incident.note", f"incident {incident_id}")
    return note


def _state(incident_id: int) -> str:
    return Incident.objects.filter(pk=incident_id).values_list("state", flat=True).first() or ""


def _record(incident_id: int, actor: str, act: str, before: str, after: str, text: str) -> None:
    IncidentChange.objects.create(
        incident_id=incident_id,
        at=timezone.now(),
        kind="state" if act != "assign" else "assign",
        before=before[:40],
        after=after[:40],
        text=text[:400],
        actor=actor,
    )
    audit(actor, f"incident.{act}", f"incident {incident_id}", {"value": before}, {"value": after})
    announce(incident_id)
