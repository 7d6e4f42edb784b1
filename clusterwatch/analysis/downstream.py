"""Who merely waits because of each fault: the ranks, and the groups they wait in.

In: the wait graph and all roots. Out: ``Waiting`` per root.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from clusterwatch.analysis import waitfor
from clusterwatch.analysis.root import Root
from clusterwatch.analysis.waitfor import WaitGraph

_WALKS_MAX: Final = 16
"""Up to so many faults have a walk of their own; of more, a rank is counted once, for the nearest one."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """Counts of ranks and of groups with an open call that they wait in."""

    ranks: int = 0
    groups: int = 0


def of_all(graph: WaitGraph, roots: Sequence[Root], others: set[int], mismatched: set[int]) -> list[Waiting]:
    """What waits for each of ``roots``.

    Args:
        others: ranks that wait unseen by the traces; downstream of a root that is alone.
        mismatched: indices of ``roots`` whose whole call stands still.

    Cost: O(edges), at most ``_WALKS_MAX`` times.
    """
    if len(roots) == 1:
        return [_of_one(graph, roots[0], others, bool(mismatched))]
    if len(roots) <= _WALKS_MAX:
        return [_counted(graph, root, waitfor.upstream(graph, root.ranks)) for root in roots]
    nearest: dict[int, set[int]] = {number: set() for number in range(len(roots))}
    for rank, number in _nearest(graph, roots).items():
        nearest[number].add(rank)
    return [_counted(graph, root, nearest[number]) for number, root in enumerate(roots)]


def _of_one(graph: WaitGraph, root: Root, others: set[int], mismatched: bool) -> Waiting:
    """Everybody who waits does so for the only fault there is."""
    ranks = {rank for call in graph.calls for rank in call.waiting} | others
    ranks |= {node for node, targets in graph.edges.items() if node >= 0 and targets}
    if mismatched and root.group is not None:
        ranks |= set(root.group.issued(root.sequence or 0))
    return _counted(graph, root, ranks)


def _counted(graph: WaitGraph, root: Root, ranks: set[int]) -> Waiting:
    if root.verdict != "all_joined_not_finished":
        ranks = ranks - set(root.ranks)
    groups = {call.group.number for rank in ranks for call in graph.by_rank.get(rank, ())}
    return Waiting(len(ranks), len(groups))


def _nearest(graph: WaitGraph, roots: Sequence[Root]) -> dict[int, int]:
    """rank -> the root it is the fewest steps of waiting away from; the earlier root on a tie."""
    label: dict[int, int] = {}
    for number, root in enumerate(roots):
        for rank in root.ranks:
            label.setdefault(rank, number)
    layer = sorted(label)
    while layer:
        reached: dict[int, int] = {}
        for node in layer:
            for source in graph.reverse.get(node, ()):
                if source not in label:
                    reached[source] = min(reached.get(source, label[node]), label[node])
        label |= reached
        layer = sorted(reached)
    return {node: number for node, number in label.items() if node >= 0}
