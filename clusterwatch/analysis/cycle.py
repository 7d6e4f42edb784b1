"""A ring of ranks that wait for each other through several groups, and whose order deviates.

In: ``World``, the wait graph and one closed ring of it. Out: a ``Root``.
"""

from __future__ import annotations

from collections import Counter

from clusterwatch.analysis import pattern
from clusterwatch.analysis.groups import Group, World
from clusterwatch.analysis.root import Root
from clusterwatch.analysis.waitfor import Wait, WaitGraph


def judge(world: World, graph: WaitGraph, ring: frozenset[int]) -> Root:
    """The ring as one finding: by majority of the ranks that take part in both calls, else suspects."""
    waits = [w for w in graph.open if w.rank in ring and (w.absent or w.behind)]
    calls = _calls(waits)
    odd = _minority(calls, world)
    top = max(calls, key=lambda c: (len(calls[c]), -c[1], c[0].key))
    others = [c for c in calls if not set(calls[c]) <= set(odd)] if odd else list(calls)
    main = max(others or [top], key=lambda c: (len(calls[c]), -c[1], c[0].key))
    op = next(_op(w) for w in waits if (w.group, w.sequence) == main)
    why = [
        f"{len(ranks)} rank{'s wait' if len(ranks) > 1 else ' waits'} in call {sequence} of {group.role} "
        f"({group.name})"
        for (group, sequence), ranks in sorted(calls.items(), key=lambda item: (item[0][0].key, item[0][1]))
    ][:4]
    if odd:
        why.append(f"{len(odd)} of {len(ring)} ranks took the calls in another order than their equals")
    else:
        why.append("the ranks of the ring are evenly split, so the deviating one cannot be told")
    return Root(
        "cross_group_cycle",
        tuple(sorted(odd)),
        () if odd else tuple(sorted(ring)),
        main[0],
        main[1],
        op,
        why=why,
        certainty=0.8 if odd else 0.6,
    )


def _op(wait: Wait) -> str:
    at = wait.view.entry(wait.sequence)
    return wait.view.trace.entries.op[at] if at is not None else "unknown"


def _calls(waits: list[Wait]) -> dict[tuple[Group, int], list[int]]:
    calls: dict[tuple[Group, int], list[int]] = {}
    for wait in waits:
        calls.setdefault((wait.group, wait.sequence), []).append(wait.rank)
    return calls


def _minority(calls: dict[tuple[Group, int], list[int]], world: World) -> set[int]:
    """Ranks that made one call before the other where most ranks of both groups made them the other way."""
    votes: Counter[int] = Counter()
    ordered = sorted(calls, key=lambda c: (c[0].key, c[1]))
    for number, first in enumerate(ordered):
        for second in ordered[number + 1 :]:
            if first[0] is second[0]:
                continue
            shared = set(first[0].views) & set(second[0].views)
            only_first = {r for r in shared if _issued(first, r) and not _issued(second, r)}
            only_second = {r for r in shared if _issued(second, r) and not _issued(first, r)}
            if only_first and only_second and len(only_first) != len(only_second):
                votes.update(min(only_first, only_second, key=len))
    if not votes:
        return _unexpected(calls, world)
    most = max(votes.values())
    return {rank for rank, count in votes.items() if count == most}


def _issued(call: tuple[Group, int], rank: int) -> bool:
    return call[0].views[rank].issued(call[1])


def _unexpected(calls: dict[tuple[Group, int], list[int]], world: World) -> set[int]:
    """Ranks whose last call is not the one their own pattern has next, when fewer than those where it is."""
    ranks = {rank for members in calls.values() for rank in members}
    astray = {rank for rank in ranks if pattern.last_is_unexpected(world, rank)}
    return astray if len(astray) * 2 < len(ranks) or (len(ranks) == 2 and len(astray) == 1) else set()
