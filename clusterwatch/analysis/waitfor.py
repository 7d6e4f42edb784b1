"""Who waits for whom: the open call of every rank in every group, and the ranks it cannot finish without.

In: ``World``, mismatches and p2p pairs. Out: ``WaitGraph``: waits, edges, roots, cycles and the ranks
downstream of each root. Cost: O(ranks x groups + edges).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from clusterwatch.analysis.columns import View, is_gloo
from clusterwatch.analysis.groups import Group, World
from clusterwatch.analysis.p2p import Pairing
from clusterwatch.analysis.signature import ALL_PARTY, plain

_CLOCK_SLACK_NS: Final = 1_000_000_000
"""Hosts' clocks agree to well under a second; used only to tell an evicted call from one never made."""


@dataclass(frozen=True, slots=True, eq=False)
class Wait:
    """``rank`` waits in call ``sequence`` of ``group``. Members by what they did with that call."""

    rank: int
    group: Group
    sequence: int
    absent: tuple[int, ...]
    """left a dump and never issued it"""
    silent: tuple[int, ...]
    """left no dump"""
    behind: tuple[int, ...]
    """issued it, still busy with an earlier call of the group"""
    ahead: tuple[int, ...]
    """finished it already: ``rank`` itself is late"""

    @property
    def view(self) -> View:
        return self.group.views[self.rank]


@dataclass(slots=True)
class WaitGraph:
    open: list[Wait] = field(default_factory=list)
    edges: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))
    """rank -> ranks or calls it waits for; call (below zero) -> ranks it lacks"""
    calls: int = 0
    held: dict[tuple[int, int], int] = field(default_factory=dict)
    """(group, sequence) -> node of a call that all have issued"""
    soft: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))
    """rank -> ranks that have made their half of a shared call too, but are busy with older work: who waits
    only so is not the start of the stall"""
    joined: list[tuple[int, ...]] = field(default_factory=list)
    """ranks bound together by a call all have issued and none finished"""

    def waiting_on(self, rank: int) -> list[Wait]:
        return [w for w in self.open if rank in w.absent or rank in w.silent]

    def awaited(self) -> set[int]:
        return {target for targets in self.edges.values() for target in targets if target >= 0}

    def waits(self, rank: int) -> bool:
        return bool(self.edges.get(rank))


def open_calls(group: Group, view: View) -> list[int]:
    """Open sequences of a member, rising. On gloo also calls retired though a member never made them: they
    failed or timed out, since no all-party call can finish without all.
    """
    if not is_gloo(view.trace) or view.high is None:
        return view.open
    highs = [v.high or 0 for rank, v in group.views.items() if rank != view.rank]
    lacking = [rank for rank in group.members if rank not in group.views]
    floor = min(highs, default=view.high)
    failed = []
    if not lacking or group.certain:
        for sequence in range(floor + 1, view.high + 1):
            at = view.entry(sequence)
            if at is not None and plain(view.trace.entries.op[at]) in ALL_PARTY:
                failed.append(sequence)
    return sorted({*view.open, *failed})


def _evicted(world: World, group: Group, rank: int, since_ns: int | None) -> bool:
    """Whether the rank may have made the call so long ago that its ring has dropped it."""
    trace = world.traces[rank]
    view = group.views.get(rank)
    if not trace.truncated or (view is not None and view.high is not None):
        return False
    held = trace.entries
    if all(not held.retired[at] and held.state[at] != "completed" for at in range(len(held))):
        return False  # an only-active dump drops finished calls; an open one would be there
    oldest = min((t for t in held.created_ns if t is not None), default=None)
    return oldest is None or since_ns is None or oldest > since_ns + _CLOCK_SLACK_NS


def _first_issue_ns(group: Group, sequence: int) -> int | None:
    times = []
    for view in group.views.values():
        at = view.entry(sequence)
        if at is not None and (created := view.trace.entries.created_ns[at]) is not None:
            times.append(created)
    return min(times, default=None)


def issue_key(group: Group, sequence: int) -> tuple[int, int, tuple[str, str, tuple[int, ...]]]:
    """Order of calls by when the first member made them; then the smaller group."""
    times = []
    for view in group.views.values():
        at = view.entry(sequence)
        created = view.trace.entries.created_ns[at] if at is not None else None
        if created is not None:
            times.append(created)
    return (min(times, default=1 << 63), len(group.members), group.key)


def waits_in(world: World, group: Group) -> list[Wait]:
    """The first open call of every member of ``group`` and where the others stand with it."""
    first: dict[int, int] = {}
    for rank, view in sorted(group.views.items()):
        calls = open_calls(group, view)
        if calls:
            first[rank] = calls[0]
    standing = {sequence: _standing(world, group, sequence, first) for sequence in set(first.values())}
    return [Wait(rank, group, sequence, *standing[sequence]) for rank, sequence in first.items()]


_Ranks = tuple[int, ...]


def _standing(
    world: World, group: Group, sequence: int, first: Mapping[int, int]
) -> tuple[_Ranks, _Ranks, _Ranks, _Ranks]:
    """Absent, silent, behind and ahead members of one call; one tuple each, shared by all who wait in it."""
    since = _first_issue_ns(group, sequence)
    absent, behind, ahead = [], [], []
    for rank in sorted(group.members):
        if rank not in world.traces:
            continue
        view = group.views.get(rank)
        if view is None or not view.issued(sequence):
            if not _evicted(world, group, rank, since):
                absent.append(rank)
        elif first.get(rank, sequence + 1) > sequence:
            ahead.append(rank)
        elif first[rank] < sequence:
            behind.append(rank)
    silent = tuple(rank for rank in sorted(group.members) if rank not in world.traces)
    return tuple(absent), silent, tuple(behind), tuple(ahead)


def build(world: World, pairing: Pairing, bad_calls: Mapping[int, int], forced: Iterable[int]) -> WaitGraph:
    """The graph of one look. Many ranks waiting for many go through one node per call, numbered below zero.

    Args:
        bad_calls: number of a group in ``world.groups`` -> first mismatched call; members open there or later
            wait because of it, not for who is absent.
        forced: ranks already known as roots; they wait for nobody.
    """
    graph = WaitGraph()
    roots = set(forced)
    oldest = _oldest_open(world)
    for number, group in enumerate(world.groups):
        calls: dict[int, int] = {}
        for wait in waits_in(world, group):
            if number in bad_calls and wait.sequence >= bad_calls[number]:
                graph.joined.append((wait.rank, next(iter(group.views))))
                continue
            graph.open.append(wait)
            targets = {*wait.absent, *wait.silent, *wait.behind}
            if not targets:
                graph.joined.append((wait.rank, next(iter(group.views))))
                _soften(graph, wait, oldest)
                continue
            if wait.sequence not in calls:
                graph.calls += 1
                calls[wait.sequence] = -graph.calls
                graph.edges[-graph.calls] = targets
            if wait.rank not in roots:
                graph.edges[wait.rank].add(calls[wait.sequence])
    for half in pairing.unmatched:
        if half.rank not in roots:
            graph.edges[half.rank].add(half.peer)
    for a, b in pairing.joined:
        graph.joined.append((a.rank, b.rank))
        for one, other in ((a, b), (b, a)):
            if other.at > oldest.get(other.rank, other.at):
                graph.soft[one.rank].add(other.rank)
    return graph


def _oldest_open(world: World) -> dict[int, int]:
    """Entry of the oldest open call of each rank, of any group and kind."""
    oldest: dict[int, int] = {}
    for group in world.groups:
        for rank, view in group.views.items():
            first = view.entry(view.open[0]) if view.open else None
            for at in (first, view.p2p_open[0] if view.p2p_open else None):
                if at is not None:
                    oldest[rank] = min(oldest.get(rank, at), at)
    return oldest


def _soften(graph: WaitGraph, wait: Wait, oldest: Mapping[int, int]) -> None:
    """All have issued the call; those with older open work hold it up."""
    key = (id(wait.group), wait.sequence)
    node = graph.held.get(key)
    if node is None:
        graph.calls += 1
        node = graph.held[key] = -graph.calls
        for rank, view in wait.group.views.items():
            at = view.entry(wait.sequence)
            if at is not None and at > oldest.get(rank, at):
                graph.soft[node].add(rank)
    if wait.rank not in graph.soft[node] and graph.soft[node]:
        graph.soft[wait.rank].add(node)


def reaches(graph: WaitGraph, start: int, goals: Container[int]) -> bool:
    """Whether ``start`` waits, also softly, for one of ``goals``, directly or through others."""
    seen, stack = {start}, [start]
    while stack:
        node = stack.pop()
        for target in (graph.edges.get(node, set()) | graph.soft.get(node, set())) - seen:
            if target in goals:
                return True
            seen.add(target)
            stack.append(target)
    return False


def components(graph: WaitGraph) -> list[frozenset[int]]:
    """Ranks bound by waiting or by a shared open call: one stall each."""
    parent: dict[int, int] = {}

    def top(rank: int) -> int:
        parent.setdefault(rank, rank)
        while parent[rank] != rank:
            parent[rank] = parent[parent[rank]]
            rank = parent[rank]
        return rank

    for rank, targets in graph.edges.items():
        for target in targets:
            parent[top(rank)] = top(target)
    for ranks in graph.joined:
        for rank in ranks:
            parent[top(rank)] = top(ranks[0])
    sets: dict[int, set[int]] = defaultdict(set)
    for rank in list(parent):
        sets[top(rank)].add(rank)
    ranks_only = (frozenset(r for r in s if r >= 0) for s in sets.values())
    return sorted((s for s in ranks_only if s), key=min)


def upstream(graph: WaitGraph, root: int) -> set[int]:
    """Every rank that waits for ``root``, directly or through others."""
    reverse: dict[int, set[int]] = defaultdict(set)
    for rank, targets in graph.edges.items():
        for target in targets:
            reverse[target].add(rank)
    seen: set[int] = set()
    stack = [root]
    while stack:
        for rank in reverse[stack.pop()] - seen:
            seen.add(rank)
            stack.append(rank)
    return {rank for rank in seen if rank >= 0} - {root}


def cycles(graph: WaitGraph) -> list[frozenset[int]]:
    """Strong components of two ranks or more that wait for nobody outside: nothing else explains them.

    Tarjan's algorithm without recursion. Source: Tarjan 1972, SIAM J. Comput. 1(2).
    """
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    on_stack: set[int] = set()
    stack: list[int] = []
    found = []
    for start in sorted(graph.edges):
        if start in index:
            continue
        work = [(start, iter(sorted(graph.edges.get(start, ()))))]
        index[start] = low[start] = len(index)
        stack.append(start)
        on_stack.add(start)
        while work:
            rank, targets = work[-1]
            target = next(targets, None)
            if target is None:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[rank])
                if low[rank] == index[rank]:
                    found.append(_pop_component(stack, on_stack, rank))
            elif target not in index:
                index[target] = low[target] = len(index)
                stack.append(target)
                on_stack.add(target)
                work.append((target, iter(sorted(graph.edges.get(target, ())))))
            elif target in on_stack:
                low[rank] = min(low[rank], index[target])
    closed = [c for c in found if all(graph.edges.get(node, set()) <= c for node in c)]
    ranks = [frozenset(node for node in c if node >= 0) for c in closed]
    return sorted((c for c in ranks if len(c) > 1), key=min)


def _pop_component(stack: list[int], on_stack: set[int], root: int) -> frozenset[int]:
    members = set()
    while True:
        rank = stack.pop()
        on_stack.discard(rank)
        members.add(rank)
        if rank == root:
            return frozenset(members)


def op_of(wait: Wait) -> str:
    """Operation of the call the rank waits in."""
    at = wait.view.entry(wait.sequence)
    return wait.view.trace.entries.op[at] if at is not None else "unknown"


def by_call(graph: WaitGraph) -> dict[tuple[int, int], list[Wait]]:
    calls: dict[tuple[int, int], list[Wait]] = defaultdict(list)
    for wait in graph.open:
        calls[(id(wait.group), wait.sequence)].append(wait)
    return calls
