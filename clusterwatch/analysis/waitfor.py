"""Who waits for whom: ranks wait in open calls, and calls lack ranks.

In: open calls, mismatches, p2p pairs. Out: ``WaitGraph``: edges, cycles, and the ranks downstream of a root.
Ranks are nodes from 0 up, calls nodes below 0, so a call of many members costs one edge each. Cost: O(edges).
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from clusterwatch.analysis.calls import OpenCall
from clusterwatch.analysis.p2p import Half, Pairing


@dataclass(eq=False)
class WaitGraph:
    calls: list[OpenCall] = field(default_factory=list)
    """open calls that tell something; those behind a mismatch are left out"""
    edges: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    """rank -> calls and ranks it waits for; call -> ranks it lacks"""
    soft: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    """rank -> call that all have issued, or rank of its pair, held up by older work; such a call -> the ranks
    that hold it up: who waits only so is not the start of the stall"""
    halves: tuple[Half, ...] = ()
    """open sends and receives without a counterpart"""
    bound: list[tuple[int, ...]] = field(default_factory=list)
    """ranks bound together by a call or a pair of halves all have made and none finished"""

    @functools.cached_property
    def by_rank(self) -> dict[int, list[OpenCall]]:
        """The calls each rank waits in."""
        found: dict[int, list[OpenCall]] = defaultdict(list)
        for call in self.calls:
            for rank in call.waiting:
                found[rank].append(call)
        return found

    @functools.cached_property
    def lacking(self) -> dict[int, list[OpenCall]]:
        """rank -> open calls that lack it: it is absent or silent."""
        found: dict[int, list[OpenCall]] = defaultdict(list)
        for call in self.calls:
            for rank in call.absent + call.silent:
                found[rank].append(call)
        return found

    @functools.cached_property
    def reverse(self) -> dict[int, list[int]]:
        """node -> nodes that wait for it. Taken once all edges are final."""
        found: dict[int, list[int]] = defaultdict(list)
        for node, targets in self.edges.items():
            for target in targets:
                found[target].append(node)
        return found

    def stuck(self) -> list[int]:
        """Calls that all members have issued, that none has finished, and that nothing older holds up."""
        return [call.node for call in self.calls if call.joined and not call.ahead and not call.held_up]

    def awaited(self) -> set[int]:
        """Ranks that a waiting rank or an open call lacks."""
        return {target for targets in self.edges.values() for target in targets if target >= 0}

    def waits(self, rank: int) -> bool:
        return bool(self.edges.get(rank))

    def release(self, ranks: Iterable[int]) -> None:
        """Ranks found to be roots wait for nobody."""
        for rank in ranks:
            self.edges.pop(rank, None)
        self.__dict__.pop("reverse", None)


def build(
    calls: list[OpenCall], pairing: Pairing, bad_calls: Mapping[int, int], forced: Collection[int]
) -> WaitGraph:
    """The graph of one look.

    Args:
        bad_calls: number of a group -> its first mismatched call; members open there or later wait because of
            it, not for who is absent.
        forced: ranks already known as roots; they wait for nobody.
    """
    graph = WaitGraph(halves=pairing.unmatched)
    for call in calls:
        bad = bad_calls.get(call.group.number)
        if bad is not None and call.sequence >= bad:
            graph.bound.append((*call.waiting, next(iter(call.group.views))))
            continue
        graph.calls.append(call)
        call.node = -len(graph.calls)
        if call.joined:
            _bind(graph, call)
        else:
            _connect(graph, call, forced)
    for half in pairing.unmatched:
        if half.rank not in forced:
            graph.edges[half.rank].append(half.peer)
    for pair in pairing.joined:
        _bind_pair(graph, pair)
    return graph


def _connect(graph: WaitGraph, call: OpenCall, forced: Collection[int]) -> None:
    graph.edges[call.node] = list(call.targets)
    for rank in call.waiting:
        if rank not in forced:
            graph.edges[rank].append(call.node)


def _bind(graph: WaitGraph, call: OpenCall) -> None:
    """All have issued the call; those with older open work hold it up."""
    graph.bound.append(call.waiting + call.ahead)
    if call.held_up:
        graph.soft[call.node] = list(call.held_up)
    held = set(call.held_up)
    for rank in call.waiting if not call.ahead else ():
        if rank not in held:
            graph.soft[rank].append(call.node)


def _bind_pair(graph: WaitGraph, pair: tuple[Half, Half]) -> None:
    first, second = pair
    graph.bound.append((first.rank, second.rank))
    for one, other in ((first, second), (second, first)):
        if other.held_up:
            graph.soft[one.rank].append(other.rank)


def _reached(start: Iterable[int], *ways: Mapping[int, Iterable[int]]) -> set[int]:
    """Every node that a walk from ``start`` comes to, ``start`` included. ``ways``: node -> next nodes."""
    seen = set(start)
    stack = list(seen)
    while stack:
        node = stack.pop()
        for way in ways:
            for target in way.get(node, ()):
                if target not in seen:
                    seen.add(target)
                    stack.append(target)
    return seen


def leading_to(graph: WaitGraph, goals: Iterable[int]) -> set[int]:
    """Ranks that wait, also softly, for one of ``goals``, directly or through others."""
    if not graph.soft:
        return upstream(graph, goals) | set(goals)
    reverse: dict[int, list[int]] = defaultdict(list)
    for node, targets in graph.soft.items():
        for target in targets:
            reverse[target].append(node)
    reached = _reached(goals, graph.reverse, reverse)
    return {node for node in reached if node >= 0}


def upstream(graph: WaitGraph, roots: Iterable[int]) -> set[int]:
    """Every rank that waits for one of ``roots``, directly or through others; the roots left out."""
    start = set(roots)
    reached = _reached(start, graph.reverse)
    return {node for node in reached if node >= 0} - start


def components(graph: WaitGraph) -> list[frozenset[int]]:
    """Ranks bound by waiting or by a shared open call: one stall each."""
    near: dict[int, list[int]] = defaultdict(list)
    for ranks in graph.bound:
        for rank in ranks[1:]:
            near[ranks[0]].append(rank)
            near[rank].append(ranks[0])
    reverse, edges = graph.reverse, graph.edges
    found: list[frozenset[int]] = []
    seen: set[int] = set()
    bound = (ranks[0] for ranks in graph.bound if ranks)
    for start in sorted({*edges, *bound}):
        if start in seen:
            continue
        part = _reached((start,), edges, reverse, near)
        seen |= part
        ranks_only = frozenset(node for node in part if node >= 0)
        found += [ranks_only] if ranks_only else []
    return sorted(found, key=min)


def cycles(graph: WaitGraph) -> list[frozenset[int]]:
    """Closed rings: see ``rings``."""
    return rings(graph)[0]


def rings(graph: WaitGraph) -> tuple[list[frozenset[int]], list[frozenset[int]]]:
    """Strong components of two ranks or more: the closed ones, that wait for nobody outside, so that nothing
    else explains them; and those that wait for others as well.

    A call needs every member, so a component of either kind never ends, whoever else comes.
    """
    rest = _leading_to_rings(graph.edges)
    closed: list[frozenset[int]] = []
    tied: list[frozenset[int]] = []
    for component in _strong(rest):
        ranks = frozenset(node for node in component if node >= 0)
        if len(ranks) > 1:
            alone = all(target in component for node in component for target in graph.edges[node])
            (closed if alone else tied).append(ranks)
    return sorted(closed, key=min), sorted(tied, key=min)


def _leading_to_rings(edges: Mapping[int, list[int]]) -> dict[int, list[int]]:
    """What is left once nodes that wait for nobody are taken off again and again. Cost: O(edges)."""
    left = {node: len(targets) for node, targets in edges.items() if targets}
    sources: dict[int, list[int]] = defaultdict(list)
    for node in left:
        for target in edges[node]:
            sources[target].append(node)
    done = [target for target in sources if target not in left]
    while done:
        for source in sources[done.pop()]:
            left[source] -= 1
            if not left[source]:
                done.append(source)
    return {node: [t for t in edges[node] if left.get(t)] for node, count in left.items() if count}


def _strong(edges: Mapping[int, list[int]]) -> list[frozenset[int]]:
    """Strong components. Tarjan's algorithm without recursion. Source: Tarjan 1972, SIAM J. Comput. 1(2)."""
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    on_stack: set[int] = set()
    found = []
    for start in sorted(edges):
        if start in index:
            continue
        index[start] = low[start] = len(index)
        stack.append(start)
        on_stack.add(start)
        work = [(start, iter(edges.get(start, ())))]
        while work:
            node, targets = work[-1]
            target = next(targets, None)
            if target is None:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    found.append(_pop_component(stack, on_stack, node))
            elif target not in index:
                index[target] = low[target] = len(index)
                stack.append(target)
                on_stack.add(target)
                work.append((target, iter(edges.get(target, ()))))
            elif target in on_stack:
                low[node] = min(low[node], index[target])
    return found


def _pop_component(stack: list[int], on_stack: set[int], root: int) -> frozenset[int]:
    members = set()
    while True:
        node = stack.pop()
        on_stack.discard(node)
        members.add(node)
        if node == root:
            return frozenset(members)
