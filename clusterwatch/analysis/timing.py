"""Whether a stall is proven, and which dumps are of another time. All by the dumps' own clocks.

A dump is one look. An age above the job's own gaps proves a stall; a small one proves nothing, since in a
full stop nobody makes a newer call.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from clusterwatch.analysis.columns import View, is_gloo
from clusterwatch.analysis.groups import World
from clusterwatch.analysis.model import Observation
from clusterwatch.analysis.root import Root
from clusterwatch.analysis.signature import ALL_PARTY, plain
from clusterwatch.analysis.waitfor import WaitGraph
from collectors.formats.trace import RankTrace

_AGE_MIN_NS: Final = 1_000_000_000
_GAPS: Final = 2
"""An age of more than twice the longest gap seen anywhere in the rings is outside the job's own rhythm."""

_STALE_NS: Final = 60_000_000_000
_STALE_SOON_NS: Final = 10_000_000_000
_STALE_GAPS: Final = 20
"""A dump a minute behind is of another time; ten seconds do if they are twenty of the job's longest gaps."""


def longest_gap_ns(traces: Iterable[RankTrace]) -> int:
    """The longest pause between two calls in a row of any rank, ns; 0 without one. Cost: O(entries)."""
    longest = 0
    for trace in traces:
        times = [t for t in trace.entries.created_ns if t is not None]
        longest = max(longest, max((b - a for a, b in zip(times, times[1:], strict=False)), default=0))
    return longest


def stale_ranks(traces: Mapping[int, RankTrace]) -> frozenset[int]:
    """Ranks whose newest call is far behind their peers': the file is of an earlier run or dump."""
    newest = {rank: t for rank, trace in traces.items() if (t := trace.newest_ns) is not None}
    if len(newest) < 2:
        return frozenset()
    ordered = sorted(newest.values())
    typical = ordered[len(ordered) // 2]
    far = {rank for rank, t in newest.items() if typical - t > _STALE_SOON_NS}
    if not far or len(far) * 2 > len(newest):
        return frozenset()
    gap = longest_gap_ns(trace for rank, trace in traces.items() if rank not in far)
    bound = max(_STALE_NS, _STALE_GAPS * gap)
    soon = max(_STALE_SOON_NS, _STALE_GAPS * gap)
    return frozenset(
        rank
        for rank in far
        if typical - newest[rank] > bound
        or (typical - newest[rank] > soon and _far_behind(rank, traces, far))
    )


def _far_behind(rank: int, traces: Mapping[int, RankTrace], far: set[int]) -> bool:
    """In every group it shares, the rank lacks at least two calls that all its peers have made."""
    mine = _highs(traces[rank])
    lags = []
    for other, trace in traces.items():
        if other not in far:
            theirs = _highs(trace)
            lags += [theirs[key] - high for key, high in mine.items() if key in theirs]
    return bool(lags) and min(lags) >= 2


def _highs(trace: RankTrace) -> dict[tuple[str, str], int]:
    highs: dict[tuple[str, str], int] = {}
    for index, sequence in zip(trace.entries.group, trace.entries.sequence, strict=True):
        group = trace.groups[index]
        key = (group.name, group.desc)
        highs[key] = max(highs.get(key, 0), sequence or 0)
    return highs


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
    age = _age_ns(observation, world, root)
    if age is not None:
        gap = longest_gap_ns(world.traces.values())
        if age > max(_AGE_MIN_NS, _GAPS * gap):
            return (
                True,
                f"the call is open for {age / 1e9:.1f} s; the job's longest own gap is {gap / 1e9:.1f} s",
            )
    return False, "one look only, and the open call is young: a stall is presumed, not proven"


def _timed_out(root: Root, graph: WaitGraph) -> bool:
    for wait in graph.open:
        if root.group is not None and wait.group is not root.group:
            continue
        at = wait.view.entry(wait.sequence)
        if wait.sequence in wait.view.timed_out:
            return True
        if at is not None and is_gloo(wait.view.trace) and wait.view.trace.entries.retired[at]:
            return True
    return False


def _age_ns(observation: Observation, world: World, root: Root) -> int | None:
    if root.group is None or root.sequence is None:
        return None
    issued = []
    for view in root.group.views.values():
        at = view.entry(root.sequence)
        created = view.trace.entries.created_ns[at] if at is not None else None
        if created is not None:
            issued.append(created)
    looks = [trace.newest_ns for trace in world.traces.values()]
    looks += [trace.taken_ns for trace in world.traces.values()]
    looks += [observation.now_ns] if observation.live else []
    known = [t for t in looks if t is not None]
    return max(known) - max(issued) if issued and known else None


def outdated(world: World) -> frozenset[int]:
    """Ranks whose dump lacks calls that peers have finished and that nobody can finish without them.

    Such a dump was taken before those calls, whatever its clock says. gloo marks failed calls as over too, at
    most one per rank, so there two calls are asked for.
    """
    found: set[int] = set()
    for group in world.groups:
        if not group.certain or len(group.views) < 2:
            continue
        reached = max(_last_shared_end(view) for view in group.views.values())
        slack = 1 if any(is_gloo(view.trace) for view in group.views.values()) else 0
        found |= {
            rank
            for rank, view in group.views.items()
            if view.high is not None and view.high + slack < reached
        }
    return frozenset(found)


def _last_shared_end(view: View) -> int:
    """The newest all-party call the rank has finished; 0 without one."""
    ops = view.trace.entries.op
    for sequence in sorted(view.calls, reverse=True):
        at = view.entry(sequence)
        if at is not None and sequence not in view.open and plain(ops[at]) in ALL_PARTY:
            return sequence
    return 0
