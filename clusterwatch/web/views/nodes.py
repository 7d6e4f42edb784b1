"""One node: how it is heard, what happened on it, what it knows of its parts."""

from __future__ import annotations

from datetime import UTC, datetime

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from clusterwatch.fleet import part_history
from clusterwatch.fleet.models import Node
from clusterwatch.jobs import node_view
from clusterwatch.web import device_page, node_page
from clusterwatch.web.context import current_cluster, look_at


@require_GET
def detail(request: HttpRequest, name: str) -> HttpResponse:
    """The node of this name in the cluster looked at, else in another; links to it carry its cluster."""
    found = node_view.find(Node.objects.select_related("cluster"), name)
    if not found:
        raise Http404
    cluster = current_cluster(request, tuple(one.cluster for one in found))
    node = next((one for one in found if one.cluster == cluster), found[0])
    look_at(request, node.cluster_id)
    view, now = node_view.view(node, request.user), datetime.now(UTC)
    page, around = node_page.build(view, now), device_page.around(view.around, now)
    twins = [one for one in found if one.pk != node.pk]
    return render(
        request,
        "web/node.html",
        {
            "here": "collectors",
            "page": page,
            "around": around,
            "twins": twins,
            "parts": part_history.at(node.cluster_id, node.name),
        },
    )
