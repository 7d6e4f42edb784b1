"""Parts that come back: how often a GPU or a host was named before, by serial, wherever it sat.

In: incidents and the histories of parts. Out: ``Recurrence`` of an incident, ``Lemon``s of a cluster. Counted
are incidents that paged (were opened): a suspicion is no repair. A part that was replaced while its place
stayed sick is told apart from one that carried its fault along.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from django.db.models import Q, QuerySet

from clusterwatch.fleet import part_history
from clusterwatch.fleet.models import Part
from clusterwatch.incidents.models import Incident

WINDOW: Final = timedelta(days=30)
LONG_WINDOW: Final = timedelta(days=90)
LEMON_MIN: Final = 2
"""Incidents within 30 days that make a part worth the list."""
INCIDENTS_READ_MAX: Final = 5_000
CULPRITS_MAX: Final = 8
"""An incident that names more parts than this blames none of them alone."""


@dataclass(frozen=True, slots=True)
class Recurrence:
    """Earlier incidents of the part that an incident names. ``part`` None: only its place is known."""

    part: Part | None
    host: str
    slot: str
    same_part: tuple[Incident, ...]
    """that named this part, here or elsewhere"""
    same_place: tuple[Incident, ...]
    """that named another part in the same place"""
    replaced_count: int

    @property
    def sentence(self) -> str:
        """Empty where nothing came back."""
        if not self.same_part and not self.same_place:
            return ""
        name = f"GPU {self.part.serial}" if self.part else f"{self.slot} of {self.host}"
        times = len(self.same_part) + 1
        said = [f"{_ordinal(times)} time in 30 days that {name} is named"] if self.same_part else []
        elsewhere = {_host_of(one) for one in self.same_part} - {self.host, ""}
        if elsewhere:
            said.append(f"it carried its fault along from {', '.join(sorted(elsewhere)[:3])}")
        if self.same_place:
            count = len(self.same_place)
            said.append(
                f"the place {self.slot} of {self.host} was named {_times(count)} with another part in it: "
                "look at the place, not at the part"
            )
        replaced = _times(self.replaced_count) if self.replaced_count else "never"
        words = f"{'; '.join(said)}; replaced there {replaced}."
        return words[0].upper() + words[1:]


@dataclass(slots=True)
class Lemon:
    """A part, or a host, that was named again and again."""

    name: str
    kind: str
    part: Part | None
    hosts: set[str] = field(default_factory=set)
    incidents: list[Incident] = field(default_factory=list)
    recent_count: int = 0
    """within 30 days; ``incidents`` are those of 90"""

    @property
    def verdicts(self) -> str:
        return ", ".join(sorted({one.verdict for one in self.incidents}))


def of_incident(incident: Incident, visible: QuerySet[Incident]) -> list[Recurrence]:
    """What came back, for each GPU that an incident names; of more than ``CULPRITS_MAX``: nothing."""
    culprits = _culprits(incident)
    if not 0 < len(culprits) <= CULPRITS_MAX:
        return []
    since = incident.since - WINDOW
    earlier = visible.filter(
        cluster_id=incident.cluster_id, opened_at__isnull=False, since__gte=since, since__lt=incident.since
    ).exclude(pk=incident.pk)
    parts = part_history.gpus(incident.cluster_id, [c["gpu_uuid"] for c in culprits if c.get("gpu_uuid")])
    found = [_of_culprit(incident, culprit, parts, earlier) for culprit in culprits]
    return [one for one in found if one is not None and one.sentence]


def _of_culprit(
    incident: Incident, culprit: dict[str, Any], parts: dict[str, Part], earlier: QuerySet[Incident]
) -> Recurrence | None:
    uuid, host, gpu = culprit.get("gpu_uuid"), culprit.get("host"), culprit.get("gpu")
    if not isinstance(host, str) or not isinstance(gpu, int):
        return None
    slot = f"gpu/{gpu}"
    here = Q(diagnosis__culprits__contains=[{"host": host, "gpu": gpu}])
    same = Q(diagnosis__culprits__contains=[{"gpu_uuid": uuid}]) if uuid else here
    same_part = tuple(earlier.filter(same).order_by("-since")[:50])
    same_place = tuple(earlier.filter(here).exclude(same).order_by("-since")[:50]) if uuid else ()
    replaced = part_history.replaced_since(incident.cluster_id, host, slot, incident.since - WINDOW)
    return Recurrence(parts.get(uuid or ""), host, slot, same_part, same_place, replaced)


def of_part(part: Part, visible: QuerySet[Incident]) -> list[Incident]:
    """Incidents that named a GPU, wherever it sat, the newest first; other parts are named by none."""
    if not part.gpu_uuid:
        return []
    named = visible.filter(
        cluster_id=part.cluster_id, diagnosis__culprits__contains=[{"gpu_uuid": part.gpu_uuid}]
    )
    return list(named.order_by("-since")[:100])


def lemons(cluster_id: int, visible: QuerySet[Incident], now: datetime) -> list[Lemon]:
    """GPUs and hosts named in at least ``LEMON_MIN`` paged incidents of 30 days, the worst first."""
    rows = visible.filter(cluster_id=cluster_id, opened_at__isnull=False, since__gte=now - LONG_WINDOW)
    found: dict[tuple[str, str], Lemon] = {}
    for incident in rows.order_by("-since")[:INCIDENTS_READ_MAX]:
        culprits = _culprits(incident)
        if len(culprits) > CULPRITS_MAX:
            continue
        for kind, name, host in _named(culprits):
            lemon = found.setdefault((kind, name), Lemon(name, kind, None))
            lemon.hosts |= {host} if host else set()
            lemon.incidents.append(incident)
            lemon.recent_count += incident.since >= now - WINDOW
    kept = [one for one in found.values() if one.recent_count >= LEMON_MIN]
    parts = part_history.gpus(cluster_id, [one.name for one in kept if one.kind == "gpu"])
    for one in kept:
        one.part = parts.get(one.name) if one.kind == "gpu" else None
    return sorted(kept, key=lambda one: (-one.recent_count, -len(one.incidents), one.kind, one.name))


def _named(culprits: Sequence[dict[str, Any]]) -> list[tuple[str, str, str]]:
    """(kind, name, host) once each: every GPU, and a host of which more than one GPU is named."""
    hosts: dict[str, int] = defaultdict(int)
    found = set()
    for culprit in culprits:
        host = str(culprit.get("host") or "")
        hosts[host] += 1
        if culprit.get("gpu_uuid"):
            found.add(("gpu", str(culprit["gpu_uuid"]), host))
    found |= {("host", host, host) for host, count in hosts.items() if host and count > 1}
    return sorted(found)


def _culprits(incident: Incident) -> list[dict[str, Any]]:
    told = (incident.diagnosis or {}).get("culprits") or []
    return [one for one in told if isinstance(one, dict)]


def _host_of(incident: Incident) -> str:
    return next((str(one["host"]) for one in _culprits(incident) if one.get("host")), "")


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")


def _ordinal(number: int) -> str:
    names = {2: "second", 3: "third", 4: "fourth", 5: "fifth"}
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th") if number % 100 not in (11, 12, 13) else "th"
    return names.get(number, f"{number}{ending}")
