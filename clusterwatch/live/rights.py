"""Who may see which topic, and which rows of a shared one.

Cluster topics are the same for everybody but for rows about jobs: those a viewer may not see are taken out on
the way, so that one published frame serves all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
from channels.db import database_sync_to_async
from django.db.models import Q

from clusterwatch.accounts.models import User
from clusterwatch.fleet.models import Cluster
from clusterwatch.incidents.models import Incident
from clusterwatch.jobs.models import Job
from clusterwatch.jobs.queries import for_user

JobIds = frozenset[int]


def _may_see(user: User, topic: str) -> bool:
    kind, _, number = topic.partition(":")
    if kind in ("cluster", "incidents"):
        return Cluster.objects.filter(pk=int(number)).exists()
    if kind == "job":
        return for_user(user).filter(pk=int(number)).exists()
    if kind == "incident":
        seen = Q(job__isnull=True) | Q(job__in=for_user(user))
        return Incident.objects.filter(seen, pk=int(number)).exists()
    return False


def _visible_topics(user: User, topics: list[str]) -> list[str]:
    return [topic for topic in topics if _may_see(user, topic)]


async def visible_topics(user: User, topics: list[str]) -> list[str]:
    """Those of ``topics`` that exist and that the user may see. One query each."""
    visible: list[str] = await database_sync_to_async(_visible_topics)(user, topics)
    return visible


async def visible_jobs(user: User) -> JobIds | None:
    """Ids of the jobs a restricted user may see; None: all."""
    visible: JobIds | None = await database_sync_to_async(_visible_jobs)(user)
    return visible


def _visible_jobs(user: User) -> JobIds | None:
    jobs = for_user(user)
    hidden = Job.objects.exclude(pk__in=jobs.values("pk"))
    return frozenset(jobs.values_list("pk", flat=True)) if hidden.exists() else None


def without_hidden_rows(body: bytes, jobs: JobIds | None) -> bytes:
    """A frame without rows about jobs outside ``jobs``; as it is when all may be seen."""
    if jobs is None:
        return body
    frame = orjson.loads(body)
    for part in _contents(frame):
        _take_out(part, jobs)
    return orjson.dumps(frame)


def _contents(frame: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The places of a frame that hold rows: {key: {id: row}}."""
    if "full" in frame:
        return [frame["full"]]
    delta = frame["delta"]
    put = {key: change["put"] for key, change in delta.get("rows", {}).items() if "put" in change}
    return [delta.get("set", {}), put]


def _take_out(content: dict[str, Any], jobs: JobIds) -> None:
    """Removes hidden rows from the tables of one content, in place."""
    if isinstance(rows := content.get("jobs"), dict):
        for job_id in [i for i in rows if int(i) not in jobs]:
            del rows[job_id]
    if isinstance(rows := content.get("incidents"), dict):
        for incident_id in [i for i, row in rows.items() if _is_hidden(row, jobs)]:
            del rows[incident_id]


def _is_hidden(row: Mapping[str, Any], jobs: JobIds) -> bool:
    job_id = row.get("job_id")
    return job_id is not None and job_id not in jobs
