"""Reads of parts: who a serial is, where it sat, which ones sat in a place."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from django.db.models import Q, QuerySet

from clusterwatch.fleet.models import Part, PartPlacement


def named(text: str, limit: int) -> list[Part]:
    """Parts whose serial or GPU UUID begins with a text."""
    found = beginning_with(Part.objects.select_related("cluster"), text)
    return list(found.order_by("serial")[:limit])


def of_clusters(clusters: Iterable[int] | QuerySet[Any, Any]) -> QuerySet[Part]:
    """Parts of these clusters, by their ids."""
    return Part.objects.filter(cluster__in=clusters).select_related("cluster")


def beginning_with(parts: QuerySet[Part], text: str) -> QuerySet[Part]:
    """Those whose serial or GPU UUID begins with a text."""
    return parts.filter(Q(serial__istartswith=text) | Q(gpu_uuid__istartswith=text))


def exactly(parts: QuerySet[Part], serial: str) -> QuerySet[Part]:
    """Those of one serial or GPU UUID."""
    return parts.filter(Q(serial=serial) | Q(gpu_uuid=serial))


def in_host(parts: QuerySet[Part], host: str) -> QuerySet[Part]:
    """Those that sit in a host now."""
    return parts.filter(pk__in=PartPlacement.objects.filter(host=host, until__isnull=True).values("part"))


def with_places(parts: Iterable[Part]) -> list[tuple[Part, PartPlacement | None]]:
    """Each part with the place where it is; None where another part sits in its last one."""
    told = list(parts)
    rows = PartPlacement.objects.filter(part__in=[part.pk for part in told], until__isnull=True)
    places = {row.part_id: row for row in rows.order_by("seen_at")}
    return [(part, places.get(part.pk)) for part in told]


def placements(part: Part) -> Sequence[PartPlacement]:
    """Every place a part was in, the newest first."""
    return list(part.placements.order_by("-since", "-id")[:200])


def others_in_place(placement: PartPlacement) -> Sequence[PartPlacement]:
    """Other parts that sat in the same place, the newest first."""
    rows = PartPlacement.objects.filter(
        cluster_id=placement.cluster_id, host=placement.host, slot=placement.slot
    )
    return list(rows.exclude(part_id=placement.part_id).select_related("part").order_by("-since")[:50])


def at(cluster_id: int, host: str) -> Sequence[PartPlacement]:
    """What sits in a host now, by place."""
    rows = PartPlacement.objects.filter(cluster_id=cluster_id, host=host, until__isnull=True)
    return list(rows.select_related("part").order_by("slot")[:500])


def gpus(cluster_id: int, uuids: Iterable[str]) -> dict[str, Part]:
    """GPUs by UUID."""
    rows = Part.objects.filter(cluster_id=cluster_id, kind="gpu", gpu_uuid__in=list(uuids))
    return {part.gpu_uuid: part for part in rows}


def replaced_since(cluster_id: int, host: str, slot: str, since: datetime) -> int:
    """How often another part came into a place since a moment."""
    rows = PartPlacement.objects.filter(cluster_id=cluster_id, host=host, slot=slot).order_by("since", "id")
    told = list(rows.values_list("part_id", "since"))
    return sum(
        part != before and began >= since
        for (before, _), (part, began) in zip(told, told[1:], strict=False)
    )
