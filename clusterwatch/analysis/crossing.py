"""Rings of ranks that each wait in a send or receive whose other half comes after what its peer waits in.

In: ``World``, ``Pairing``. Out: ``Crossing`` per ring. Two ranks that both send first may have issued both
halves of both exchanges all the same, since a host does not wait for the GPU; so nothing lacks a counterpart,
and still nothing ends. What is issued on one communicator runs in order; a batch runs as one.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from clusterwatch.analysis import waitfor
from clusterwatch.analysis.groups import World
from clusterwatch.analysis.p2p import Half, Pairing
from clusterwatch.analysis.root import Root
from clusterwatch.analysis.sentence import noun
from clusterwatch.analysis.waitfor import WaitGraph

_WHY_MAX: Final = 4
"""Exchanges of a ring that are told one by one."""


@dataclass(frozen=True, slots=True)
class Crossing:
    """``halves``: what each rank of the ring waits in first, one per peer that cannot answer."""

    halves: tuple[Half, ...]
    ordered: bool
    """the later halves certainly wait for the earlier ones: one communicator, or starts that were seen"""

    @property
    def ranks(self) -> frozenset[int]:
        return frozenset(half.rank for half in self.halves)


def find(world: World, pairing: Pairing) -> list[Crossing]:
    """Closed rings, by rising rank. Cost: O(open sends and receives)."""
    heads = _heads(pairing)
    blocked = _blocked(pairing, heads)
    edges: dict[int, list[int]] = defaultdict(list)
    for half in blocked:
        edges[half.rank].append(half.peer)
    found = []
    for ring in waitfor.cycles(WaitGraph(edges=edges)) if pairing.joined else ():
        halves = tuple(half for half in blocked if half.rank in ring and half.peer in ring)
        found.append(Crossing(halves, _ordered(world, halves)))
    return found


def root(ring: Sequence[Half], certainty: float = 0.7) -> Root:
    """The finding on a ring of halves: either end may be the wrong one, so all are suspects.

    Who made a send too many and who left out the receive look alike, and so do those who send first.
    """
    ends = tuple(sorted({rank for half in ring for rank in (half.rank, half.peer)}))
    first = min(ring, key=lambda half: (half.created_ns, half.rank))
    why = [f"rank {half.rank} waits in {half.text} for rank {half.peer}" for half in ring[:_WHY_MAX]]
    found = Root(
        "p2p_unmatched", (), ends, first.group, first.sequence, first.op,
        cause="circular_wait", why=why, certainty=certainty,
    )  # fmt: skip
    ways = {half.sends for half in ring}
    if len(ways) == 1 and {half.rank for half in ring} == set(ends):
        found.told = _told(ends, first.sends)
    return found


def _told(ends: tuple[int, ...], sends: bool) -> str:
    way, other = ("send", "receive") if sends else ("receive", "send")
    if len(ends) == 2:
        return f"{noun(ends)} both {way} first, and each waits for the other's {other}"
    return f"{noun(ends, 4)} all {way} first in a ring, and each waits for the next's {other}"


def judge(crossing: Crossing) -> Root:
    """A ring of which both halves of some exchange were issued."""
    found = root(crossing.halves, 0.8 if crossing.ordered else 0.5)
    if any(half.sends for half in crossing.halves):
        found.why.append(
            "a send that fits the transport's buffers may end before its receive comes; these have not ended"
        )
    found.why.append(f"the other halves were issued behind these{_IN_ORDER if crossing.ordered else _UNSEEN}")
    return found


_IN_ORDER: Final = ", and run in that order"
_UNSEEN: Final = "; where streams of their own run them, they do not wait, and a link is to blame instead"


_Unit = tuple[int, int | None]
"""Number of a group and p2p number: one send or receive, or all of one batch."""


def _unit(half: Half) -> _Unit:
    return half.group.number, half.sequence


def _heads(pairing: Pairing) -> dict[int, _Unit]:
    """What each rank waits in first, where that is a send, a receive or a batch."""
    halves = [*pairing.unmatched, *itertools.chain.from_iterable(pairing.joined)]
    return {half.rank: _unit(half) for half in halves if half.end_is_told and not half.held_up}


def _blocked(pairing: Pairing, heads: dict[int, _Unit]) -> list[Half]:
    """First halves whose counterpart is not what the peer waits in, or was never issued."""
    found = [half for half in pairing.unmatched if heads.get(half.rank) == _unit(half)]
    for pair in pairing.joined:
        for half, other in (pair, pair[::-1]):
            behind = heads.get(other.rank) != _unit(other) and not other.started
            if heads.get(half.rank) == _unit(half) and behind:
                found.append(half)
    return sorted(found, key=lambda half: (half.rank, half.peer, half.row))


def _ordered(world: World, halves: tuple[Half, ...]) -> bool:
    one_pair = len({half.rank for half in halves}) == 2 and len({half.group.number for half in halves}) == 1
    return one_pair or all(world.windows[half.rank].timed and half.started for half in halves)
