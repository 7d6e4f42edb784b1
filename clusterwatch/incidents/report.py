"""The live answer to "why does this job not move", as one JSON object made from the database."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

import redis

from clusterwatch.analysis.sentence import duration
from clusterwatch.incidents import queries
from clusterwatch.incidents.models import Incident
from clusterwatch.jobs.models import Job
from clusterwatch.jobs.progress import job_live
from clusterwatch.store import hot

STALE_AFTER_S: Final = 5.0
"""Nothing came from any gateway for so long: what is shown may be over."""


def find_jobs(word: str) -> list[Job]:
    """Jobs a person may mean: by the scheduler's id (newest run of each cluster first), else by ours."""
    jobs = Job.objects.select_related("cluster").order_by("-id")
    found: dict[int, Job] = {}
    for job in jobs.filter(key=word)[:20]:
        found.setdefault(job.cluster_id, job)
    if not found and word.isascii() and word.isdigit() and len(word) < 19:
        found = {job.cluster_id: job for job in jobs.filter(pk=int(word))}
    return list(found.values())


def job_report(job: Job, now_ns: int) -> dict[str, Any]:
    """What is known of a job now.

    Returns: ``job`` (id, key, name, cluster, state, attempt, step, last_progress_at, reported, expected),
    ``incident`` (as REST gives it) or None, and ``stale``: why what is shown may be over, in words; empty
    while data are fresh.
    """
    incident = queries.newest_of_job(job.pk)
    live = job_live([job.pk]).get(job.pk)
    return {
        "job": {
            "id": job.pk,
            "key": job.key,
            "name": job.name,
            "cluster": job.cluster.name,
            "state": job.state,
            "attempt": job.attempt,
            "step": live.step if live else None,
            "last_progress_at": _iso(live.last_progress_at) if live else None,
            "reported": live.reported if live else None,
            "expected": live.expected if live else None,
        },
        "incident": None if incident is None else incident_json(incident),
        "stale": _stale(now_ns),
    }


def _stale(now_ns: int) -> list[str]:
    try:
        word_ns = hot.newest_gateway_word_ns()
    except redis.RedisError:
        return ["hot state does not answer"]
    if word_ns is None:
        return ["no gateway has written anything yet"]
    silent_s = (now_ns - word_ns) / 1e9
    return [f"no gateway has written for {duration(silent_s)}"] if silent_s > STALE_AFTER_S else []


def incident_json(incident: Incident) -> dict[str, Any]:
    """An incident as a JSON object, times in ISO 8601 UTC."""
    return {
        "id": incident.pk,
        "cluster": incident.cluster.name,
        "job": incident.job_id,
        "job_key": None if incident.job is None else incident.job.key,
        "node": None if incident.node is None else incident.node.name,
        "state": incident.state,
        "severity": incident.severity,
        "verdict": incident.verdict,
        "fault_class": incident.fault_class,
        "owner": incident.owner,
        "summary": incident.summary,
        "since": _iso(incident.since),
        "suspected_at": _iso(incident.suspected_at),
        "opened_at": _iso(incident.opened_at),
        "acknowledged_at": _iso(incident.acknowledged_at),
        "acknowledged_by": incident.acknowledged_by,
        "assigned_to": incident.assigned_to,
        "resolved_at": _iso(incident.resolved_at),
        "resolution": incident.resolution,
        "checked_at": _iso(incident.checked_at),
        "threshold_s": incident.threshold_s,
        "threshold_source": incident.threshold_source,
        "gpu_count": incident.gpu_count,
        "diagnosis": incident.diagnosis,
    }


def _iso(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat().replace("+00:00", "Z")
