"""What every page's frame needs: cluster looked at, live incidents, coverage, the viewer's preferences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest

from clusterwatch.fleet.models import Cluster
from clusterwatch.fleet.overview import ClusterNow, cluster_now
from clusterwatch.incidents import queries
from clusterwatch.web.words import OF_SEVERITY

THEMES = ("light", "dark")
DENSITIES = ("compact", "comfortable")
CLUSTER_COOKIE = "cluster"
THEME_COOKIE = "theme"
DENSITY_COOKIE = "density"
RAIL_COOKIE = "rail"


@dataclass(frozen=True, slots=True)
class Frame:
    """The bar and the rail around a page."""

    cluster: Cluster | None
    clusters: tuple[Cluster, ...]
    now: ClusterNow | None
    live_count: int
    worst: str
    """state of the worst live incident; ok without one"""
    theme: str
    density: str
    rail: str
    initials: str
    can_act: bool


def look_at(request: HttpRequest, cluster_id: int) -> None:
    """The page is about something of this cluster: its frame shows that one, not the one looked at last."""
    request._clusterwatch_cluster = str(cluster_id)  # type: ignore[attr-defined]


def current_cluster(request: HttpRequest, clusters: tuple[Cluster, ...]) -> Cluster | None:
    """The cluster of what the page shows, else of the address (id or name), of the last visit, a real one."""
    shown = getattr(request, "_clusterwatch_cluster", None)
    for wanted in (shown, request.GET.get("cluster"), request.COOKIES.get(CLUSTER_COOKIE)):
        for cluster in clusters:
            if wanted is not None and wanted in (str(cluster.pk), cluster.name):
                return cluster
    real = [cluster for cluster in clusters if not cluster.simulated]
    return next(iter(real or clusters), None)


def may_act(user: Any) -> bool:
    """Operators and admins acknowledge, assign, write and close; viewers look."""
    return bool(user.is_authenticated and (user.is_staff or user.role in ("operator", "admin")))


def _chosen(request: HttpRequest, cookie: str, allowed: tuple[str, ...]) -> str:
    value = request.COOKIES.get(cookie, "")
    return value if value in allowed else ""


def get_frame(request: HttpRequest) -> Frame:
    """The frame of this request, made once."""
    made: Frame | None = getattr(request, "_clusterwatch_frame", None)
    if made is None:
        made = _make_frame(request)
        request._clusterwatch_frame = made  # type: ignore[attr-defined]
    return made


def _make_frame(request: HttpRequest) -> Frame:
    user = request.user
    signed_in = user.is_authenticated
    clusters = tuple(Cluster.objects.order_by("simulated", "id")[:50]) if signed_in else ()
    cluster = current_cluster(request, clusters)
    live = queries.live_first(queries.for_user(user)).filter(cluster=cluster) if cluster else None
    severities = list(live.values_list("severity", flat=True)[:1000]) if live is not None else []
    return Frame(
        cluster=cluster,
        clusters=clusters,
        now=cluster_now(cluster) if cluster else None,
        live_count=len(severities),
        worst=OF_SEVERITY.get(severities[0], "unknown") if severities else "ok",
        theme=_chosen(request, THEME_COOKIE, THEMES),
        density=_chosen(request, DENSITY_COOKIE, DENSITIES),
        rail=_chosen(request, RAIL_COOKIE, ("wide",)),
        initials=user.get_username()[:2].upper() if signed_in else "",
        can_act=may_act(user),
    )


def frame(request: HttpRequest) -> dict[str, Any]:
    """Context processor: ``frame`` for the templates."""
    return {"frame": get_frame(request)}
