"""Whether a stall is proven, and which dumps are of another time. All by the dumps' own clocks.

A dump is one look. An age above the job's own gaps proves a stall; a small one proves nothing, since in a
full stop nobody makes a newer call.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np

from clusterwatch.analysis.calls import issued_ns
from clusterwatch.analysis.groups import World
from clusterwatch.analysis.model import Observation
from clusterwatch.analysis.plausible import AHEAD_MAX
from clusterwatch.analysis.root import Root
from clusterwatch.analysis.tables import Window
from clusterwatch.analysis.waitfor import WaitGraph
from collectors.formats.columns import NULL

_AGE_MIN_NS: Final = 1_000_000_000
_GAPS: Final = 2
"""An age of more than twice the longest gap seen anywhere in the rings is outside the job's own rhythm."""

_STALE_NS: Final = 60_000_000_000
_STALE_SOON_NS: Final = 10_000_000_000
_STALE_GAPS: Final = 20
"""A dump a minute behind is of another time; ten seconds do if they are twenty of the job's longest gaps."""


def longest_gap_ns(windows: Iterable[Window]) -> int:
    """The longest pause between two calls in a row of any rank, ns; 0 without one."""
    return max((window.longest_gap_ns for window in windows), default=0)


def stale_ranks(world: World) -> frozenset[int]:
    """Ranks whose newest call is far behind their peers': the file is of an earlier run or dump."""
    newest = {rank: w.newest_ns for rank, w in world.windows.items() if w.newest_ns is not None}
    if len(newest) < 2:
        return frozenset()
    ordered = sorted(newest.values())
    typical = ordered[len(ordered) // 2]
    far = {rank for rank, t in newest.items() if typical - t > _STALE_SOON_NS}
    if not far or len(far) * 2 > len(newest):
        return frozenset()
    gap = longest_gap_ns(window for rank, window in world.windows.items() if rank not in far)
    bound = max(_STALE_NS, _STALE_GAPS * gap)
    soon = max(_STALE_SOON_NS, _STALE_GAPS * gap)
    behind = _far_behind(world, far)
    return frozenset(
        rank
        for rank in far
        if typical - newest[rank] > bound or (typical - newest[rank] > soon and rank in behind)
    )


def _far_behind(world: World, far: set[int]) -> set[int]:
    """Of ``far``, those that lack two calls or more, in every group they share, that all peers have made."""
    rows = world.rows
    old = np.isin(rows.rank, list(far))
    placed = rows.number != NULL
    none = np.iinfo(np.int64).max
    reached = np.full(len(world.groups), none)
    np.minimum.at(reached, rows.number[placed & ~old], np.maximum(rows.high[placed & ~old], 0))
    mine = np.flatnonzero(placed & old & (rows.high != NULL))
    mine = mine[reached[rows.number[mine]] != none]
    lag = reached[rows.number[mine]] - rows.high[mine]
    shared, close = set(rows.rank[mine].tolist()), set(rows.rank[mine[lag < 2]].tolist())
    return shared - close


def beyond_all(world: World) -> frozenset[int]:
    """Ranks that hold a call so far beyond every peer's newest one that its number cannot be right.

    Cost: O(rows) in numpy.
    """
    rows = world.rows
    held = np.flatnonzero((rows.number != NULL) & (rows.high != NULL))
    number, high = rows.number[held], rows.high[held]
    top = np.full(len(world.groups), NULL)
    np.maximum.at(top, number, high)
    leads = high == top[number]
    alone = np.bincount(number[leads], minlength=len(world.groups)) == 1
    second = np.full(len(world.groups), NULL)
    np.maximum.at(second, number[~leads], high[~leads])
    far = leads & (alone & (second != NULL) & (top - second > AHEAD_MAX))[number]
    return frozenset(rows.rank[held[far]].tolist())


def stall(observation: Observation, world: World, root: Root, graph: WaitGraph) -> tuple[bool, str]:
    """Whether the stall behind ``root`` is proven, and the line that says by what."""
    if observation.live and observation.advanced is False:
        since = f" for {observation.stall_s:.0f} s" if observation.stall_s is not None else ""
        return True, f"two looks show no advance{since}"
    if _timed_out(root, graph):
        return (
            True,
            "a waiting call was given up on (retired without being finished): a time-out or a failure",
        )
    if (line := _told_by_logs(observation, root)) is not None:
        return True, f"a watchdog gave up on the call: {line}"
    age = _age_ns(observation, world, root)
    if age is not None:
        gap = longest_gap_ns(world.windows.values())
        if age > max(_AGE_MIN_NS, _GAPS * gap):
            return (
                True,
                f"the call is open for {age / 1e9:.1f} s; the job's longest own gap is {gap / 1e9:.1f} s",
            )
    return False, "one look only, and the open call is young: a stall is presumed, not proven"


def _timed_out(root: Root, graph: WaitGraph) -> bool:
    return any(call.timed_out for call in graph.calls if root.group is None or call.group is root.group)


def _told_by_logs(observation: Observation, root: Root) -> str | None:
    """The log line of a time-out in the call behind ``root``: same number, and group where both tell it."""
    for timeout in observation.timeouts:
        desc = root.group.ref.desc if root.group is not None else ""
        if timeout.seq == root.sequence and (not desc or not timeout.desc or desc == timeout.desc):
            return timeout.line
    return None


def _age_ns(observation: Observation, world: World, root: Root) -> int | None:
    if root.group is None or root.sequence is None:
        return None
    issued = issued_ns(root.group, root.sequence, last=True)
    looks = [window.newest_ns for window in world.windows.values()]
    looks += [window.taken_ns for window in world.windows.values()]
    looks += [observation.now_ns] if observation.live else []
    known = [t for t in looks if t is not None]
    return max(known) - issued if issued is not None and known else None


def outdated(world: World) -> frozenset[int]:
    """Ranks whose dump lacks calls that peers have finished and that nobody can finish without them.

    Such a dump was taken before those calls, whatever its clock says.
    """
    rows = world.rows
    placed = np.flatnonzero(rows.number != NULL)
    number, high = rows.number[placed], rows.high[placed]
    reached = np.full(len(world.groups), NULL)
    np.maximum.at(reached, number, rows.shared_end[placed])
    old = (high != NULL) & (high < reached[number])
    return frozenset(rows.rank[placed[old]].tolist())
