"""One box for all that has a name: jobs (ours and the scheduler's id), hosts, devices, incidents, serials."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote

from django.db.models import Q
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_GET

from clusterwatch.fleet import part_history
from clusterwatch.fleet.models import Node, Part, PartPlacement
from clusterwatch.incidents import queries
from clusterwatch.jobs import device_view
from clusterwatch.jobs.models import Rank
from clusterwatch.jobs.queries import for_user

HITS_MAX = 20
QUERY_MAX_CHARS = 100
SERIAL_WORD_MIN_CHARS = 4


@dataclass(frozen=True, slots=True)
class Hit:
    kind: str
    title: str
    text: str
    href: str


def _jobs(request: HttpRequest, text: str) -> list[Hit]:
    jobs = for_user(request.user).filter(Q(key__istartswith=text) | Q(name__icontains=text))
    return [
        Hit("Job", job.key, job.name or job.cluster.name, f"/jobs/{job.pk}")
        for job in jobs.order_by("-started_at")[:HITS_MAX]
    ]


def _incidents(request: HttpRequest, text: str) -> list[Hit]:
    number = text.removeprefix("#").lower().removeprefix("inc").strip()
    if not number.isdecimal() or len(number) > 18:
        return []
    found = queries.for_user(request.user).filter(pk=int(number))
    return [Hit("Incident", str(i.pk), i.summary, f"/incidents/{i.pk}") for i in found]


def _hosts(request: HttpRequest, text: str) -> list[Hit]:
    nodes = Node.objects.filter(name__icontains=text).select_related("cluster").order_by("name")[:HITS_MAX]
    newest: dict[int, Rank] = {}
    ranks = Rank.objects.filter(
        node__in=[node.pk for node in nodes], job__in=for_user(request.user).order_by()
    )
    for rank in ranks.select_related("job").order_by("-started_at")[: HITS_MAX * 16]:
        newest.setdefault(rank.node_id, rank)
    return [
        Hit(
            "Host",
            node.name,
            f"job {newest[node.pk].job.key} ran here last" if node.pk in newest else node.cluster.name,
            f"/nodes/{quote(node.name, safe='')}?cluster={node.cluster_id}",
        )
        for node in nodes
    ]


def _devices(text: str) -> list[Hit]:
    hits = []
    for device in device_view.named(text, HITS_MAX):
        path = f"/devices/{quote(device.kind, safe='')}/{quote(device.name, safe='')}"
        about = f"{device.kind}, {device.node_name or device.cluster.name}"
        hits.append(Hit("Device", device.name, about, f"{path}?cluster={device.cluster.pk}"))
    return hits


def _parts(text: str) -> list[Hit]:
    """By serial or by the UUID of a GPU; shorter words are names, not serials."""
    if len(text) < SERIAL_WORD_MIN_CHARS:
        return []
    placed = part_history.with_places(part_history.named(text, HITS_MAX))
    return [
        Hit("Part", part.serial, _where(part, place), f"/parts/{part.pk}") for part, place in placed
    ]


def _where(part: Part, place: PartPlacement | None) -> str:
    return f"{part.kind}, {f'{place.host} {place.slot}' if place else 'its place has another part now'}"


@require_GET
def search(request: HttpRequest) -> HttpResponse:
    """Hits of all kinds; a single hit is opened at once."""
    text = request.GET.get("q", "").replace("\0", "").strip()[:QUERY_MAX_CHARS]
    hits = _hits(request, text) if text else []
    if len(hits) == 1:
        return redirect(hits[0].href)
    return render(request, "web/search.html", {"here": "", "text": text, "hits": hits[: 4 * HITS_MAX]})


def _hits(request: HttpRequest, text: str) -> list[Hit]:
    named = [*_incidents(request, text), *_jobs(request, text)]
    return [*named, *_hosts(request, text), *_devices(text), *_parts(text)]
