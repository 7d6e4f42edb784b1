"""Standing faults are told when they begin, when they change and when they are over, not at every look."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from collectors.sources.base import Attribute, Reading, Sample, SourceEvent

OVER: Final = "fault_over"
"""Kind of the event that tells an end; its attribute ``kind`` says of what."""
STOOD_MAX: Final = 512
"""Faults of one source that are remembered; beyond, the ends of the oldest are not told."""


@dataclass(frozen=True, slots=True)
class _Told:
    severity: str
    attributes: Mapping[str, Attribute]
    is_sampled: bool
    """its entity had samples, known or not, when the fault stood"""


_Key = tuple[str, str]


class News:
    """What stood at the look before, per source."""

    def __init__(self) -> None:
        self._stood: dict[str, dict[_Key, _Told]] = {}

    def fresh(self, source: str, reading: Reading) -> list[SourceEvent]:
        """The events of one look of ``source`` without the standing ones that were there before.

        One that stood and is not there any more is told as over, once, and only by a look that could see
        its part: a driver that answers nobody has healed nothing. Two sources may see one: who sees it first
        tells it, who sees it last tells its end.
        """
        before = self._stood.get(source, {})
        standing = [event for event in reading.events if event.standing]
        if not before and not standing:  # as at nearly every look of every source
            return list(reading.events)
        others = {key for name, stood in self._stood.items() if name != source for key in stood}
        view = _View.of(reading.samples)
        now = {
            (event.entity, event.kind): _Told(event.severity, event.attributes, event.entity in view.asked)
            for event in standing
        }
        gone = {key: told for key, told in before.items() if key not in now}
        over = {key for key, told in gone.items() if view.shows(key[0], told.is_sampled)}
        unseen = {key: told for key, told in gone.items() if key not in over}
        self._stood[source] = dict(islice((now | unseen).items(), STOOD_MAX))
        fresh = [event for event in reading.events if not event.standing or _is_new(event, before, others)]
        return fresh + [_end(*key) for key in gone if key in over and key not in others]


@dataclass(frozen=True, slots=True)
class _View:
    """What one look could see."""

    asked: frozenset[str]
    """entities with samples, known or not"""
    known: frozenset[str]

    @classmethod
    def of(cls, samples: Sequence[Sample]) -> _View:
        known = frozenset(sample.entity for sample in samples if sample.value is not None)
        return cls(frozenset(sample.entity for sample in samples), known)

    def shows(self, entity: str, was_sampled: bool) -> bool:
        """Whether the part could be seen: a value of it is known, or it never had any."""
        if was_sampled or entity in self.asked:
            return entity in self.known
        return bool(self.known) or not self.asked


def _is_new(event: SourceEvent, before: Mapping[_Key, _Told], others: set[_Key]) -> bool:
    key = event.entity, event.kind
    told = before.get(key)
    is_told = told is not None and (told.severity, told.attributes) == (event.severity, event.attributes)
    return not is_told and key not in others


def _end(entity: str, kind: str) -> SourceEvent:
    return SourceEvent(entity, OVER, f"{kind.replace('_', ' ')} is over", "info", attributes={"kind": kind})
