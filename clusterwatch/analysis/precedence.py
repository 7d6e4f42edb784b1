"""Which of two calls comes first in the job's program, by ranks that made both in groups of the same kinds.

In: ``World`` and the open calls of a closed ring of waiting. Out: the ranks of the ring that went on past a
call which all their equals make first. Sibling groups run one program, so call 51 of one tensor group comes
where call 51 of the others does; a rank counts as an equal only where it did so before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from clusterwatch.analysis import pattern
from clusterwatch.analysis.groups import Group, World
from clusterwatch.analysis.pattern import Token
from clusterwatch.analysis.window import TAIL_CALLS

_WITNESSES_MAX: Final = 32
"""Ranks whose programs are read per question."""

Call = tuple[Group, int]
"""group, sequence"""
_Kind = tuple[str, int]
"""role and size: groups of one kind are siblings"""
_Step = tuple[_Kind, int]
"""kind and sequence: comparable between ranks of sibling groups"""


@dataclass(frozen=True, slots=True)
class _Program:
    """The newest calls of a rank in the order it made them, each once."""

    steps: list[_Step]
    tokens: list[Token]
    place: dict[_Step, int]
    groups: Mapping[_Kind, Group]
    """the kinds of which the rank has one group"""
    whole: bool
    """from the rank's first call on"""

    def before(self, at: int, kind: _Kind) -> int | None:
        """The last call of a kind made before a place; 0 for none, None where it cannot be told."""
        found = next((number for one, number in reversed(self.steps[:at]) if one == kind), None)
        return 0 if found is None and self.whole else found


def passed_over(world: World, calls: Mapping[Call, Sequence[int]], ring: frozenset[int]) -> dict[int, int]:
    """Ranks of the ring that wait in one call and lack another one that comes first for most of their equals.

    Args:
        calls: the ring's open calls, with the ranks of the ring that wait in each.

    Returns:
        rank -> how many equals bear witness: more than there are ranks accused, since equals may deviate too.
    """
    programs: dict[int, _Program] = {}

    def program(rank: int) -> _Program:
        if rank not in programs:
            programs[rank] = _program(world, rank)
        return programs[rank]

    found: dict[int, int] = {}
    for made, ranks in calls.items():
        for lacked in calls:
            for rank in ranks if made[0] is not lacked[0] else ():
                if rank not in lacked[0].members or rank in lacked[0].issued(lacked[1]):
                    continue
                steps = (_kind(made[0]), made[1]), (_kind(lacked[0]), lacked[1])
                others = _others(world, (made[0], lacked[0]), ring)
                votes = Counter(_witness(program(rank), program(other), *steps) for other in others)
                if votes[True] > votes[False]:
                    found[rank] = max(found.get(rank, 0), votes[True])
    return {rank: votes for rank, votes in found.items() if votes > len(found)}


def _others(world: World, groups: tuple[Group, Group], ring: frozenset[int]) -> Iterator[int]:
    """Ranks outside of the ring: members of its groups, then of their siblings."""
    seen = set(ring)
    siblings = [g for g in world.groups if any(_kind(g) == _kind(one) for one in groups)]
    for group in (*groups, *siblings):
        for rank in group.views:
            if len(seen) - len(ring) >= _WITNESSES_MAX:
                return
            if rank not in seen:
                seen.add(rank)
                yield rank


def _witness(mine: _Program, other: _Program, made: _Step, lacked: _Step) -> bool | None:
    """Whether an equal makes ``lacked`` before ``made``; None where it is no equal or has made neither."""
    issued = [_issued(other, step) for step in (made, lacked)]
    if None in issued or not any(issued) or not _alike(mine, other, made, lacked):
        return None
    if not all(issued):
        return bool(issued[1])
    places = [other.place.get(step) for step in (made, lacked)]
    if places == [None, None]:
        return None
    first, second = (
        -1 if place is None else place for place in places
    )  # one not held is older than the ring
    return second < first


def _issued(program: _Program, step: _Step) -> bool | None:
    group = program.groups.get(step[0])
    if group is None:
        return None
    newest = program.before(len(program.steps), step[0])
    return None if newest is None else newest >= step[1]


def _alike(mine: _Program, other: _Program, made: _Step, lacked: _Step) -> bool:
    """One program: as many calls of the one kind before the last common call of the other, or, at the first
    of them, the very same calls but for the lacked one."""
    kind, number = made
    at = mine.place.get((kind, number - 1)), other.place.get((kind, number - 1))
    if at[0] is not None and at[1] is not None:
        counts = mine.before(at[0], lacked[0]), other.before(at[1], lacked[0])
        return None not in counts and counts[0] == counts[1]
    if not (mine.whole and other.whole) or made not in mine.place:
        return False
    here = mine.tokens[: mine.place[made]]
    there = other.tokens[: other.place.get(made, len(other.tokens))]
    if lacked in other.place:
        del there[other.place[lacked] : other.place[lacked] + 1]
    return bool(here) and there[: len(here)] == here


def _program(world: World, rank: int) -> _Program:
    tail = pattern.tail_of(world.windows[rank])
    groups: dict[_Kind, Group] = {}
    several = set()
    for group in world.groups_of(rank):
        several |= {_kind(group)} & groups.keys()
        groups[_kind(group)] = group
    kinds: dict[int, _Kind | None] = {}
    for index in set(tail.groups):
        held = world.group_at(rank, index)
        kinds[index] = None if held is None or _kind(held) in several else _kind(held)
    steps: list[_Step] = []
    tokens: list[Token] = []
    place: dict[_Step, int] = {}
    for token, index, sequence in zip(tail.tokens, tail.groups, tail.sequences, strict=True):
        kind = kinds[index] or ("", index)
        if (kind, sequence) not in place:  # a coalesced call has several entries
            place[(kind, sequence)] = len(steps)
            steps.append((kind, sequence))
            tokens.append(token)
    window = world.windows[rank]
    whole = not window.truncated and len(tail.tokens) < TAIL_CALLS
    known = {kind: group for kind, group in groups.items() if kind not in several}
    return _Program(steps, tokens, place, known, whole)


def _kind(group: Group) -> _Kind:
    return (group.role, group.size)
