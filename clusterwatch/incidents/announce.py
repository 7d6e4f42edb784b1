"""Tells live pages of a changed incident, after the commit that changed it.

The topics and their fields are those of ``live/README.md``. A page that misses a frame, because Valkey was
away, still has the truth in the database; so a failure here is a log line and nothing else.
"""

from __future__ import annotations

import logging
from datetime import datetime
from functools import partial
from typing import Any, Final

import redis
from django.db import transaction

from clusterwatch.incidents import queries
from clusterwatch.incidents.models import Incident
from clusterwatch.store import frames

CHANGES_SHOWN: Final = 50
log = logging.getLogger(__name__)


def announce(incident_id: int) -> None:
    """Publishes the incident and its cluster's list once the transaction is committed."""
    transaction.on_commit(partial(_publish, incident_id))


def _publish(incident_id: int) -> None:
    incident = Incident.objects.filter(pk=incident_id).first()
    if incident is None:
        return
    try:
        frames.publish(f"incident:{incident_id}", _incident_state(incident))
        frames.publish(f"incidents:{incident.cluster_id}", list_state(incident.cluster_id))
    except (redis.RedisError, RuntimeError) as fault:
        log.warning("incident_not_announced incident=%d reason=%s", incident_id, fault)


def list_state(cluster_id: int) -> dict[str, Any]:
    """State of ``incidents:<cluster id>``."""
    rows = {
        row["id"]: {
            "state": row["state"],
            "severity": row["severity"],
            "verdict": row["verdict"],
            "summary": row["summary"],
            "job_id": row["job_id"],
            "job_key": row["job_key"],
            "since_ms": row["since_ms"],
            "checked_ms": row["checked_ms"],
            "culprits": [{"rank": c["rank"], "host": c["host"]} for c in row["culprits"]],
        }
        for row in queries.live_summary(cluster_id)
    }
    return {"incidents": rows, "counts": queries.live_counts(cluster_id)}


def _incident_state(incident: Incident) -> dict[str, Any]:
    newest = incident.changes.order_by("-id")[:CHANGES_SHOWN]
    return {
        "state": incident.state,
        "severity": incident.severity,
        "verdict": incident.verdict,
        "summary": incident.summary,
        "since_ms": _ms(incident.since),
        "checked_ms": _ms(incident.checked_at),
        "gpu_count": incident.gpu_count,
        "diagnosis": incident.diagnosis,
        "changes": {
            c.pk: {"at_ms": _ms(c.at), "kind": c.kind, "text": c.text, "actor": c.actor} for c in newest
        },
    }


def _ms(at: datetime) -> int:
    return int(at.timestamp() * 1000)
