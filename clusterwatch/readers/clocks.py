"""Dumps whose times are ahead of their peers', told from those of a later run.

In: dumps of a folder, oldest first. Out: the same with the times of such dumps mended, and what was done.
A clock that is behind is not told from an old dump: both lie before their peers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median_low
from typing import Final

import numpy as np

from clusterwatch.analysis.tables import CALL, GROUP, Rows, Window
from clusterwatch.readers.dumps import Dump
from collectors.formats.columns import NULL

_CALLS_MIN: Final = 3
"""Calls that both must have made; fewer say nothing of two clocks."""
_SPREAD_MAX_NS: Final = 1_000_000_000
"""Members make one call within a second of each other, or they would not be apart by one amount."""
_ODD_MIN: Final = 4
"""Of so many calls, less than one may be at another distance."""
_LAG_MAX: Final = 2
"""Calls that a member may have made more or less than its peers, in each group they share."""
_COMPARED_MAX: Final = 64
_PEERS_MIN: Final = 2
_CLOCK_MIN_NS: Final = 60_000_000_000
_CLOCK_MAX_NS: Final = 20 * 3600 * 1_000_000_000
"""Wrong time zones are less apart; a job that runs daily makes the same calls a day later."""


@dataclass(frozen=True, slots=True)
class Mended:
    dump: Dump
    ahead_ns: int
    """how far the clock was ahead; where only single times were, the furthest of these"""
    clock: bool
    """False: single times, which are passed over"""


def mend(newer: Sequence[Dump], older: Sequence[Dump]) -> Mended | None:
    """The one dump that lies after all others, by their clocks, where it holds the same calls at one distance
    in time. Several are the beginning of a later run rather than several wrong clocks: None.

    Args:
        newer: dumps that lie after all of ``older``, by their clocks.

    Cost: O(1) peers are compared.
    """
    if len(newer) != 1 or len(older) < _PEERS_MIN or newer[0].rank in {peer.rank for peer in older}:
        return None
    dump = newer[0]
    peers = [peer for peer in older if peer.world == dump.world][:_COMPARED_MAX]
    apart = [ns for peer in peers if (ns := _apart_ns(dump.window, peer.window)) is not None]
    if not apart or median_low(apart) > _CLOCK_MAX_NS:
        return None
    return _mended(dump, median_low(apart), max(peer.newest_ns or 0 for peer in older))


def _mended(dump: Dump, ahead_ns: int, last_ns: int) -> Mended:
    """Set back by ``ahead_ns``, the distance to peers; or where that is small, without late times."""
    clock = ahead_ns > _CLOCK_MIN_NS

    def mended(window: Window) -> Window:
        return _shifted(window, -ahead_ns) if clock else _ending(window, last_ns)

    told = None if dump.as_told is None else mended(dump.as_told)
    beyond_ns = ahead_ns if clock else (dump.newest_ns or 0) - last_ns
    return Mended(replace(dump, window=mended(dump.window), as_told=told), beyond_ns, clock)


def _apart_ns(one: Window, other: Window) -> int | None:
    """How much later ``one`` has made the calls that both hold; None where that is not one amount, or where
    one has come further."""
    apart: list[int] = []
    mine, theirs = (dict(zip(w.groups["key"].tolist(), w.groups, strict=True)) for w in (one, other))
    for key in mine.keys() & theirs.keys():
        a, b = mine[key], theirs[key]
        if abs(int(a["high"]) - int(b["high"])) > _LAG_MAX:
            return None
        apart += _distances(_calls(one, a), _calls(other, b))
    if len(apart) < _CALLS_MIN:
        return None
    usual = median_low(apart)
    odd = sum(abs(one - usual) > _SPREAD_MAX_NS for one in apart)
    return usual if odd * _ODD_MIN < len(apart) else None


def _calls(window: Window, group: np.void) -> Rows:
    rows = window.calls[group["first_call"] : group["end_call"]]
    timed: Rows = rows[rows["created_ns"] != NULL]
    return timed


def _distances(mine: Rows, theirs: Rows) -> list[int]:
    _, at, there = np.intersect1d(mine["sequence"], theirs["sequence"], return_indices=True)
    found: list[int] = (mine["created_ns"][at] - theirs["created_ns"][there]).tolist()
    return found


def _shifted(window: Window, by_ns: int) -> Window:
    def moved(at_ns: int | None) -> int | None:
        return None if at_ns is None else at_ns + by_ns

    return replace(
        window,
        taken_ns=moved(window.taken_ns),
        newest_ns=moved(window.newest_ns),
        oldest_ns=moved(window.oldest_ns),
        group_bytes=_column_moved(window.group_bytes, GROUP, "first_open_ns", by_ns),
        call_bytes=_column_moved(window.call_bytes, CALL, "created_ns", by_ns),
        p2p_bytes=_column_moved(window.p2p_bytes, CALL, "created_ns", by_ns),
    )


def _ending(window: Window, last_ns: int) -> Window:
    """The window without times after ``last_ns``."""

    def kept(data: bytes, table: np.dtype[np.void], column: str) -> bytes:
        rows = np.frombuffer(data, table).copy()
        rows[column][rows[column] > last_ns] = NULL
        return rows.tobytes()

    return replace(
        window,
        newest_ns=min(window.newest_ns or last_ns, last_ns),
        oldest_ns=min(window.oldest_ns or last_ns, last_ns),
        longest_gap_ns=0,
        group_bytes=kept(window.group_bytes, GROUP, "first_open_ns"),
        call_bytes=kept(window.call_bytes, CALL, "created_ns"),
        p2p_bytes=kept(window.p2p_bytes, CALL, "created_ns"),
    )


def _column_moved(data: bytes, table: np.dtype[np.void], column: str, by_ns: int) -> bytes:
    rows = np.frombuffer(data, table).copy()
    rows[column][rows[column] != NULL] += by_ns
    return rows.tobytes()
