"""Two calls of different groups that some ranks issued in one order and the rest in the other.

In: calls that all their members have issued and none finished. Out: a ``Root``. On the GPU each rank runs
them in its own order, so both wait for ever though nobody is missing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from clusterwatch.analysis.calls import OpenCall
from clusterwatch.analysis.root import Root
from clusterwatch.analysis.sentence import noun
from clusterwatch.analysis.tables import Numbers


def swapped(calls: Sequence[OpenCall]) -> Root | None:
    """The first pair of ``calls`` (one per call) whose shared members disagree on the order."""
    ordered = sorted(calls, key=lambda call: (call.group.key, call.sequence))
    rank, number, place = _places(ordered)
    pairs, earlier, ranks = _pairs(rank, number, place)
    sides = np.unique(np.stack([pairs, earlier]), axis=1)
    both = sides[0][1:][sides[0][1:] == sides[0][:-1]]
    if not len(both):
        return None
    here = pairs == both[0]
    first, second = divmod(int(both[0]), _SHIFT)
    before, after = (tuple(sorted(ranks[here & (earlier == side)].tolist())) for side in (1, 0))
    return _judge(ordered[first], ordered[second], (before, after))


_SHIFT = 1 << 31


def _places(calls: Sequence[OpenCall]) -> tuple[Numbers, Numbers, Numbers]:
    """Rank, call and place in the ring of everybody who waits in one of ``calls``; by rank, then by call."""
    rank, number, place = [], [], []
    for index, call in enumerate(calls):
        rows = call.group.rows
        mine = call.group.mine[rows.first_open[call.group.mine] == call.sequence]
        rank.append(rows.rank[mine])
        place.append(rows.groups["first_open_at"][mine])
        number.append(np.full(len(mine), index))
    if not rank:
        none: Numbers = np.zeros(0, np.int64)
        return none, none, none
    ranks, numbers = np.concatenate(rank), np.concatenate(number)
    order = np.lexsort((numbers, ranks))
    return ranks[order], numbers[order], np.concatenate(place)[order]


def _pairs(rank: Numbers, number: Numbers, place: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    """Every two calls that one rank waits in: the pair, whether the first is the earlier, and the rank."""
    pairs, earlier, ranks = [], [], []
    for apart in range(1, len(rank)):
        same = rank[apart:] == rank[:-apart]
        if not same.any():
            break
        one, other = np.flatnonzero(same), np.flatnonzero(same) + apart
        pairs.append(number[one] * _SHIFT + number[other])
        earlier.append((place[one] < place[other]).astype(np.int64))
        ranks.append(rank[one])
    if not pairs:
        none: Numbers = np.zeros(0, np.int64)
        return none, none, none
    return np.concatenate(pairs), np.concatenate(earlier), np.concatenate(ranks)


def _judge(first: OpenCall, second: OpenCall, sides: tuple[tuple[int, ...], tuple[int, ...]]) -> Root:
    """Majority of the ranks that are in both calls; suspects on a tie.

    Args:
        sides: ranks that made ``first`` before ``second``, and the others.
    """
    few, many = sorted(sides, key=len)
    tie = len(few) == len(many)
    usual = first if many is sides[0] else second
    texts = [f"{call.op} {call.sequence} of {call.group.title}" for call in (first, second)]
    why = [
        f"{noun(side)} issued {a} before {b}" for side, a, b in zip(sides, texts, texts[::-1], strict=True)
    ]
    return Root(
        "order_mismatch",
        () if tie else few,
        tuple(sorted(few + many)) if tie else (),
        usual.group,
        usual.sequence,
        usual.op,
        why=why,
        certainty=0.6 if tie else 0.9,
    )
