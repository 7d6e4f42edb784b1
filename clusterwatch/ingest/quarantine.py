"""Nodes that are kept out or not trusted, with the words they were told; bounded, counted, for people.

In: refusals and doubts of one gateway. Out: ``store.gateway_notes.NodeNote`` for pages.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Final

from clusterwatch.store.gateway_notes import NOTE_KEPT_S, NodeNote
from collectors.wire import limits
from collectors.wire.records import Hello

NOTES_MAX: Final = 500
"""Nodes remembered; a peer without a token can invent names without end."""
TURNS_MAX: Final = 3
TURNS_WITHIN_S: Final = 60.0
"""Two machines of one name push each other out; one machine that lost its connection does not, so often."""


class Quarantine:
    """Of one gateway; used from its event loop."""

    def __init__(self) -> None:
        self.total = 0
        self._notes: dict[tuple[str, str, str], NodeNote] = {}
        self._turns: dict[Hashable, deque[float]] = {}

    def note(self, cluster: str, node: str, code: str, reason: str, peer: str, now_ms: int) -> None:
        """A node gave cause, once more."""
        self.total += 1
        key = (cluster, node, code)
        old = self._notes.pop(key, None)
        count, first_ms = (old.count + 1, old.first_ms) if old else (1, now_ms)
        self._notes[key] = NodeNote(cluster, node, code, reason, peer, count, first_ms, now_ms)
        if len(self._notes) > NOTES_MAX:
            del self._notes[next(iter(self._notes))]

    def notes(self, now_ms: int) -> list[NodeNote]:
        """What was noted lately, the newest last."""
        for key in [key for key, note in self._notes.items() if now_ms - note.last_ms > NOTE_KEPT_S * 1000]:
            del self._notes[key]
        return list(self._notes.values())

    def takes_turns(self, node_id: int, now_s: float) -> bool:
        """Counts that a living connection of a node is replaced; True when that happens too often."""
        turns = self._turns.setdefault(node_id, deque(maxlen=TURNS_MAX + 1))
        turns.append(now_s)
        if len(self._turns) > NOTES_MAX:
            del self._turns[next(iter(self._turns))]
        return len(turns) > TURNS_MAX and now_s - turns[0] < TURNS_WITHIN_S


def doubt_about_clock(hello: Hello, now_ns: int) -> tuple[str, str] | None:
    """(code, words) for a node whose clock is far from ours; its hot frames count all the same."""
    ahead_s = (hello.t_ns - now_ns) / 1e9
    if ahead_s > limits.CLOCK_AHEAD_MAX_S:
        return "clock_ahead", f"its clock is {_span(ahead_s)} ahead: its records are rejected until it is set"
    if -ahead_s > limits.RETENTION_MAX_S:
        return "clock_behind", f"its clock is {_span(-ahead_s)} behind: its records count as expired"
    return None


def clock_step_words(step_ns: int) -> str:
    """What is said of a clock that jumped while the node was connected."""
    way = "forward" if step_ns > 0 else "back"
    return f"its clock was set {way} by {_span(abs(step_ns) / 1e9)}; times of its ranks are kept in ours"


def _span(seconds: float) -> str:
    for size_s, word in ((86_400.0, "days"), (3_600.0, "hours"), (60.0, "minutes")):
        if seconds >= 2 * size_s:
            return f"{seconds / size_s:.0f} {word}"
    return f"{seconds:.0f} s"
