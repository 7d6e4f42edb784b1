"""Parts by serial: those that come back again and again, and the history of one."""

from __future__ import annotations

from datetime import UTC, datetime
from urllib.parse import quote

from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, render
from django.views.decorators.http import require_GET

from clusterwatch.fleet import part_history
from clusterwatch.fleet.models import Part, PartPlacement
from clusterwatch.incidents import queries, recurrence
from clusterwatch.web.context import get_frame, look_at

PAGE_SIZE = 100
LEMONS_SHOWN = 100
WORD_MAX_CHARS = 128


@require_GET
def listing(request: HttpRequest) -> HttpResponse:
    """Lemons of the cluster looked at, then its parts; ``kind`` and ``q`` (start of a serial) narrow them."""
    frame = get_frame(request)
    parts = part_history.of_clusters([frame.cluster.pk] if frame.cluster else [])
    kinds = list(parts.order_by("kind").values_list("kind", flat=True).distinct())
    kind = request.GET.get("kind", "")
    word = request.GET.get("q", "")[:WORD_MAX_CHARS].replace("\0", "").strip()
    shown = parts.filter(kind=kind) if kind in kinds else parts
    shown = part_history.beginning_with(shown, word) if word else shown
    page = Paginator(shown.order_by("kind", "serial"), PAGE_SIZE).get_page(request.GET.get("page"))
    lemons = (
        recurrence.lemons(frame.cluster.pk, queries.for_user(request.user), datetime.now(UTC))
        if frame.cluster
        else []
    )
    context = {
        "here": "collectors", "page": page, "rows": part_history.with_places(page.object_list),
        "kinds": kinds, "kind": kind, "word": word, "lemons": lemons[:LEMONS_SHOWN],
        "lemon_count": len(lemons),
    }  # fmt: skip
    return render(request, "web/parts.html", context)


@require_GET
def detail(request: HttpRequest, part_id: int) -> HttpResponse:
    """Where a part was, what else sat there, and which incidents named it."""
    part = get_object_or_404(Part.objects.select_related("cluster"), pk=part_id)
    look_at(request, part.cluster_id)
    placed = part_history.placements(part)
    context = {
        "here": "collectors",
        "part": part,
        "placements": [(one, address(one)) for one in placed],
        "now": [one for one in placed if one.until is None],
        "others": part_history.others_in_place(placed[0]) if placed else (),
        "incidents": recurrence.of_part(part, queries.for_user(request.user)),
    }
    return render(request, "web/part.html", context)


def address(placement: PartPlacement) -> str:
    """Of the page of the node or device that the part sits in."""
    if placement.node_id is not None or "/" not in placement.host:
        path = f"/nodes/{quote(placement.host, safe='')}"
    else:
        kind, _, name = placement.host.partition("/")
        path = f"/devices/{quote(kind, safe='')}/{quote(name, safe='')}"
    return f"{path}?cluster={placement.cluster_id}"
