"""Standing faults are told when they begin and when they change, not at every look."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from collectors.sources.base import Attribute, SourceEvent

Told = tuple[str, Mapping[str, Attribute]]


class News:
    """What stood at the look before, per source."""

    def __init__(self) -> None:
        self._stood: dict[str, dict[tuple[str, str], Told]] = {}

    def fresh(self, source: str, events: Iterable[SourceEvent]) -> list[SourceEvent]:
        """The events of one look of ``source`` without the standing ones that were there before.

        Two sources may see one fault: who sees it first tells it.
        """
        events = list(events)
        before = self._stood.get(source, {})
        others = {key for name, stood in self._stood.items() if name != source for key in stood}
        self._stood[source] = {
            (event.entity, event.kind): (event.severity, event.attributes)
            for event in events
            if event.standing
        }
        return [
            event
            for event in events
            if not event.standing
            or (
                before.get((event.entity, event.kind)) != (event.severity, event.attributes)
                and (event.entity, event.kind) not in others
            )
        ]
