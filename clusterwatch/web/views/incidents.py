"""Incidents: the list, one incident, its frozen evidence, and what operators do with it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_GET, require_POST

from clusterwatch.alerts import services as alerts
from clusterwatch.detect import known_bugs
from clusterwatch.incidents import acts, queries, recurrence
from clusterwatch.incidents.models import LIVE_STATES, Incident
from clusterwatch.incidents.standstills import STANDING
from clusterwatch.jobs.models import Rank
from clusterwatch.web import incident_page, job_phases
from clusterwatch.web.context import get_frame, look_at, may_act

PAGE_SIZE = 50
STATE_FILTERS = ("live", *LIVE_STATES, "resolved", "all")


def _visible(request: HttpRequest) -> QuerySet[Incident]:
    return queries.for_user(request.user)


@require_GET
def listing(request: HttpRequest) -> HttpResponse:
    """Live incidents by default; ``state`` chooses others."""
    chosen = request.GET.get("state", "live")
    if chosen not in STATE_FILTERS:
        chosen = "live"
    frame = get_frame(request)
    incidents = _visible(request).filter(cluster=frame.cluster)
    if chosen == "live":
        incidents = queries.live_first(incidents)
    else:
        incidents = incidents.order_by("-since", "-id")
        incidents = incidents if chosen == "all" else incidents.filter(state=chosen)
    page = Paginator(incidents, PAGE_SIZE).get_page(request.GET.get("page"))
    context = {"here": "incidents", "page": page, "chosen": chosen, "filters": STATE_FILTERS}
    return render(request, "web/incidents.html", context)


def _page(request: HttpRequest, incident_id: int) -> incident_page.IncidentPage:
    incident = get_object_or_404(_visible(request), pk=incident_id)
    look_at(request, incident.cluster_id)
    neighbours = queries.neighbours(incident, _visible(request))
    has_gpus = Rank.objects.filter(job=incident.job_id, gpu_index__isnull=False).exists()
    return incident_page.build(incident, neighbours, has_gpus or bool(_gpu_named(incident)))


def _gpu_named(incident: Incident) -> bool:
    culprits = (incident.diagnosis or {}).get("culprits") or ()
    return any(culprit.get("gpu") is not None for culprit in culprits)


@require_GET
def detail(request: HttpRequest, incident_id: int) -> HttpResponse:
    """The incident; the sentence is in the HTML."""
    page = _page(request, incident_id)
    came_back = recurrence.of_incident(page.incident, _visible(request))
    context = {
        "here": "incidents", "page": page, "came_back": came_back, "told": alerts.of_incident(incident_id),
        "observed": page.incident.cluster.observe_only, "advice": _advice(page.incident),
        "bugs": known_bugs.of_incident(page.incident, time.time_ns()),
    }  # fmt: skip
    return render(request, "web/incident.html", context)


def _advice(incident: Incident) -> job_phases.Advice | None:
    """The checkpoint to go on from, where a job stands still or ended."""
    if incident.job is None or incident.fault_class not in STANDING:
        return None
    return job_phases.advice(incident.job, incident.since)


@require_GET
def timeline(request: HttpRequest, incident_id: int) -> HttpResponse:
    """The timeline alone, for a page that is already open."""
    return render(request, "web/incident_timeline.html", {"page": _page(request, incident_id)})


@require_GET
def action_bar(request: HttpRequest, incident_id: int) -> HttpResponse:
    """What can be done right now, for a page that is already open."""
    return render(request, "web/incident_acts.html", {"page": _page(request, incident_id)})


@require_GET
def evidence(request: HttpRequest, incident_id: int, evidence_id: int) -> HttpResponse:
    """One frozen piece as it was stored."""
    incident = get_object_or_404(_visible(request), pk=incident_id)
    piece = get_object_or_404(incident.evidence, pk=evidence_id)
    opened = queries.open_evidence(piece)
    if opened.problem:
        raise Http404(opened.problem)
    body = json.dumps(opened.payload, ensure_ascii=False, separators=(",", ":"))
    response = HttpResponse(body, content_type="application/json")
    response["X-Evidence-SHA256"] = opened.sha256
    return response


def _operator_act(
    request: HttpRequest, incident_id: int, act: Callable[[int, str], Any], done: str, late: str
) -> HttpResponse:
    """Runs ``act`` for an operator on a visible incident and returns to its page with a word on it."""
    if not may_act(request.user):
        raise PermissionDenied("only operators and admins may change an incident")
    incident = get_object_or_404(_visible(request), pk=incident_id)
    if act(incident.pk, request.user.get_username()):
        messages.success(request, done)
    else:
        messages.warning(request, late)
    return redirect("incident", incident_id=incident.pk)


@require_POST
def acknowledge(request: HttpRequest, incident_id: int) -> HttpResponse:
    late = "Nothing changed: it was acknowledged or closed already."
    return _operator_act(request, incident_id, acts.acknowledge, "Acknowledged.", late)


@require_POST
def assign(request: HttpRequest, incident_id: int) -> HttpResponse:
    assignee = request.POST.get("assignee", "")

    def act(pk: int, actor: str) -> bool:
        return acts.assign(pk, actor, assignee)

    return _operator_act(request, incident_id, act, "Assigned.", "Nothing changed.")


@require_POST
def resolve(request: HttpRequest, incident_id: int) -> HttpResponse:
    reason = request.POST.get("reason", "")

    def act(pk: int, actor: str) -> bool:
        return acts.resolve(pk, actor, reason)

    return _operator_act(request, incident_id, act, "Resolved.", "Nothing changed: it was closed already.")


@require_POST
def notes(request: HttpRequest, incident_id: int) -> HttpResponse:
    """Adds a note; answers the list of notes alone when the page asks for that."""
    text = request.POST.get("text", "")

    def act(pk: int, actor: str) -> bool:
        return acts.add_note(pk, actor, text) is not None

    if not request.headers.get("HX-Request"):
        return _operator_act(request, incident_id, act, "Note added.", "An empty note was not added.")
    if not may_act(request.user):
        raise PermissionDenied("only operators and admins may write on an incident")
    incident = get_object_or_404(_visible(request), pk=incident_id)
    act(incident.pk, request.user.get_username())
    return render(request, "web/incident_notes.html", {"page": _page(request, incident_id)})
