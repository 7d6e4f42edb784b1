"""Standing faults are told when they begin, when they change and when they are over, not at every look."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from collectors.sources.base import Attribute, SourceEvent

OVER = "over"
Told = tuple[str, Mapping[str, Attribute]]


class News:
    """What stood at the look before, per source."""

    def __init__(self) -> None:
        self._stood: dict[str, dict[tuple[str, str], Told]] = {}

    def fresh(self, source: str, events: Iterable[SourceEvent]) -> list[SourceEvent]:
        """The events of one look of ``source`` without the standing ones that were there before.

        Those that stood and are not there any more are told once, as information with the attribute ``over``.
        Two sources may see one fault: who sees it first tells it, who sees it last tells its end.
        """
        events = list(events)
        before = self._stood.get(source, {})
        others = {key for name, stood in self._stood.items() if name != source for key in stood}
        self._stood[source] = {
            (event.entity, event.kind): (event.severity, event.attributes)
            for event in events
            if event.standing
        }
        told = [
            event
            for event in events
            if not event.standing
            or (
                before.get((event.entity, event.kind)) != (event.severity, event.attributes)
                and (event.entity, event.kind) not in others
            )
        ]
        return told + [
            SourceEvent(entity, kind, f"{kind.replace('_', ' ')} is over", "info", attributes={OVER: True})
            for entity, kind in before
            if (entity, kind) not in self._stood[source] and (entity, kind) not in others
        ]
