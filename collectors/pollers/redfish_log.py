"""A BMC's event log: which entries are new since the look before, and when they happened.

In: rows of ``LogEntry``, a watermark. Out: new entries. A BMC's clock may be wrong by years, so order comes
from the entries' numbers, and a time counts only where it fits between two looks. Source: DSP2046, LogEntry;
numbers as OpenBMC (``1606239123_1``), iDRAC, iLO and AMI give them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from collectors.pollers.redfish_values import Resource, seconds, word
from collectors.sources.base import SourceEvent
from collectors.wire.records import Severity

MESSAGE_MAX_CHARS: Final = 300
EVENTS_MAX: Final = 32
"""of one log at one look; the rest is told as a number"""
DIGESTS_MAX: Final = 4_096
CLOCK_SLACK_S: Final = 5.0
_NUMBER: Final = re.compile(r"(\d{1,18})(?:_(\d{1,6}))?\Z")
_SEVERITIES: Final[dict[str, Severity]] = {"Critical": "critical", "Warning": "warning"}
_KEPT_TYPES: Final = frozenset({"SEL", "Event", "Multiple"})
_EVENT_LOGS: Final = frozenset({"sel", "eventlog", "log", "log1", "iml", "fdr", "event", "systemlog"})


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry. ``order``: its number, where it has one; ``created_s``: by the BMC's own clock."""

    id: str
    order: tuple[int, int] | None
    digest: str
    severity: str
    message: str
    message_id: str
    sensor: str
    created: str
    created_s: float | None
    is_resolved: bool


@dataclass(slots=True)
class Mark:
    """What was there at the look before.

    Attributes:
        order, digest: of the newest entry, where entries have numbers. All that is kept over restarts.
        digests: of all entries, where they have none.
        page: what the first page looked like; the same means that nothing moved.
        is_set: False before the first look, whose entries are history.
    """

    order: tuple[int, int] | None = None
    digest: str = ""
    digests: frozenset[str] = frozenset()
    page: str = ""
    is_set: bool = False

    def kept(self) -> list[Any] | None:
        """As JSON; None where it cannot be kept."""
        return [*self.order, self.digest] if self.order is not None else None

    @classmethod
    def of_kept(cls, kept: Any) -> Mark:
        """Raises ``ValueError`` for what ``kept`` did not write."""
        if not (isinstance(kept, list) and len(kept) == 3 and isinstance(kept[2], str)):
            raise ValueError("no mark of a log")
        if not all(isinstance(part, int) for part in kept[:2]):
            raise ValueError("no mark of a log")
        return cls(order=(kept[0], kept[1]), digest=kept[2][:64], is_set=True)


@dataclass(slots=True)
class LogRead:
    """One look at one log. ``is_whole`` False: pages are missing."""

    name: str
    count: int | None = None
    entries: list[Entry] = field(default_factory=list)
    is_whole: bool = True
    is_unchanged: bool = False
    page: str = ""


def is_event_log(service: Resource) -> bool:
    """Whether a log service holds events: not dumps, POST codes, audits or a console's text."""
    if service.get("ServiceEnabled") is False:
        return False
    kind = word(service.get("LogEntryType"), 32)
    return kind in _KEPT_TYPES if kind else word(service.get("Id"), 64).lower() in _EVENT_LOGS


def entry(row: Resource) -> Entry | None:
    """None for a row that is no entry."""
    entry_id = word(row.get("Id"), 64) or word(row.get("RecordId"), 64)
    message = word(row.get("Message"), MESSAGE_MAX_CHARS)
    if not entry_id or not (message or row.get("MessageId") or row.get("Severity")):
        return None
    created = word(row.get("Created"), 64)
    message_id = word(row.get("MessageId"))
    digest = hashlib.sha256(f"{entry_id}\0{created}\0{message_id}\0{message}".encode()).hexdigest()[:16]
    return Entry(
        entry_id, order_of(entry_id), digest, word(row.get("Severity"), 32), message or message_id,
        message_id, word(row.get("SensorType"), 64), created, seconds(created), row.get("Resolved") is True,
    )  # fmt: skip


def order_of(entry_id: str) -> tuple[int, int] | None:
    """The number in an entry's id; None where there is none."""
    match = _NUMBER.search(entry_id)
    return (int(match[1]), int(match[2] or 0)) if match else None


def fresh(read: LogRead, mark: Mark) -> tuple[list[Entry], Mark]:
    """(new entries, oldest first; the mark of this look).

    A log whose newest entry of the look before is gone was cleared: then all of it is new.
    """
    if read.is_unchanged:
        return [], mark
    found = {one.digest: one for one in read.entries}
    numbered = [(one.order, one) for one in found.values() if one.order is not None]
    if found and len(numbered) < len(found):
        new = [one for one in found.values() if one.digest not in mark.digests]
        digests = frozenset(list(found)[:DIGESTS_MAX]) | (frozenset() if read.is_whole else mark.digests)
        return new if mark.is_set else [], Mark(digests=digests, page=read.page, is_set=True)
    numbered.sort(key=lambda pair: pair[0])
    last = mark.order
    if last is None:
        # A log that was empty at the look before has only new entries.
        new = [one for _, one in numbered] if mark.is_set else []
    elif read.is_whole and mark.digest not in found:
        new = [one for _, one in numbered]
    else:
        new = [one for order, one in numbered if order > last]
    if numbered:
        order, newest = numbered[-1]
        if read.is_whole or last is None or order > last:
            return new, Mark(order, newest.digest, page=read.page, is_set=True)
    if read.is_whole:
        return new, Mark(page=read.page, is_set=True)
    return new, Mark(mark.order, mark.digest, mark.digests, "", True)


def events(
    entity: str, log: str, new: Iterable[Entry], clock_offset_s: float | None, from_s: float, to_s: float
) -> list[SourceEvent]:
    """Warnings and critical entries as events.

    Args:
        clock_offset_s: how far the BMC's clock is ahead of ours; None: not known.
        from_s, to_s: wall time of the look before and of this one.
    """
    bad = [one for one in new if one.severity in _SEVERITIES and not one.is_resolved]
    found = [_event(entity, log, one, clock_offset_s, from_s, to_s) for one in bad[-EVENTS_MAX:]]
    if len(bad) > EVENTS_MAX:
        text = f"{log}: {len(bad) - EVENTS_MAX} more new entries"
        found.append(SourceEvent(entity, "sel_entry", text, "warning", attributes={"log": log}))
    return found


def _event(
    entity: str, log: str, one: Entry, clock_offset_s: float | None, from_s: float, to_s: float
) -> SourceEvent:
    happened_s = None
    if one.created_s is not None and clock_offset_s is not None:
        happened_s = one.created_s - clock_offset_s
        if not from_s - CLOCK_SLACK_S <= happened_s <= to_s + CLOCK_SLACK_S:
            happened_s = None
    attributes: Mapping[str, str] = {
        "log": log,
        "entry": one.id,
        "message_id": one.message_id,
        "sensor": one.sensor,
        "bmc_time": one.created,
    }
    return SourceEvent(
        entity, "sel_entry", f"{log}: {one.message}"[:MESSAGE_MAX_CHARS], _SEVERITIES[one.severity],
        t_ns=None if happened_s is None else int(happened_s * 1e9),
        attributes={name: text for name, text in attributes.items() if text},
    )  # fmt: skip
