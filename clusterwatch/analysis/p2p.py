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


def used_before(world: World, group: Group, source: int, target: int) -> bool:
    """Whether ``source`` has sent to ``target`` earlier in its ring, finished or not, bar the open halves."""
    view = group.views.get(source)
    if view is None or source not in world.traces:
        return False
    wanted = f"send {group.members.index(source)}->{group.members.index(target)}"
    entries = view.trace.entries
    skip = set(view.p2p_open)
    return any(
        entries.op[at] == wanted and entries.group[at] == view.index and at not in skip
        for at in range(len(entries))
    )


def wrong_peer(world: World, pairing: Pairing) -> list[tuple[Half, Half]]:
    """(misdirected send, starving receive): a rank sends where nobody listens while another waits for it.

    Only where the ring shows that the starving pair is the usual one, or that the misdirected one never was.
    """
    found = []
    receives = [h for h in pairing.unmatched if not h.sends]
    for half in pairing.unmatched:
        if not half.sends:
            continue
        for starving in receives:
            if starving.peer != half.rank or starving.rank == half.peer or starving.group is not half.group:
                continue
            usual = used_before(world, half.group, half.rank, starving.rank)
            odd = used_before(world, half.group, half.rank, half.peer)
            if usual or not odd:
                found.append((half, starving))
                break
    return found
