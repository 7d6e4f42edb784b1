"""Collectors: each node's agent, when it was heard, what it lost; the disk that what they sent takes."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache

import redis
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from clusterwatch.fleet.links import NOT_HEARD, read_links
from clusterwatch.fleet.models import Node
from clusterwatch.fleet.queries import nodes_of
from clusterwatch.jobs.node_view import record_counts
from clusterwatch.store import disk, gateway_notes
from clusterwatch.web.context import get_frame
from clusterwatch.web.words import LINK_BADGES, Badge

PAGE_SIZE = 100
STORAGE_EVERY_S = 60
DOUBTS_SHOWN = 50


@dataclass(frozen=True, slots=True)
class CollectorRow:
    node: Node
    badge: Badge
    seen_at: datetime | None
    lanes: dict[str, int]
    """stored, rejected, expired and dropped records over all epochs and lanes"""


def _notes() -> list[gateway_notes.GatewayNotes]:
    try:
        return gateway_notes.read()
    except redis.RedisError:
        return []


def _doubts(notes: Iterable[gateway_notes.GatewayNotes], cluster: str) -> list[gateway_notes.NodeNote]:
    """Nodes of the cluster that are kept out or not trusted, the newest first."""
    mine = [node for note in notes for node in note.nodes if node.cluster == cluster]
    return sorted(mine, key=lambda node: -node.last_ms)[:DOUBTS_SHOWN]


@require_GET
def listing(request: HttpRequest) -> HttpResponse:
    """Nodes of the cluster looked at, silent ones alone with ``show=silent``."""
    frame = get_frame(request)
    links = read_links()
    nodes = nodes_of(frame.cluster.pk if frame.cluster else 0)
    silent_only = request.GET.get("show") == "silent"
    if silent_only:
        heard = [pk for pk, link in links.items() if link.state == "ok"]
        nodes = nodes.exclude(pk__in=heard)
    page = Paginator(nodes, PAGE_SIZE).get_page(request.GET.get("page"))
    shown = list(page.object_list)
    sums = record_counts(frame.cluster.name if frame.cluster else "", [node.name for node in shown])
    rows = []
    for node in shown:
        link = links.get(node.pk, NOT_HEARD)
        seen_at = link.seen_at or node.last_hello_at
        rows.append(CollectorRow(node, LINK_BADGES[link.state], seen_at, sums.get(node.name, {})))
    notes = _notes()
    context = {
        "here": "collectors", "rows": rows, "page": page, "silent_only": silent_only,
        "storing": gateway_notes.storing_words(notes),
        "doubts": _doubts(notes, frame.cluster.name if frame.cluster else ""),
        "storage": _storage(int(time.time() // STORAGE_EVERY_S)),
    }  # fmt: skip
    return render(request, "web/collectors.html", context)


@lru_cache(maxsize=1)
def _storage(_round: int) -> disk.DiskForecast:
    """Measured once in ``STORAGE_EVERY_S``, whoever looks."""
    return disk.forecast()
