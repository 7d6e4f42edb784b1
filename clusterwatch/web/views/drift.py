"""Nodes that differ from their peers, of the cluster looked at."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from clusterwatch.jobs import drift
from clusterwatch.web import drift_page
from clusterwatch.web.context import get_frame


@require_GET
def listing(request: HttpRequest) -> HttpResponse:
    """The newest comparison of the cluster."""
    frame = get_frame(request)
    view = drift.view(frame.cluster.pk, request.user) if frame.cluster else None
    page = drift_page.build(view) if view is not None else None
    return render(request, "web/drift.html", {"here": "collectors", "page": page})
