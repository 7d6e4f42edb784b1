"""The job's repeating call pattern: a training loop issues the same calls in the same order at each step.

In: ``World``. Out: how far each rank is in the pattern, and ranks whose own sequence breaks it by one call
too many or one too few where their equals' does not.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

from clusterwatch.analysis.groups import Group, World
from clusterwatch.analysis.signature import plain
from clusterwatch.analysis.stacks import user_frame

_WINDOWS: Final = (400, 200, 120, 60)
"""Newest calls of a rank that are searched for a pattern."""
_PERIOD_MAX: Final = 128
"""Calls of one step: a period longer than this would need a ring longer than the windows."""
_REPEATS_MIN: Final = 3

_FOREIGN_TAIL_MAX: Final = 4
"""Calls after the last step (a barrier, a checkpoint) that may follow the pattern."""

Token = tuple[str, str, tuple[tuple[int, ...], ...], str]
"""group role, operation, input sizes, line of the user's code where the dump holds stacks"""


@dataclass(frozen=True, slots=True)
class Break:
    """A rank's sequence leaves the pattern at one call."""

    rank: int
    extra: bool
    """one call too many; else one too few"""
    group: Group
    sequence: int | None
    op: str


def _tokens(world: World, rank: int) -> tuple[list[Token], list[int]]:
    """The newest collective calls of a rank in the order it issued them, with their entries."""
    trace = world.traces[rank]
    entries = trace.entries
    roles = [group.desc or group.name for group in trace.groups]
    tokens: list[Token] = []
    places: list[int] = []
    for at in range(len(entries) - 1, -1, -1):
        if entries.is_p2p[at] or entries.sequence[at] is None:
            continue
        shapes = entries.input_sizes[at]
        if plain(entries.op[at]).startswith("alltoall"):
            shapes = ()  # legal to differ from step to step
        site = user_frame(reversed(entries.frames[at]))
        tokens.append((roles[entries.group[at]], entries.op[at], shapes, site))
        places.append(at)
        if len(tokens) >= _WINDOWS[0]:
            break
    return tokens[::-1], places[::-1]


def period_of(tokens: list[Token]) -> int | None:
    """Smallest period that the whole sequence keeps exactly, at least three times; None without one."""
    for period in range(1, min(_PERIOD_MAX, len(tokens) // _REPEATS_MIN) + 1):
        if tokens[period:] == tokens[:-period]:
            return period
    return None


def _edit(tokens: list[Token], period: int, unit: frozenset[Token]) -> tuple[int, bool] | None:
    """Place and kind of the one call whose removal (or return) makes the sequence keep ``period``."""
    first = next((i for i in range(period, len(tokens)) if tokens[i] != tokens[i - period]), None)
    if first is None:
        return None
    for at in range(first, max(first - period, 0) - 1, -1):
        rest = tokens[:at] + tokens[at + 1 :]
        if rest[period:] == rest[:-period]:
            return at, True
    for at in range(first, max(first - period, 0) - 1, -1):
        lost = tokens[at - period] if at >= period else None
        if lost in unit:
            whole = [*tokens[:at], lost, *tokens[at:]]
            if whole[period:] == whole[:-period]:
                return at, False
    return None


def _kinds(unit: frozenset[Token]) -> set[tuple[str, str]]:
    return {token[:2] for token in unit}


def _steady(tokens: list[Token]) -> tuple[int, frozenset[Token]] | None:
    """Period and its calls, also when a few calls of other kinds follow the last repetition."""
    for tail in range(_FOREIGN_TAIL_MAX + 1):
        body = tokens[: len(tokens) - tail]
        period = period_of(body)
        if period is None or period == 1:
            continue
        unit = frozenset(body[-period:])
        return (period, unit) if not _kinds(frozenset(tokens[len(body) :])) & _kinds(unit) else None
    return None


def breaks(world: World) -> list[Break]:
    """Ranks with one call too many or too few against the period that most ranks keep.

    Only spoken when at least two ranks keep the pattern exactly and those who break it are fewer. Tried on
    shorter and shorter ends of the rings, and without the rarest kinds of call (a barrier of checkpoints),
    until most ranks keep a pattern.
    """
    sequences = {rank: _tokens(world, rank) for rank in world.traces}
    for window in _WINDOWS:
        ends = {rank: (tokens[-window:], places[-window:]) for rank, (tokens, places) in sequences.items()}
        for rare in _rare_kinds(ends):
            plain_ends = {rank: _without(rare, *end) for rank, end in ends.items()}
            judged = {rank: _steady(tokens) for rank, (tokens, _) in plain_ends.items()}
            steady = {rank: kept for rank, kept in judged.items() if kept is not None}
            if len(steady) * 2 >= len(sequences) and len(steady) > 1:
                return _against(world, plain_ends, steady)
    return []


_Kind = tuple[str, str]
_End = tuple[list[Token], list[int]]


def _rare_kinds(ends: dict[int, _End]) -> list[frozenset[_Kind]]:
    """Nothing, then the rarest kind of call, then the two rarest."""
    counts = Counter(token[:2] for tokens, _ in ends.values() for token in tokens)
    rarest = [kind for kind, _ in sorted(counts.items(), key=lambda item: (item[1], item[0]))]
    return [frozenset(rarest[:number]) for number in range(min(3, len(rarest)))]


def _without(rare: frozenset[_Kind], tokens: list[Token], places: list[int]) -> _End:
    kept = [(token, at) for token, at in zip(tokens, places, strict=True) if token[:2] not in rare]
    return [token for token, _ in kept], [at for _, at in kept]


def _against(
    world: World, ends: dict[int, _End], steady: dict[int, tuple[int, frozenset[Token]]]
) -> list[Break]:
    patterns = Counter(steady.values())
    found = []
    for rank, (tokens, places) in ends.items():
        if rank in steady:
            continue
        for (period, unit), count in sorted(patterns.items(), key=lambda item: (-item[1], item[0][0])):
            edit = _edit_against(tokens, period, unit) if count > 1 else None
            if edit is not None:
                found.append(_break(world, rank, places, edit))
                break
    shared = Counter(id(item.group) for item in found)
    found = [item for item in found if shared[id(item.group)] == 1]  # made by its partners too: a legal call
    return found if len(found) < len(steady) else []


def _edit_against(tokens: list[Token], period: int, unit: frozenset[Token]) -> tuple[int, bool] | None:
    """The edit that brings a sequence back to a pattern; None when it is of another kind of program."""
    kinds = _kinds(unit)
    while tokens and tokens[-1][:2] not in kinds:
        tokens = tokens[:-1]
    strange = [token for token in tokens if token not in unit]
    if len(tokens) < _REPEATS_MIN * period or len(strange) > 1:
        return None
    if strange and strange[0] == tokens[-1] and strange[0][:3] not in {token[:3] for token in unit}:
        return None  # its last call passes something else: a mismatch, not a call too many
    return _edit(tokens, period, unit) if _kinds(frozenset(strange)) <= kinds else None


def _break(world: World, rank: int, places: list[int], edit: tuple[int, bool]) -> Break:
    place, extra = edit
    entries = world.traces[rank].entries
    at = places[min(place, len(places) - 1)]
    index = entries.group[at]
    group = next(g for g in world.groups_of(rank) if g.views[rank].index == index)
    return Break(rank, extra, group, entries.sequence[at], entries.op[at])


def positions(world: World, ranks: list[int]) -> dict[int, float]:
    """How far each rank is, in calls of the pattern; comparable between ranks of one program.

    Counts by role, so a ring that overflowed does not matter: sequence numbers are absolute. Roles that not
    all of ``ranks`` take part in are left out.
    """
    per_rank: dict[int, dict[str, int]] = {}
    for rank in ranks:
        reached: Counter[str] = Counter()
        for group in world.groups_of(rank):
            reached[group.role] += group.views[rank].high or 0
        per_rank[rank] = dict(reached)
    shared = set.intersection(*(set(row) for row in per_rank.values())) if per_rank else set()
    return {rank: float(sum(row[role] for role in shared)) for rank, row in per_rank.items()}


def next_role(world: World, rank: int) -> str | None:
    """Role of the group in which the rank's own pattern has its next call; None without a pattern."""
    tokens, _ = _tokens(world, rank)
    period = period_of(tokens)
    return tokens[-period][0] if period is not None else None


def last_is_unexpected(world: World, rank: int) -> bool:
    """Whether a rank's newest call breaks the period that its earlier calls keep."""
    tokens, _ = _tokens(world, rank)
    period = period_of(tokens[:-1])
    return period is not None and tokens[-1] != tokens[-1 - period]
