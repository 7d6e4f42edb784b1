"""Devices: switches, BMCs and racks that pollers ask, and one of them."""

from __future__ import annotations

from datetime import UTC, datetime

from django.core.paginator import Paginator
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from clusterwatch.fleet.models import Cluster
from clusterwatch.jobs import device_view
from clusterwatch.web import device_page
from clusterwatch.web.context import current_cluster, get_frame, look_at

PAGE_SIZE = 200
WORD_MAX_CHARS = 128


@require_GET
def listing(request: HttpRequest) -> HttpResponse:
    """Devices of the cluster looked at; ``kind``, ``show=failed`` and ``q`` (part of a name) narrow it."""
    frame = get_frame(request)
    devices = device_view.devices_of([frame.cluster.pk] if frame.cluster else [])
    kinds = list(devices.order_by("kind").values_list("kind", flat=True).distinct())
    kind, failed_only = request.GET.get("kind", ""), request.GET.get("show") == "failed"
    word = request.GET.get("q", "")[:WORD_MAX_CHARS].replace("\0", "").strip()
    if kind in kinds:
        devices = devices.filter(kind=kind)
    if failed_only:
        devices = devices.exclude(state="ok")
    if word:
        devices = devices.filter(name__icontains=word)
    page = Paginator(devices, PAGE_SIZE).get_page(request.GET.get("page"))
    context = {
        "here": "collectors", "page": page, "kinds": kinds, "kind": kind if kind in kinds else "",
        "word": word, "failed_only": failed_only,
        "rows": device_page.rows(device_view.lines(page.object_list), datetime.now(UTC)),
    }  # fmt: skip
    return render(request, "web/devices.html", context)


@require_GET
def detail(request: HttpRequest, kind: str, name: str) -> HttpResponse:
    """The device of this kind and name in the cluster looked at, else in another."""
    found = device_view.find(Cluster.objects.values_list("pk", flat=True), kind, name)
    if not found:
        raise Http404
    clusters = Cluster.objects.in_bulk([one.cluster_id for one in found])
    cluster = current_cluster(request, tuple(clusters.values()))
    device = next((one for one in found if cluster and one.cluster_id == cluster.pk), found[0])
    look_at(request, device.cluster_id)
    page = device_page.build(device_view.view(device), datetime.now(UTC))
    return render(request, "web/device.html", {"here": "collectors", "page": page})
