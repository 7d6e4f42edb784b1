"""What each polled device told last, made into records when they are due.

In: ``DeviceReading`` of pollers. Out: ``records.DeviceReadings``: at most one in 15 s for each device, when
its words changed, and one each minute; ``records.Event`` at once. A device that fails keeps what it told
last, with the reason as its state and a growing age.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import msgspec

from collectors import wire_events
from collectors.clock import Clock
from collectors.pollers.device import Device, DeviceReading
from collectors.readings import CONFIRM_EVERY_S, EVERY_S, columns, digest_of_words, may_travel
from collectors.sources.base import OK, Attribute, Reading, SourceEvent
from collectors.sources.news import News
from collectors.sources.tree import printable
from collectors.wire import limits, readings, records
from collectors.wire.readings import SourceWord, Table

DEVICES_MAX: Final = 16_384
TABLE_MAX_BYTES: Final = limits.RECORD_MAX_BYTES - 65_536
"""Before it is compressed; the largest switch known has 0.6 MB."""
EVENTS_MAX: Final = 256
"""of one device at one look, the gravest first; what is beyond is counted in an event of its own"""
LEFT_OUT: Final = "device_events_left_out"
KINDS_TOLD: Final = 16
_GRAVEST_FIRST: Final = ("critical", "warning", "info")
_LOOK, _FAILURE = "look", "failure"
"""Faults that stand at a look that gave values, and those of one that gave none, are kept apart."""


@dataclass(slots=True)
class _Kept:
    poller: str
    period_s: float
    table: Table
    state: str = OK
    node: str = ""
    told_s: float | None = None
    """when it last gave values, monotonic"""
    news: News = field(default_factory=News)
    slot: int | None = None
    sent_slot: int = 0
    words: bytes = b""


class Devices:
    """All devices of one file. For one thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._kept: dict[Device, _Kept] = {}

    def take(self, poller: str, period_s: float, told: DeviceReading) -> list[records.Event]:
        """Keeps what a device told; its events that are new.

        Nothing is kept of one beyond ``DEVICES_MAX``, or whose name cannot travel.
        """
        name = told.device.name
        is_sound = name.isprintable() and 0 < len(name) <= limits.NAME_MAX_CHARS
        if not is_sound or (told.device not in self._kept and len(self._kept) >= DEVICES_MAX):
            return []
        kept = self._kept.setdefault(told.device, _Kept(poller, period_s, columns([], [], 0)))
        kept.state, kept.node = state_word(told.state), told.node
        if told.state == OK:
            kept.table, kept.told_s = _table(poller, told.reading), self._clock.monotonic_s()
            seen = Reading(told.reading.samples)
            fresh = kept.news.fresh(_FAILURE, seen) + kept.news.fresh(_LOOK, told.reading)
        else:
            fresh = kept.news.fresh(_FAILURE, told.reading)
        more = {"device": f"{told.device.kind}/{told.device.name}"}
        if told.node:
            more["device_node"] = told.node
        told_now = bounded(f"{told.device.kind}/{told.device.name}", fresh)
        made = [wire_events.of_source(poller, event, self._clock.now_ns()) for event in told_now]
        return [msgspec.structs.replace(event, fields=event.fields | more) for event in made]

    def fail(self, poller: str, state: str) -> None:
        """The poller as a whole gave up: none of its devices is known any more."""
        for kept in self._kept.values():
            if kept.poller == poller:
                kept.state = state_word(state)

    def due(self) -> Iterator[records.DeviceReadings]:
        """The records to send now; call it about once a second."""
        now_s = self._clock.now_ns() // 10**9
        for device, kept in self._kept.items():
            slot = (now_s - zlib.crc32(f"{device.kind}/{device.name}".encode()) % EVERY_S) // EVERY_S
            if slot == kept.slot:
                continue
            kept.slot = slot
            table = self._aged(kept)
            words = digest_of_words(table)
            if words == kept.words and 0 <= slot - kept.sent_slot < CONFIRM_EVERY_S // EVERY_S:
                continue
            kept.words, kept.sent_slot = words, slot
            yield self._record(device, kept, table)

    def _aged(self, kept: _Kept) -> Table:
        age_s = None if kept.told_s is None else max(0.0, self._clock.monotonic_s() - kept.told_s)
        word = SourceWord(kept.poller, kept.state, kept.period_s, age_s)
        return msgspec.structs.replace(kept.table, sources=[word])

    def _record(self, device: Device, kept: _Kept, table: Table) -> records.DeviceReadings:
        return records.DeviceReadings(
            t_ns=self._clock.now_ns(),
            kind=device.kind,
            device=device.name,
            poller=kept.poller,
            state=kept.state,
            codec=readings.CODEC,
            data=readings.pack(table),
            node=kept.node,
        )


def bounded(entity: str, events: list[SourceEvent]) -> list[SourceEvent]:
    """The gravest ``EVENTS_MAX``, and one event that says how many more of which kinds there were."""
    if len(events) <= EVENTS_MAX:
        return events
    ordered = sorted(events, key=lambda event: _GRAVEST_FIRST.index(event.severity))
    left_out = ordered[EVENTS_MAX:]
    kinds = Counter(event.kind for event in left_out)
    told = [f"{kind} {count}" for kind, count in kinds.most_common(KINDS_TOLD)]
    text = f"{len(left_out)} more events of {entity} at this look are not kept: {', '.join(told)}"
    attributes: dict[str, Attribute] = {"count": len(left_out), "kinds": told}
    worst = left_out[0].severity
    return [*ordered[:EVENTS_MAX], SourceEvent(entity, LEFT_OUT, text[:1_000], worst, attributes=attributes)]


def state_word(state: str) -> str:
    """A state as it may travel."""
    return printable(state)[: limits.READINGS_NAME_MAX_CHARS] or "unknown"


def _table(poller: str, reading: Reading) -> Table:
    """Its values, one for each entity, metric and labels: the wire takes none that stands twice."""
    seen = {(one.entity, one.metric, *sorted(one.labels.items())): one for one in reading.samples}
    rows = [(poller, sample) for sample in seen.values() if may_travel(sample)][: limits.READINGS_ROWS_MAX]
    while True:
        table = columns([SourceWord(poller, OK, 0.0)], rows, len(seen) - len(rows))
        if len(msgspec.msgpack.encode(table)) <= TABLE_MAX_BYTES:
            return table
        rows = rows[: len(rows) // 2]
