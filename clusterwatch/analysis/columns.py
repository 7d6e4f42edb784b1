"""What one rank's dump says of one process group: the numbers it issued, and which of them are still open.

In: a ``Window``. Out: ``View`` per (group, rank), built only where somebody asks for it. An entry is a row of
``Window.calls``.
"""

from __future__ import annotations

import functools

import numpy as np

from clusterwatch.analysis.signature import Passed, comparable
from clusterwatch.analysis.tables import GROUP, Rows, Window
from collectors.formats.columns import NULL, STATES, Signature

_NAMES = GROUP.names or ()


def is_gloo(window: Window) -> bool:
    return window.gloo


class View:
    """One rank's calls in one group. Sequence numbers are collective_seq_id."""

    def __init__(self, window: Window, index: int) -> None:
        row = dict(zip(_NAMES, window.groups[index].item(), strict=True))
        self.rank = window.rank
        self.window = window
        self.index = index
        """of the group in ``window.groups``"""
        self.low: int | None = _known(row["low"])
        """lowest collective held"""
        self.high: int | None = _known(row["high"])
        """highest collective held: the last one issued"""
        self.first_open: int | None = _known(row["first_open"])
        self.open_count: int = row["open_count"]
        """open calls, kept or not"""
        self.p2p_used: bool = row["p2p_count"] > 0
        self._calls: Rows = window.calls[row["first_call"] : row["end_call"]]
        self._first_call: int = row["first_call"]

    @functools.cached_property
    def open(self) -> list[int]:
        """Sequences issued and not finished, rising; the oldest ``window.OPEN_CALLS_MAX`` and the newest."""
        found: list[int] = self._calls["sequence"][~self._calls["finished"]].tolist()
        return found

    @functools.cached_property
    def timed_out(self) -> set[int]:
        """Open sequences that were retired: the watchdog gave up on them."""
        return set(self._calls["sequence"][~self._calls["finished"] & self._calls["retired"]].tolist())

    @functools.cached_property
    def p2p_open(self) -> list[int]:
        """Rows of ``window.p2p``: sends and receives of this group that are not known to be finished."""
        found: list[int] = np.flatnonzero(self.window.p2p["group"] == self.index).tolist()
        return found

    @functools.cached_property
    def _entries(self) -> dict[int, int]:
        numbers = self._calls["sequence"].tolist()
        return dict(zip(numbers, range(self._first_call, self._first_call + len(numbers)), strict=True))

    @functools.cached_property
    def _older(self) -> dict[int, tuple[int, bool]]:
        """sequence -> signature and whether coalesced, of calls that only the tail of the ring holds."""
        tail = self.window.tail
        mine = tail[tail["group"] == self.index]
        held: dict[int, tuple[int, bool]] = {}
        for number, signature in zip(mine["sequence"].tolist(), mine["signature"].tolist(), strict=True):
            held[number] = (signature, number in held)
        return held

    def issued(self, sequence: int) -> bool:
        return self.high is not None and sequence <= self.high

    def entry(self, sequence: int) -> int | None:
        """The entry that tells the state of a call: the last one, which closes a coalesced call."""
        return self._entries.get(sequence)

    def held(self) -> list[int]:
        """Sequences whose state is kept, rising."""
        return list(self._entries)

    def state(self, entry: int) -> str:
        return STATES[int(self.window.calls["state"][entry])]

    def retired(self, entry: int) -> bool:
        return bool(self.window.calls["retired"][entry])

    def place(self, entry: int) -> int:
        """Place in the ring: a later call of the rank, of whatever group, has a greater one."""
        return int(self.window.calls["at"][entry])

    def created_ns(self, entry: int) -> int | None:
        return _known(int(self.window.calls["created_ns"][entry]))

    def timeout_ms(self, entry: int) -> int | None:
        return _known(int(self.window.calls["timeout_ms"][entry]))

    def site(self, entry: int) -> str:
        """The line of the user's code that made the call; empty without stacks."""
        number = int(self.window.calls["site"][entry])
        return self.window.sites[number] if number != NULL else ""

    def recorded(self, entry: int) -> Signature:
        """All that the recorder noted of the call's arguments."""
        return self.window.call_signatures[int(self.window.calls["signature"][entry])]

    def op(self, entry: int) -> str:
        return self.recorded(entry).op

    def passed_before(self, what: Passed, sequence: int) -> bool:
        """Whether the rank passed the same in an earlier call of the group that its dump holds."""
        held = {*self._entries, *self._older}
        return any(number < sequence and self.passed(number) == what for number in held)

    def passed(self, sequence: int) -> Passed | None:
        """What the rank passed in a call, as far as members must agree; None when no dump holds it."""
        entry = self.entry(sequence)
        if entry is not None:
            return comparable(self.recorded(entry), int(self.window.calls["parts"][entry]) > 1)
        older = self._older.get(sequence)
        return None if older is None else comparable(self.window.call_signatures[older[0]], older[1])


def _known(number: int) -> int | None:
    return None if number == NULL else number
