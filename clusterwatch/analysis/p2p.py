"""Sends and receives that found no counterpart, per ordered pair of ranks.

In: ``World``. Out: ``Unmatched`` per open send or receive whose peer never made the other half, and
``Matched`` pairs that both ranks made and neither finished. p2p sequence numbers count per rank, so they
are never compared between ranks: halves pair in the order they were issued.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from typing import Final

from clusterwatch.analysis.columns import View
from clusterwatch.analysis.groups import Group, World

_NAME: Final = re.compile(r"(send) (\d{1,7})->(\d{1,7})|(recv) (\d{1,7})<-(\d{1,7})")


@dataclass(frozen=True, slots=True, eq=False)
class Half:
    """One open send or receive: what ``rank`` waits in, and which ``peer`` holds the other half."""

    rank: int
    peer: int
    group: Group
    sends: bool
    at: int
    """entry in the rank's trace"""
    sizes: tuple[tuple[int, ...], ...]

    @property
    def view(self) -> View:
        return self.group.views[self.rank]

    @property
    def sequence(self) -> int | None:
        return self.view.trace.entries.p2p_sequence[self.at]

    @property
    def op(self) -> str:
        return self.view.trace.entries.op[self.at]


@dataclass(frozen=True, slots=True)
class Pairing:
    unmatched: tuple[Half, ...]
    joined: tuple[tuple[Half, Half], ...]
    """both halves made, neither finished"""
    wrong_size: tuple[tuple[Half, Half], ...]


def _half(group: Group, view: View, at: int) -> Half | None:
    """Numbers in the name are group ranks; without known members the world's numbers are taken."""
    match = _NAME.fullmatch(view.trace.entries.op[at])
    if match is None:
        return None
    sends = match[1] is not None
    number = int(match[3] if sends else match[6])
    if number >= len(group.members):
        return None
    entries = view.trace.entries
    sizes = entries.input_sizes[at] or entries.output_sizes[at]
    return Half(view.rank, group.members[number], group, sends, at, sizes)


def pair(world: World) -> Pairing:
    """Pairs the open halves of every ordered pair of ranks. Cost: O(open sends and receives)."""
    open_halves: dict[tuple[int, int, int], tuple[list[Half], list[Half]]] = defaultdict(lambda: ([], []))
    for number, group in enumerate(world.groups):
        for view in group.views.values():
            for at in view.p2p_open:
                half = _half(group, view, at)
                if half is None:
                    continue
                pair_key = (half.rank, half.peer) if half.sends else (half.peer, half.rank)
                open_halves[(number, *pair_key)][0 if half.sends else 1].append(half)
    unmatched: list[Half] = []
    joined: list[tuple[Half, Half]] = []
    for _, (sends, receives) in sorted(open_halves.items()):
        both = min(len(sends), len(receives))
        joined += zip(sends[:both], receives[:both], strict=True)
        unmatched += sends[both:] + receives[both:]
    wrong = tuple(p for p in joined if p[0].sizes and p[1].sizes and p[0].sizes != p[1].sizes)
    return Pairing(tuple(h for h in unmatched if h.peer in world.traces), tuple(joined), wrong)


def _used_before(half: Half, peer: int) -> bool:
    """Whether ``half.rank`` moved data the same way with ``peer`` earlier in its ring, bar open halves."""
    members, view = half.group.members, half.view
    mine, other = members.index(half.rank), members.index(peer)
    wanted = f"send {mine}->{other}" if half.sends else f"recv {mine}<-{other}"
    entries, skip = view.trace.entries, set(view.p2p_open)
    return any(
        entries.op[at] == wanted and entries.group[at] == view.index and at not in skip
        for at in range(len(entries))
    )


@dataclass(frozen=True, slots=True)
class Misdirected:
    """``half`` goes to a peer that has no counterpart, while ``starving`` waits for just such a half."""

    half: Half
    starving: Half
    sure: bool
    """the ring shows that the starving rank is the usual peer and the addressed one never was"""


def wrong_peer(pairing: Pairing) -> list[Misdirected]:
    """Ranks that address one peer while another waits for them; not where both peers are usual ones."""
    found = []
    for half in pairing.unmatched:
        for starving in pairing.unmatched:
            crossed = starving.sends is not half.sends and starving.peer == half.rank
            if not crossed or starving.rank == half.peer or starving.group is not half.group:
                continue
            usual, strange = _used_before(half, starving.rank), not _used_before(half, half.peer)
            if strange:
                found.append(Misdirected(half, starving, usual))
                break
    return found
