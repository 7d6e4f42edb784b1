"""Receivers of notices: how each one does, what was sent last, a test."""

from __future__ import annotations

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_GET, require_POST

from clusterwatch.alerts import deliver, services
from clusterwatch.alerts.models import Receiver
from clusterwatch.incidents import queries
from clusterwatch.web.context import may_act

DELIVERIES_SHOWN = 50


@require_GET
def listing(request: HttpRequest) -> HttpResponse:
    """All receivers; of deliveries those of incidents that this person may see."""
    rows = services.newest_deliveries(DELIVERIES_SHOWN)
    visible = set(
        queries.for_user(request.user)
        .filter(pk__in={row.incident_id for row in rows})
        .values_list("pk", flat=True)
    )
    context = {
        "here": "incidents",
        "receivers": services.receivers(),
        "deliveries": [row for row in rows if row.incident_id in visible],
        "can_test": may_act(request.user),
    }
    return render(request, "web/alerts.html", context)


@require_POST
def test(request: HttpRequest, receiver_id: int) -> HttpResponse:
    """Sends a test; what the receiver answered is shown on the list."""
    if not may_act(request.user):
        raise PermissionDenied
    receiver = get_object_or_404(Receiver, pk=receiver_id)
    outcome = deliver.test(receiver, request.user.get_username())
    said = f"{receiver.name}: {'the test was accepted' if outcome.is_sent else outcome.said}"
    (messages.success if outcome.is_sent else messages.error)(request, said)
    return redirect("alerts")
