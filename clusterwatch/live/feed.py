"""What one viewer holds and is owed, topic by topic. No I/O: the consumer reads and sends, this decides."""

from __future__ import annotations

from dataclasses import dataclass, field

from clusterwatch.store.frames import KEPT_DELTAS, Announced, Position

SPACING_S = 0.9
"""A topic gets one message a second; a little less, so that a publisher's jitter does not pile frames up."""


@dataclass(slots=True)
class _Place:
    held: Position
    queued: list[Announced] = field(default_factory=list)
    lacks: bool = True
    """frames may have been missed: the store must be read"""
    answers: bool = False
    """``queued`` begins with what the viewer asked for: it goes at once and delays nothing after it"""
    sent_s: float = float("-inf")
    told_waiting: bool = False
    heard: Position | None = None
    """announced while the store was being read"""

    @property
    def due_s(self) -> float:
        """When what is queued may be sent."""
        return float("-inf") if self.answers else self.sent_s + SPACING_S


class Feed:
    """The topics of one viewer. Times are seconds of one monotonic clock."""

    def __init__(self) -> None:
        self._places: dict[str, _Place] = {}

    def __contains__(self, topic: str) -> bool:
        return topic in self._places

    @property
    def topics(self) -> list[str]:
        return list(self._places)

    def follow(self, topic: str, held: Position) -> None:
        """Starts (again) from what the viewer says it holds."""
        sent_s = self._places[topic].sent_s if topic in self._places else float("-inf")
        self._places[topic] = _Place(held, sent_s=sent_s)

    def drop(self, topic: str) -> None:
        self._places.pop(topic, None)

    def offer(self, frame: Announced) -> bool:
        """Queues an announced frame if it is the next one; returns whether there is something to do."""
        place = self._places.get(frame.topic)
        if place is None:
            return False
        if place.lacks:
            place.heard = frame.position
            return False
        at, held = frame.position, place.held
        if at.epoch == held.epoch and at.number <= held.number:
            return False
        follows = frame.is_full or (at.epoch == held.epoch and at.number == held.number + 1)
        if not follows or len(place.queued) >= KEPT_DELTAS:
            self.mark_lacking(frame.topic)
        else:
            place.held = at
            place.queued.append(frame)
        return True

    def mark_lacking(self, topic: str) -> None:
        """The store must be read for this topic, from the place the viewer really has."""
        if place := self._places.get(topic):
            place.lacks = True

    def lacking(self) -> dict[str, Position]:
        """Topics to read from the store, and from where."""
        return {topic: place.held for topic, place in self._places.items() if place.lacks}

    def fill(self, topic: str, asked: Position, found: list[Announced] | None) -> bool:
        """Takes what the store had after ``asked``; returns whether to tell the viewer that it waits."""
        place = self._places.get(topic)
        if place is None or place.held != asked:
            return False
        place.lacks = False
        if found:
            place.held = found[-1].position
            place.queued = found if found[0].is_full else [*place.queued, *found]
            place.answers = True
        heard, place.heard = place.heard, None
        if heard is not None and (heard.epoch != place.held.epoch or heard.number > place.held.number):
            place.lacks = True
        if found is not None or place.told_waiting:
            return False
        place.told_waiting = True
        return True

    def take_due(self, now_s: float) -> list[Announced]:
        """Frames of the topics that may be sent now."""
        due: list[Announced] = []
        for place in self._places.values():
            if place.queued and now_s >= place.due_s:
                due.extend(place.queued)
                place.queued = []
                place.sent_s = place.sent_s if place.answers else now_s
                place.answers = False
        return due

    def wait_s(self, now_s: float) -> float | None:
        """Seconds until something queued may be sent; None when nothing is queued."""
        waits = [place.due_s - now_s for place in self._places.values() if place.queued]
        return max(0.0, min(waits)) if waits else None
