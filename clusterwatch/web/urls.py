"""Addresses of the screens. Every one but the door and the supervisor's probe asks for a session."""

from __future__ import annotations

from collections.abc import Callable

from django.contrib.auth.decorators import login_required
from django.contrib.auth.views import LoginView, LogoutView
from django.http import HttpResponseBase
from django.urls import URLPattern, path

from clusterwatch.web.views import (
    alerts,
    cluster,
    collectors,
    devices,
    docs,
    drift,
    goodput,
    incidents,
    jobs,
    nodes,
    parts,
    search,
    session,
)


def _screen(route: str, view: Callable[..., HttpResponseBase], name: str) -> URLPattern:
    return path(route, login_required(view), name=name)


urlpatterns = [
    path("healthz", session.healthz, name="healthz"),
    path("login/", LoginView.as_view(redirect_authenticated_user=True), name="login"),
    path("logout/", LogoutView.as_view(), name="logout"),
    _screen("preferences", session.preferences, "preferences"),
    _screen("", cluster.overview, "cluster"),
    _screen("clusters/<int:cluster_id>/places.json", cluster.places, "places"),
    _screen("search", search.search, "search"),
    _screen("jobs", jobs.listing, "jobs"),
    _screen("jobs/<int:job_id>", jobs.detail, "job"),
    _screen("jobs/<int:job_id>/steps.csv", jobs.steps_csv, "job_steps_csv"),
    _screen("jobs/<int:job_id>/ranks/<int:rank>", jobs.rank, "rank"),
    _screen("jobs/<int:job_id>/ranks/<str:world>/<int:rank>", jobs.rank, "rank_of_world"),
    _screen("incidents", incidents.listing, "incidents"),
    _screen("incidents/<int:incident_id>", incidents.detail, "incident"),
    _screen("incidents/<int:incident_id>/timeline", incidents.timeline, "incident_timeline"),
    _screen("incidents/<int:incident_id>/acts", incidents.action_bar, "incident_acts"),
    _screen("incidents/<int:incident_id>/acknowledge", incidents.acknowledge, "incident_acknowledge"),
    _screen("incidents/<int:incident_id>/assign", incidents.assign, "incident_assign"),
    _screen("incidents/<int:incident_id>/resolve", incidents.resolve, "incident_resolve"),
    _screen("incidents/<int:incident_id>/notes", incidents.notes, "incident_notes"),
    _screen("incidents/<int:incident_id>/evidence/<int:evidence_id>.json", incidents.evidence, "evidence"),
    _screen("nodes/<str:name>", nodes.detail, "node"),
    _screen("devices", devices.listing, "devices"),
    _screen("devices/<str:kind>/<path:name>", devices.detail, "device"),
    _screen("alerts", alerts.listing, "alerts"),
    _screen("alerts/<int:receiver_id>/test", alerts.test, "alert_test"),
    _screen("parts", parts.listing, "parts"),
    _screen("parts/<int:part_id>", parts.detail, "part"),
    _screen("drift", drift.listing, "drift"),
    _screen("goodput", goodput.cluster, "goodput"),
    _screen("collectors", collectors.listing, "collectors"),
    _screen("docs/verdicts/", docs.verdicts, "verdict_docs"),
    _screen("docs/verdicts/<slug:word>/", docs.verdict, "verdict_doc"),
]
