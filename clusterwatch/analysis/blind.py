"""Recorders that do not tell the whole: calls they never saw, and marks that nobody set.

In: ``World``. Out: a ``Root`` of class blind, asked for only where nothing else is found, since then "no
fault" would be a guess. ``recorder_blind``: numbers of calls are missing from inside a ring, as NCCL's
recorder leaves out what a CUDA graph captures. ``watchdog_stuck``: a rank's calls are over and its watchdog
has not taken them off its list, or its peers have gone on past calls that it still marks as open.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from clusterwatch.analysis.calls import OpenCall
from clusterwatch.analysis.groups import World
from clusterwatch.analysis.root import Root
from clusterwatch.analysis.sentence import count, noun
from clusterwatch.analysis.tables import Numbers
from collectors.formats.columns import NULL

_UNRETIRED_MIN: Final = 3
_UNRETIRED_NS: Final = 1_000_000_000
"""The watchdog looks ten times a second (kWatchdogThreadSleepMillis of ProcessGroupNCCL)."""
_MARKS_LATE_MIN: Final = 2
"""Calls that all peers have ended since; the newest one may just not be marked yet."""


def find(world: World) -> list[Root]:
    """At most one of each kind. Cost: O(rows + kept calls) in numpy."""
    found = []
    late = _late_watchdogs(world)
    if len(late):
        ranks = tuple(late.tolist())
        why = (
            f"calls of {noun(ranks)} are over, and no watchdog has taken them off its list for over a second"
        )
        found.append(Root("watchdog_stuck", (), ranks, why=[why], certainty=0.5))
    lagging = _late_marks(world)
    if len(lagging) and not found:
        ranks = tuple(lagging.tolist())
        why = f"{noun(ranks)} mark calls as open that cannot be: peers have ended later ones with them"
        found.append(Root("watchdog_stuck", (), ranks, why=[why], certainty=0.5))
    return found or _unseen_calls(world)


def _late_watchdogs(world: World) -> Numbers:
    """Ranks with calls that are over and not retired, while most ranks' watchdogs do their work."""
    rows = world.rows
    calls = rows.calls
    if not len(calls):
        return np.zeros(0, np.int64)
    rank, gloo = rows.rank[rows.call_row], rows.gloo[rows.call_row]
    newest = max((w.newest_ns for w in world.windows.values() if w.newest_ns is not None), default=NULL)
    over = calls["finished"] & ~gloo
    aged = (calls["created_ns"] != NULL) & (newest - calls["created_ns"] >= _UNRETIRED_NS)
    places = np.searchsorted(list(world.windows), rank)
    size = len(world.windows)
    kept = np.bincount(places[over & ~calls["retired"]], minlength=size) >= _UNRETIRED_MIN
    kept &= np.bincount(places[over & ~calls["retired"] & aged], minlength=size) > 0
    working = np.bincount(places[over & calls["retired"]], minlength=size) > 0
    working &= ~kept
    if not working.any() or int(kept.sum()) > int(working.sum()):
        return np.zeros(0, np.int64)
    found: Numbers = np.array(list(world.windows))[kept]
    return found


def _late_marks(world: World) -> Numbers:
    """Ranks whose oldest open call lies before calls that they made and that every peer has ended."""
    rows = world.rows
    first, ended = rows.first_open, rows.shared_end
    placed = (rows.number != NULL) & ~rows.gloo
    if not len(world.groups) or not placed.any():
        return np.zeros(0, np.int64)
    reached = _peers_end(world, ended, placed)
    late = placed & (first != NULL) & (reached - first >= _MARKS_LATE_MIN - 1) & (rows.high >= reached)
    return np.array(sorted(set(rows.rank[late & (reached != NULL)].tolist())), np.int64)


def _peers_end(world: World, ended: Numbers, placed: Numbers) -> Numbers:
    """[R] newest all-party call that some other member has ended; its end proves that all took part."""
    rows = world.rows
    best = np.full(len(world.groups), NULL)
    np.maximum.at(best, rows.number[placed], ended[placed])
    result: Numbers = np.where(placed, best[rows.number], NULL)
    return result


def marks_are_late(call: OpenCall, rank: int) -> bool:
    """Whether the rank took part in later calls that peers have ended: its open mark on this one is wrong."""
    rows = call.group.rows
    reached = int(rows.shared_end[call.group.mine].max())
    return reached - call.sequence >= _MARKS_LATE_MIN - 1 and int(call.group.views[rank].high or 0) >= reached


def _unseen_calls(world: World) -> list[Root]:
    """Numbers that are missing between the calls a ring holds: made, and not recorded."""
    rows = world.rows
    held = rows.groups
    whole = np.array([w.any_finished and not w.gloo for w in world.windows.values()], np.bool_)
    gaps = held["high"] - held["low"] + 1 - held["call_count"]
    marks = (held["high"] != NULL) & (gaps > 0) & (held["p2p_count"] == 0) & (rows.number != NULL)
    marks &= whole[rows.owner] if len(whole) else False
    if not marks.any():
        return []
    ranks = set(rows.rank[marks].tolist())
    group = world.groups[int(rows.number[marks][0])]
    why = (
        f"{count(len(ranks), 'ring')} leave out {count(int(gaps[marks].max()), 'call')} of {group.title} "
        "between others: they were made and not recorded, as calls of a captured CUDA graph are"
    )
    return [Root("recorder_blind", (), (), group, None, None, why=[why], certainty=0.4)]
