"""The cluster page: how many of what, where on the map, which jobs, and what needs a look."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import redis
from django.core.cache import cache
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404, render
from django.views.decorators.http import require_GET

from clusterwatch.fleet.models import Cluster
from clusterwatch.fleet.overview import ClusterNow, map_places
from clusterwatch.incidents import queries
from clusterwatch.incidents.models import Incident
from clusterwatch.jobs.queries import for_user
from clusterwatch.web.context import CLUSTER_COOKIE, get_frame
from clusterwatch.web.job_rows import job_rows
from clusterwatch.web.numbers import grouped
from clusterwatch.web.views.session import PREFERENCE_AGE_S
from clusterwatch.web.words import OF_SEVERITY, STATE_WORDS, STATES, verdict_badge

ATTENTION_MAX = 10
JOBS_MAX = 20
PLACES_KEEP_S = 300


@dataclass(frozen=True, slots=True)
class Attention:
    """One line of "worth your attention"; ``hosts`` are ringed on the map."""

    state: str
    title: str
    text: str
    size: str
    cost: str
    href: str
    hosts: tuple[str, ...] = ()


def _of_incident(incident: Incident) -> Attention:
    diagnosis = incident.diagnosis or {}
    hosts = tuple(sorted({str(c["host"]) for c in diagnosis.get("culprits") or () if c.get("host")}))
    badge = verdict_badge(incident.fault_class, incident.verdict, incident.severity)
    head = f"Job {incident.job.key}" if incident.job else (incident.node.name if incident.node else "Cluster")
    per_minute = incident.gpu_count / 60
    return Attention(
        state=OF_SEVERITY.get(incident.severity, "unknown"),
        title=f"{head}: {badge.word[0].lower()}{badge.word[1:]}",
        text=incident.summary,
        size=f"{grouped(incident.gpu_count)} ranks, {incident.state}"
        if incident.gpu_count
        else incident.state,
        cost=f"{grouped(per_minute, 0 if per_minute >= 10 else 1)} rank-h/min"
        if incident.gpu_count
        else "no cost yet",
        href=f"/incidents/{incident.pk}",
        hosts=hosts[:8],
    )


def _of_silence(now: ClusterNow) -> list[Attention]:
    """Nodes that fell silent, and apart from them those whose gateway did: nothing is held against these."""
    by_gateway: dict[bool, list[str]] = {True: [], False: []}
    for node in now.silent.values():
        by_gateway[node.get("link") == "gateway_silent"].append(str(node.get("name", "")))
    return [_unseen(names, of_gateway) for of_gateway, names in by_gateway.items() if names]


def _unseen(names: Sequence[str], of_gateway: bool) -> Attention:
    one, count = len(names) == 1, grouped(len(names))
    who = names[0] if one else f"{count} nodes"
    title = f"The gateway of {who} is silent" if of_gateway else f"{who} {'is' if one else 'are'} silent"
    shown = ", ".join(names[:3]) + (f" and {grouped(len(names) - 3)} more" if len(names) > 3 else "")
    size = f"{count} node{'' if one else 's'}"
    return Attention(
        "unknown", title, shown, size, "cost unknown", "/collectors?show=silent", tuple(names[:8])
    )


def _counts(now: ClusterNow) -> Sequence[dict[str, Any]]:
    return [{"state": state, "word": STATE_WORDS[state], "count": now.counts[state]} for state in STATES]


@require_GET
def overview(request: HttpRequest) -> HttpResponse:
    """The page of the cluster looked at; without any cluster, how to get one."""
    frame = get_frame(request)
    if frame.cluster is None or frame.now is None:
        return render(request, "web/no_cluster.html", {"here": "cluster"})
    visible = queries.for_user(request.user).filter(cluster=frame.cluster)
    attention = [_of_incident(incident) for incident in queries.live_first(visible)[:ATTENTION_MAX]]
    attention += _of_silence(frame.now)[: ATTENTION_MAX - len(attention)]
    active = for_user(request.user).filter(cluster=frame.cluster, ended_at__isnull=True)
    jobs = list(active.order_by("-started_at")[:JOBS_MAX])
    context = {
        "here": "cluster",
        "counts": _counts(frame.now),
        "attention": attention,
        "rows": job_rows(jobs, frame.now, visible),
        "nodes": frame.now.expected,
    }
    response = render(request, "web/cluster.html", context)
    if request.GET.get("cluster") == str(frame.cluster.pk):
        response.set_cookie(CLUSTER_COOKIE, str(frame.cluster.pk), max_age=PREFERENCE_AGE_S, samesite="Lax")
    return response


@require_GET
def places(request: HttpRequest, cluster_id: int) -> HttpResponse:
    """Where each slot is drawn; kept until a slot is given."""
    cluster = get_object_or_404(Cluster, pk=cluster_id)
    response = JsonResponse(_kept_places(cluster))
    response["ETag"] = f'"{cluster.pk}-{cluster.slots_version}"'
    response["Cache-Control"] = "private, no-cache"
    return response


def _kept_places(cluster: Cluster) -> dict[str, Any]:
    """From the cache where it answers; the map stands without it."""
    key = f"places:{cluster.pk}:{cluster.slots_version}"
    with contextlib.suppress(redis.RedisError):
        kept: dict[str, Any] | None = cache.get(key)
        if kept is not None:
            return kept
    found = map_places(cluster)
    with contextlib.suppress(redis.RedisError):
        cache.set(key, found, PLACES_KEEP_S)
    return found
