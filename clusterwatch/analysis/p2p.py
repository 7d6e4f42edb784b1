"""Sends and receives that found no counterpart, per ordered pair of ranks.

In: ``World``. Out: ``Pairing``: open sends or receives whose peer never made the other half, and pairs that
both ranks made and neither finished. p2p sequence numbers count per rank, so they are never compared between
ranks: halves pair in the order they were issued. Cost: O(open sends and receives).
"""

from __future__ import annotations

import functools
import re
from collections import defaultdict
from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Final

from clusterwatch.analysis.groups import Group, World
from clusterwatch.analysis.signature import element_count
from clusterwatch.analysis.tables import COLLECTIVE_LOG, Window
from clusterwatch.analysis.window import UNCLOSED_BATCHES
from collectors.formats.columns import NULL, STARTED, Signature, Sizes

_NAME: Final = re.compile(r"(send) (\d{1,7})->(\d{1,7})|(recv) (\d{1,7})<-(\d{1,7})")


@dataclass(frozen=True, slots=True, eq=False)
class Half:
    """One open send or receive: what ``rank`` waits in, and which ``peer`` holds the other half."""

    rank: int
    peer: int
    group: Group
    window: Window
    row: int
    """of ``window.p2p``"""
    sends: bool

    @property
    def recorded(self) -> Signature:
        return self.window.call_signatures[int(self.window.p2p["signature"][self.row])]

    @property
    def op(self) -> str:
        return self.recorded.op

    @property
    def text(self) -> str:
        """The operation, between global ranks."""
        return globally(self.op, self.group.members)

    @property
    def sizes(self) -> Sizes:
        return self.recorded.input_sizes or self.recorded.output_sizes

    @property
    def dtypes(self) -> tuple[str, ...]:
        return self.recorded.input_dtypes or self.recorded.output_dtypes

    @property
    def sequence(self) -> int | None:
        number = int(self.window.p2p["sequence"][self.row])
        return None if number == NULL else number

    @property
    def created_ns(self) -> int:
        return int(self.window.p2p["created_ns"][self.row])

    @property
    def end_is_told(self) -> bool:
        """The recorder would have marked its end."""
        return self.window.backend not in UNCLOSED_BATCHES

    @property
    def started(self) -> bool:
        """It was seen to run; only with the recorder's timing on."""
        return int(self.window.p2p["state"][self.row]) == STARTED

    @property
    def state_is_told(self) -> bool:
        """Its state is its own; a recorder tells one for all calls of a batch."""
        return self.window.version == COLLECTIVE_LOG

    @property
    def held_up(self) -> bool:
        """The rank has open work that is older."""
        oldest = self.window.oldest_open_at
        return oldest is not None and oldest < int(self.window.p2p["at"][self.row])


@dataclass(frozen=True, slots=True)
class Pairing:
    unmatched: tuple[Half, ...] = ()
    joined: tuple[tuple[Half, Half], ...] = ()
    """both halves made, neither finished"""
    wrong_size: tuple[tuple[Half, Half], ...] = ()
    """of those, pairs of other element counts or types"""


@functools.lru_cache(maxsize=65_536)
def _numbers(op: str) -> tuple[bool, int] | None:
    """Direction and the peer's group rank."""
    match = _NAME.fullmatch(op)
    if match is None:
        return None
    sends = match[1] is not None
    return sends, int(match[3] if sends else match[6])


def globally(op: str, members: Sequence[int]) -> str:
    """A send or receive between global ranks, as all else that is told; other operations as they are.

    Args:
        members: global ranks in the order of group ranks.
    """
    match = _NAME.fullmatch(op)
    if match is None:
        return op
    ends = [int(number) for number in match.group(2, 3, 5, 6) if number is not None]
    if max(ends) >= len(members):
        return op
    way, arrow = ("send", "->") if match[1] else ("recv", "<-")
    return f"{way} {members[ends[0]]}{arrow}{members[ends[1]]}"


def _halves(world: World, window: Window) -> list[Half]:
    """Numbers in the name are group ranks; without known members the world's numbers are taken."""
    found = []
    signatures = window.call_signatures
    columns = zip(window.p2p["group"].tolist(), window.p2p["signature"].tolist(), strict=True)
    for row, (index, signature) in enumerate(columns):
        group, numbers = world.group_at(window.rank, index), _numbers(signatures[signature].op)
        if group is None or numbers is None or numbers[1] >= len(group.members):
            continue
        found.append(Half(window.rank, group.members[numbers[1]], group, window, row, numbers[0]))
    return found


def pair(world: World) -> Pairing:
    """Pairs the open halves of every ordered pair of ranks, in record order."""
    waiting: dict[tuple[int, int, int], tuple[list[Half], list[Half]]] = defaultdict(lambda: ([], []))
    for window in world.windows.values():
        for half in _halves(world, window) if window.p2p_bytes else ():
            ends = (half.rank, half.peer) if half.sends else (half.peer, half.rank)
            waiting[(half.group.number, *ends)][0 if half.sends else 1].append(half)
    unmatched: list[Half] = []
    joined: list[tuple[Half, Half]] = []
    for _, (sends, receives) in sorted(waiting.items()):
        both = min(len(sends), len(receives))
        joined += zip(sends[:both], receives[:both], strict=True)
        unmatched += sends[both:] + receives[both:]
    wrong = tuple(pair for pair in joined if _unequal(*pair))
    return Pairing(tuple(unmatched), tuple(joined), wrong)


def _unequal(one: Half, other: Half) -> bool:
    """Other element counts or types; not where a dump does not say."""
    if not (one.sizes and other.sizes):
        return False
    if element_count(one.sizes) != element_count(other.sizes):
        return True
    return bool(one.dtypes and other.dtypes and one.dtypes != other.dtypes)


def _used_before(half: Half, peer: int, either_way: bool = False) -> bool:
    """Whether ``half.rank`` moved data with ``peer`` earlier in its ring, bar open halves: the same way, or
    either way, since a pipeline's first gradient goes back to where its activations came from.
    """
    members, window = half.group.members, half.window
    mine, other = members.index(half.rank), members.index(peer)
    sent, received = f"send {mine}->{other}", f"recv {mine}<-{other}"
    wanted = (sent, received) if either_way else (sent,) if half.sends else (received,)
    index = int(window.p2p["group"][half.row])
    used = window.p2p_pairs["signature"][window.p2p_pairs["group"] == index].tolist()
    return any(window.call_signatures[number].op in wanted for number in used)


def _knows_peers(half: Half) -> bool:
    """Whether the ring can tell a new peer: if it has dropped or not marked what is over, all look new."""
    return half.end_is_told and (len(half.window.p2p_pairs) > 0 or not half.window.truncated)


@dataclass(frozen=True, slots=True)
class Misdirected:
    """``half`` goes to a peer that has no counterpart, while ``starving`` waits for just such a half."""

    half: Half
    starving: Half
    sure: bool
    """the ring shows that the starving rank is the usual peer and the addressed one never was"""


def wrong_peer(pairing: Pairing, heard: Container[int]) -> list[Misdirected]:
    """Ranks that address one peer while another waits for them; not where both peers are usual ones. Where
    others wait for the addressed peer too and it waits for nobody, it is simply late.

    Args:
        heard: ranks that left a dump.
    """
    found = []
    waiting_for: dict[int, set[int]] = defaultdict(set)
    for half in pairing.unmatched:
        waiting_for[half.peer].add(half.rank)
    waiting = {half.rank for half in pairing.unmatched}
    starving_for: dict[tuple[int, int, bool], list[Half]] = defaultdict(list)
    for half in pairing.unmatched:
        starving_for[(half.group.number, half.peer, half.sends)].append(half)
    for half in pairing.unmatched:
        if half.peer not in heard:
            continue
        late = len(waiting_for[half.peer]) > 1 and half.peer not in waiting
        for starving in starving_for[(half.group.number, half.rank, not half.sends)]:
            if starving.rank == half.peer:
                continue
            usual = _used_before(half, starving.rank)
            strange = not _used_before(half, half.peer, either_way=True)
            if strange and _knows_peers(half) and not late:
                found.append(Misdirected(half, starving, usual))
                break
    return found
