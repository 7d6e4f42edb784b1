"""Which incidents are one: a rack on its brake slows GPUs of many jobs, a dead leaf stops them all.

In: incidents as ``Story``, signals of the cluster, where hosts are. Out: ``Merge``s, at most one for each
incident. Only what is shared by enough hosts merges, of one kind of cause, near in time; the hosts of an
incident must lie in it for 80 %. Nothing is decided on the verdict alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from clusterwatch.analysis.correlate_causes import cause_of
from clusterwatch.analysis.correlate_model import COVERS_MIN_RATIO, Layer, Part, PartKind, Place
from clusterwatch.analysis.correlate_places import (
    DEVICES,
    LEAF_HOSTS_MIN,
    LEAF_RATIO_MIN,
    RACK_HOSTS_MIN,
    SERVER_HOSTS_MIN,
)
from clusterwatch.analysis.correlate_time import LATE_S, error_s, with_ends
from clusterwatch.analysis.sentence import count
from clusterwatch.analysis.signals import Signal

WITHIN_S: Final = 180.0
"""After the first signal of what is shared: slow steps are found some steps later, a stall at its limit."""
_KIND_OF: Final[Mapping[Layer, PartKind]] = {
    Layer.POWER: PartKind.RACK, Layer.LINK: PartKind.LEAF, Layer.STORAGE: PartKind.SERVER,
}  # fmt: skip
_LEAST: Final[Mapping[PartKind, int]] = {
    PartKind.RACK: RACK_HOSTS_MIN, PartKind.LEAF: LEAF_HOSTS_MIN, PartKind.SERVER: SERVER_HOSTS_MIN,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Story:
    """A live incident.

    Attributes:
        hosts: whom it names; empty where it names nobody.
        part: what its cause is, where that is shared by many hosts.
    """

    incident_id: int
    verdict: str
    since_ns: int
    hosts: frozenset[str]
    part: Part | None = None


@dataclass(frozen=True, slots=True)
class Merge:
    """Incidents ``merged`` into ``into`` for ``reason``."""

    into: int
    merged: tuple[int, ...]
    part: Part
    reason: str


@dataclass(frozen=True, slots=True)
class _Shared:
    part: Part
    hosts: frozenset[str]
    verdicts: frozenset[str]
    says: str
    first: Signal


def merges(stories: Iterable[Story], signals: Sequence[Signal], places: Mapping[str, Place]) -> list[Merge]:
    """Groups of incidents with one cause, by their first incident. Cost: linear, times what is shared.

    Args:
        places: of every host of the cluster that is known, by its name; only rack and leaf count.
    """
    left = {story.incident_id: story for story in stories}
    found: list[Merge] = []
    for one in sorted(_shared(signals, places), key=lambda one: (-len(one.hosts), one.part.label)):
        mine = [story for story in left.values() if _belongs(story, one)]
        if len(mine) < 2:
            continue
        into = min(mine, key=lambda story: (story.part != one.part, story.since_ns, story.incident_id))
        rest = tuple(sorted(story.incident_id for story in mine if story is not into))
        reason = f"{one.part.label}: {one.says} on {count(len(one.hosts), 'host')}"
        found.append(Merge(into.incident_id, rest, one.part, reason))
        for story in mine:
            del left[story.incident_id]
    return sorted(found, key=lambda merge: merge.into)


def _shared(signals: Sequence[Signal], places: Mapping[str, Place]) -> list[_Shared]:
    """Racks, leaves and servers of which enough hosts tell the same."""
    grouped: dict[tuple[Part, str], list[Signal]] = defaultdict(list)
    for signal in with_ends(signals):
        cause = cause_of(signal)
        kind = _KIND_OF.get(cause.layer) if cause is not None else None
        if cause is None or kind is None:
            continue
        name = _name(signal, kind, places)
        if name:
            grouped[Part(kind, name), cause.word].append(signal)
    return [
        found for (part, _), told in grouped.items() if (found := _enough(part, told, places)) is not None
    ]


def _name(signal: Signal, kind: PartKind, places: Mapping[str, Place]) -> str:
    device, _, name = signal.host.partition("/")
    if signal.node_id is None and device in DEVICES:
        wanted = {"rack": PartKind.RACK, "switch": PartKind.LEAF}.get(device)
        return name if wanted is kind else ""
    if kind is PartKind.SERVER:
        told = signal.fields.get("server", "")
        return f"server {told}" if told and told != "null" else ""
    place = places.get(signal.host)
    if place is None:
        return ""
    return place.rack if kind is PartKind.RACK else place.leaf


def _enough(part: Part, told: Sequence[Signal], places: Mapping[str, Place]) -> _Shared | None:
    hosts = {signal.host for signal in told if signal.node_id is not None}
    by_itself = any(signal.node_id is None for signal in told)
    behind = {host for host, place in places.items() if _is_behind(place, part)}
    if not by_itself and len(hosts) < _LEAST[part.kind]:
        return None
    if not by_itself and part.kind is PartKind.LEAF and len(hosts) < LEAF_RATIO_MIN * len(behind):
        return None
    first = min(told, key=lambda signal: signal.at_ns)
    cause = cause_of(first)
    if cause is None:
        return None
    touched = frozenset(hosts | behind) if by_itself else frozenset(hosts)
    return _Shared(part, touched, cause.explains, cause.says, first)


def _is_behind(place: Place, part: Part) -> bool:
    if part.kind is PartKind.RACK:
        return place.rack == part.name
    return part.kind is PartKind.LEAF and place.leaf == part.name


def _belongs(story: Story, shared: _Shared) -> bool:
    """Whether the incident is of this cause: of the part itself, or on its hosts, and not begun before."""
    after_s = (story.since_ns - shared.first.at_ns) / 1e9
    early_s = error_s(shared.first) + LATE_S.get(shared.first.kind, 0.0)
    if not -early_s <= after_s <= WITHIN_S:
        return False
    if story.part == shared.part:
        return True
    if story.verdict not in shared.verdicts or not story.hosts:
        return False
    return len(story.hosts & shared.hosts) >= COVERS_MIN_RATIO * len(story.hosts)
