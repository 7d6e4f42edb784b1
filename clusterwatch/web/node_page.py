"""One node as its page shows it: what happened on it and a section per kind of part.

In: what ``jobs.node_view`` read. Out: dataclasses for the template.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from clusterwatch.fleet.models import Slot
from clusterwatch.jobs.node_view import NodeView
from clusterwatch.store.node_readings import Reading
from clusterwatch.store.queries import StoredEvent
from clusterwatch.web import drift_page
from clusterwatch.web.part_tables import Head, Looked, Section, looked, sections
from clusterwatch.web.words import LINK_BADGES, OF_SEVERITY, Badge

GPU_KINDS: Final = ("gpu", "nvlink")
UUID_CHARS: Final = 12
"""Of ``GPU-`` and the first group: what tells GPUs of one node apart, but for invented ones."""


@dataclass(frozen=True, slots=True)
class EventRow:
    event: StoredEvent
    badge: Badge
    at: datetime


@dataclass(frozen=True, slots=True)
class NodePage:
    view: NodeView
    badge: Badge
    sent_at: datetime | None
    """when the node sent its newest values; None: never"""
    stale: bool
    """no source looked lately"""
    events: tuple[EventRow, ...]
    sources: tuple[Looked, ...]
    sections: tuple[Section, ...]
    gpu_count: int | None
    differs_badge: Badge
    differs_note: str
    """why nothing is told of how it differs; empty: something is"""


def build(view: NodeView, now: datetime) -> NodePage:
    """Arranges what was read. Cost: linear in the values."""
    found = view.readings
    entities = found.entities if found else {}
    sources = tuple(looked(state, now) for state in (found.sources if found else ()))
    gpus = _gpu_names(entities, view.slots)
    return NodePage(
        view=view,
        badge=LINK_BADGES[view.link.state],
        sent_at=None if found is None else now - timedelta(seconds=found.age_s),
        stale=found is not None and all(one.state.stale for one in sources),
        events=tuple(event_row(event) for event in view.events),
        sources=sources,
        sections=tuple(sections(entities, sources, lambda entity: _part(entity, gpus))),
        gpu_count=_gpu_count(entities, view.slots),
        differs_badge=drift_page.node_badge(view.differs),
        differs_note=drift_page.node_note(view.differs),
    )


def _gpu_count(entities: Mapping[str, object], slots: list[Slot]) -> int | None:
    """By what the node said at its hello, else by what it knows now; None where neither tells of any."""
    told = sum(slot.gpu_index is not None for slot in slots)
    return told or sum(entity.startswith("gpu/") for entity in entities) or None


def event_row(event: StoredEvent) -> EventRow:
    badge = Badge(OF_SEVERITY.get(event.severity, "unknown"), event.kind.replace("_", " "))
    return EventRow(event, badge, datetime.fromtimestamp(event.t_ns / 1e9, UTC))


def _gpu_names(entities: Mapping[str, tuple[Reading, ...]], slots: list[Slot]) -> dict[str, str]:
    """UUID -> ``GPU 3`` where the node said which one that is, else as much of the UUID as tells it apart."""
    parts = [entity.split("/") for entity in entities]
    uuids = {part[1] for part in parts if part[0] in GPU_KINDS and len(part) > 1}
    short = Counter(uuid[:UUID_CHARS] for uuid in uuids)
    names = {uuid: uuid[:UUID_CHARS] if short[uuid[:UUID_CHARS]] == 1 else uuid for uuid in uuids}
    told = {slot.gpu_uuid: f"GPU {slot.gpu_index}" for slot in slots if slot.gpu_index is not None}
    return names | {uuid: told[uuid] for uuid in uuids & told.keys()}


def _part(entity: str, gpus: dict[str, str]) -> Head:
    kind, _, name = entity.partition("/")
    uuid, _, rest = name.partition("/")
    if kind in GPU_KINDS and uuid in gpus:
        return Head(f"{gpus[uuid]} link {rest}" if rest else gpus[uuid], entity)
    return Head(name or kind, entity)
