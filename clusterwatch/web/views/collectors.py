"""Collectors: each node's agent, when it was heard, what it lost; the disk that what they sent takes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import redis
from django.core.paginator import Paginator
from django.db.models import Sum
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from clusterwatch.fleet.models import Node
from clusterwatch.fleet.queries import nodes_of
from clusterwatch.store import disk, gateway_notes, hot
from clusterwatch.store.models import IngestCursor
from clusterwatch.web.context import get_frame
from clusterwatch.web.words import Badge
from collectors.wire.limits import SILENT_AFTER_S

PAGE_SIZE = 100
STORAGE_EVERY_S = 60
DOUBTS_SHOWN = 50
_COUNTS = ("stored", "rejected", "expired", "dropped")


@dataclass(frozen=True, slots=True)
class CollectorRow:
    node: Node
    badge: Badge
    seen_at: datetime | None
    lanes: dict[str, int]
    """stored, rejected, expired and dropped records over all epochs and lanes"""


def _links() -> dict[int, tuple[int, int, int]]:
    """Link, time of the last frame and last word of its gateway per node, ns."""
    try:
        nodes = hot.read_nodes()
    except redis.RedisError:
        return {}
    links = zip(nodes.link.tolist(), nodes.seen_ns.tolist(), nodes.word_ns.tolist(), strict=True)
    return dict(zip(nodes.node_id.tolist(), links, strict=True))


def _badge(link: tuple[int, int, int] | None, now_s: float) -> Badge:
    if link is None:
        return Badge("unknown", "Not heard")
    kind, seen_ns, word_ns = link
    if now_s - word_ns / 1e9 > SILENT_AFTER_S:
        return Badge("unknown", "Gateway silent")
    if kind == hot.CLOSED_CLEAN:
        return Badge("idle", "Stopped")
    if kind == hot.CLOSED:
        return Badge("failed", "Agent died")
    if now_s - seen_ns / 1e9 > SILENT_AFTER_S:
        return Badge("unknown", "Silent")
    return Badge("ok", "Reports")


def _sums(cluster: str, names: list[str]) -> dict[str, dict[str, Any]]:
    rows = (
        IngestCursor.objects.filter(cluster=cluster, node__in=names)
        .values("node")
        .annotate(**{name: Sum(f"{name}_count") for name in _COUNTS})
    )
    return {row["node"]: {name: row[name] for name in _COUNTS} for row in _plain(rows)}


def _plain(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [dict(row) for row in rows]


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
    links, now_s = _links(), datetime.now(UTC).timestamp()
    nodes = nodes_of(frame.cluster.pk if frame.cluster else 0)
    silent_only = request.GET.get("show") == "silent"
    if silent_only:
        heard = [pk for pk, link in links.items() if _badge(link, now_s).state == "ok"]
        nodes = nodes.exclude(pk__in=heard)
    page = Paginator(nodes, PAGE_SIZE).get_page(request.GET.get("page"))
    shown = list(page.object_list)
    sums = _sums(frame.cluster.name if frame.cluster else "", [node.name for node in shown])
    rows = []
    for node in shown:
        link = links.get(node.pk)
        seen_at = datetime.fromtimestamp(link[1] / 1e9, UTC) if link else node.last_hello_at
        rows.append(CollectorRow(node, _badge(link, now_s), seen_at, sums.get(node.name, {})))
    notes = _notes()
    context = {
        "here": "collectors", "rows": rows, "page": page, "silent_only": silent_only,
        "storing": gateway_notes.storing_words(notes),
        "doubts": _doubts(notes, frame.cluster.name if frame.cluster else ""),
        "storage": _storage(int(now_s // STORAGE_EVERY_S)),
    }  # fmt: skip
    return render(request, "web/collectors.html", context)


@lru_cache(maxsize=1)
def _storage(_round: int) -> disk.DiskForecast:
    """Measured once in ``STORAGE_EVERY_S``, whoever looks."""
    return disk.forecast()
