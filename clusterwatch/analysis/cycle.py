"""A ring of ranks that wait for each other through several groups, and whose order deviates.

In: ``World``, the wait graph and one closed ring of it. Out: a ``Root``.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from clusterwatch.analysis import crossing, pattern, precedence
from clusterwatch.analysis.groups import Group, World
from clusterwatch.analysis.root import Root
from clusterwatch.analysis.sentence import count, noun
from clusterwatch.analysis.waitfor import WaitGraph


def judge(world: World, graph: WaitGraph, ring: frozenset[int]) -> Root:
    """The ring as one finding: by majority of the ranks that take part in both calls, else suspects."""
    open_calls = {
        call: ranks
        for call in graph.calls
        if (call.absent or call.behind) and (ranks := [rank for rank in call.waiting if rank in ring])
    }
    calls: _Calls = {(call.group, call.sequence): ranks for call, ranks in open_calls.items()}
    if not calls or (
        len(calls) == 1 and any(half.rank in ring and half.peer in ring for half in graph.halves)
    ):
        return crossing.root([half for half in graph.halves if half.rank in ring and half.peer in ring])
    extra = _beyond_siblings(calls, world)
    odd = extra or _minority(calls, world)
    equals = {} if odd else precedence.passed_over(world, calls, ring)
    odd = odd or set(equals) or _unexpected(calls, world)
    kept = [c for c in calls if not set(calls[c]) <= odd] or list(calls)
    if extra:
        kept = [c for c in calls if set(calls[c]) <= extra]
    main = max(kept, key=lambda c: (len(c[0].views), len(calls[c]), -c[1], c[0].key))
    op = next(call.op for call in open_calls if (call.group, call.sequence) == main)
    ordered = sorted(calls.items(), key=lambda item: (item[0][0].key, item[0][1]))
    why = [
        f"{noun(ranks)} in call {sequence} of {group.title}{_by_name(group)}"
        for (group, sequence), ranks in ordered
    ][:4]
    why.append(_verdict_line(bool(extra), odd, ring, equals))
    return Root(
        "op_mismatch" if extra else "cross_group_cycle",
        tuple(sorted(odd)),
        () if odd else tuple(sorted(ring)),
        main[0],
        main[1],
        op,
        cause="extra_call" if extra else None,
        why=why,
        certainty=0.8 if odd else 0.6,
    )


def _by_name(group: Group) -> str:
    """The name beside a description that siblings share."""
    return f" ({group.name})" if group.title == group.role else ""


def _verdict_line(extra: bool, odd: set[int], ring: frozenset[int], equals: dict[int, int]) -> str:
    if extra:
        return f"{noun(odd)} is one call beyond every sibling group, though it is awaited elsewhere"
    if equals:
        witnesses = count(max(equals.values()), "rank")
        return f"{witnesses} of sibling groups made the call that {noun(odd)} passed over before this one"
    if odd:
        return f"{len(odd)} of {len(ring)} ranks took the calls in another order than their equals"
    return "the ranks of the ring are evenly split, so the deviating one cannot be told"


_Calls = dict[tuple[Group, int], list[int]]


def _minority(calls: _Calls, world: World) -> set[int]:
    """Ranks that made one call before the other where most ranks of both groups made them the other way."""
    votes: Counter[int] = Counter()
    ordered = sorted(calls, key=lambda c: (c[0].key, c[1]))
    for number, first in enumerate(ordered):
        for second in ordered[number + 1 :]:
            if first[0] is second[0]:
                continue
            shared = set(first[0].members) & set(second[0].members) & set(world.windows)
            only_first = {r for r in shared if _issued(first, r) and not _issued(second, r)}
            only_second = {r for r in shared if _issued(second, r) and not _issued(first, r)}
            if only_first and only_second and len(only_first) != len(only_second):
                votes.update(only_first if len(only_first) < len(only_second) else only_second)
    most = max(votes.values(), default=0)
    return {rank for rank, count in votes.items() if count == most}


def _beyond_siblings(calls: _Calls, world: World) -> set[int]:
    """Ranks alone in a call that no sibling group has reached: they made one call too many."""
    found: set[int] = set()
    for (group, sequence), _ in calls.items():
        siblings = [g.high for g in world.groups if g.role == group.role and g is not group]
        issued = set(group.issued(sequence))
        highs = group.rows.high[group.mine]
        rest = np.maximum(highs[highs < sequence], 0).tolist()
        reached = {high for high in siblings if high is not None}
        if len(siblings) > 1 and rest and reached == set(rest) == {sequence - 1} and len(issued) == 1:
            found |= issued
    return {rank for rank in found if not pattern.came_early(world, rank)} if len(found) == 1 else set()


def _issued(call: tuple[Group, int], rank: int) -> bool:
    view = call[0].views.get(rank)
    return view is not None and view.issued(call[1])


def _unexpected(calls: _Calls, world: World) -> set[int]:
    """Ranks whose last call is not the one their own pattern has next, when fewer than those where it is."""
    ranks = {rank for members in calls.values() for rank in members}
    astray = {rank for rank in ranks if pattern.last_is_unexpected(world, rank)}
    return astray if len(astray) * 2 < len(ranks) or (len(ranks) == 2 and len(astray) == 1) else set()
