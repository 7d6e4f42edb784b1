"""Where the GPU-time of the cluster's jobs went."""

from __future__ import annotations

from datetime import UTC, datetime

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from clusterwatch.jobs import goodput
from clusterwatch.jobs.queries import for_user
from clusterwatch.web import goodput_page
from clusterwatch.web.context import get_frame


@require_GET
def cluster(request: HttpRequest) -> HttpResponse:
    """Of jobs the person may see; ``span`` is one of ``goodput_page.SPANS``."""
    frame = get_frame(request)
    span = request.GET.get("span", "month")
    span = span if span in goodput_page.SPANS else "month"
    until = datetime.now(UTC)
    since = goodput_page.since(span, until)
    page = None
    if frame.cluster is not None:
        found = goodput.of_cluster(frame.cluster.pk, for_user(request.user), since, until)
        page = goodput_page.build(found)
    spans = [(word, shown) for word, (shown, _) in goodput_page.SPANS.items()]
    context = {"here": "jobs", "page": page, "spans": spans, "chosen": span, "since": since, "until": until}
    return render(request, "web/goodput.html", context)
