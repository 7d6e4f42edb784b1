"""The job's repeating call pattern: a training loop issues the same calls in the same order at each step.

In: ``World``. Out: how far each rank is in the pattern, and ranks whose own sequence breaks it by one call
too many or one too few where their equals' does not.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Final

from clusterwatch.analysis.groups import Group, World
from clusterwatch.analysis.signature import plain
from clusterwatch.analysis.tables import Window
from collectors.formats.columns import Sizes

_WINDOWS: Final = (400, 200, 120, 60)
"""Newest calls of a rank that are searched for a pattern."""
_PERIOD_MAX: Final = 128
"""Calls of one step: a period longer than this would need a ring longer than the windows."""
_REPEATS_MIN: Final = 3

_FOREIGN_TAIL_MAX: Final = 4
"""Calls after the last step (a barrier, a checkpoint) that may follow the pattern."""

Token = tuple[str, str, Sizes, str]
"""group role, operation, input sizes, line of the user's code where the dump holds stacks"""
_Kind = tuple[str, str]

PROGRAMS_MAX: Final = 256
"""Different tails that are judged, the most common and the rarest; equal programs at one point share one."""


@dataclass(frozen=True, slots=True)
class Break:
    """A rank's sequence leaves the pattern at one call."""

    rank: int
    extra: bool
    """one call too many; else one too few"""
    group: Group
    sequence: int | None
    op: str


@dataclass(frozen=True, slots=True)
class Tail:
    """The newest collective calls of a rank in the order it issued them; equal lengths."""

    tokens: list[Token]
    groups: list[int]
    """index of the call's group in the rank's window"""
    sequences: list[int]

    def last(self, count: int) -> Tail:
        return Tail(self.tokens[-count:], self.groups[-count:], self.sequences[-count:])

    def without(self, rare: frozenset[_Kind]) -> Tail:
        if not rare:
            return self
        kept = [place for place, token in enumerate(self.tokens) if token[:2] not in rare]
        tokens, groups, sequences = self.tokens, self.groups, self.sequences
        return Tail([tokens[p] for p in kept], [groups[p] for p in kept], [sequences[p] for p in kept])


def tail_of(window: Window) -> Tail:
    """Calls of an all-to-all are told apart by their name only: their sizes may differ from step to step."""
    roles = [group.desc or group.name for group in window.told_groups]
    signatures, sites = window.call_signatures, (*window.sites, "")
    passed = [(s.op, () if plain(s.op).startswith("alltoall") else s.input_sizes) for s in signatures]
    rows = window.tail
    groups, sequences = rows["group"].tolist(), rows["sequence"].tolist()
    columns = zip(groups, rows["signature"].tolist(), rows["site"].tolist(), strict=True)
    tokens: list[Token] = [(roles[group], *passed[number], sites[site]) for group, number, site in columns]
    return Tail(tokens, groups, sequences)


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


@dataclass(slots=True)
class _Program:
    """Ranks whose tails are equal, so that one is judged for all."""

    ranks: list[int]
    tail: Tail


def _programs(world: World) -> list[_Program]:
    """Every different tail, by its first rank."""
    ranks: dict[int, list[int]] = defaultdict(list)
    for rank, window in world.windows.items():
        ranks[window.tail_key].append(rank)
    chosen = sorted(ranks.values(), key=lambda same: (-len(same), same))
    if len(chosen) > PROGRAMS_MAX:
        chosen = chosen[: PROGRAMS_MAX // 2] + chosen[-PROGRAMS_MAX // 2 :]
    return [_Program(same, tail_of(world.windows[same[0]])) for same in sorted(chosen)]


def breaks(world: World) -> list[Break]:
    """Ranks with one call too many or too few against the period that most ranks keep.

    Only spoken when at least two ranks keep the pattern exactly and those who break it are fewer. Tried on
    shorter and shorter ends of the rings, and without the rarest kinds of call (a barrier of checkpoints),
    until most ranks keep a pattern.
    """
    programs = _programs(world)
    for window in _WINDOWS:
        ends = [_Program(one.ranks, one.tail.last(window)) for one in programs]
        for rare in _rare_kinds(ends):
            plain_ends = [_Program(one.ranks, one.tail.without(rare)) for one in ends]
            judged = [(one, _steady(one.tail.tokens)) for one in plain_ends]
            steady = sum(len(one.ranks) for one, kept in judged if kept is not None)
            if steady * 2 >= len(world.windows) and steady > 1:
                return _against(world, judged, steady)
    return []


def _rare_kinds(ends: list[_Program]) -> list[frozenset[_Kind]]:
    """Nothing, then the rarest kind of call, then the two rarest."""
    counts: Counter[_Kind] = Counter()
    for one in ends:
        for kind, count in Counter(token[:2] for token in one.tail.tokens).items():
            counts[kind] += count * len(one.ranks)
    rarest = [kind for kind, _ in sorted(counts.items(), key=lambda item: (item[1], item[0]))]
    return [frozenset(rarest[:number]) for number in range(min(3, len(rarest)))]


_Kept = tuple[int, frozenset[Token]]


def _against(world: World, judged: list[tuple[_Program, _Kept | None]], steady: int) -> list[Break]:
    patterns: Counter[_Kept] = Counter()
    for one, kept in judged:
        if kept is not None:
            patterns[kept] += len(one.ranks)
    usual = sorted(patterns.items(), key=lambda item: (-item[1], item[0][0]))
    found = []
    for one, kept in judged:
        if kept is not None:
            continue
        for (period, unit), count in usual:
            edit = _edit_against(one.tail.tokens, period, unit) if count > 1 else None
            if edit is not None and not _made_early(one.tail.tokens, period, edit):
                found += [broken for rank in one.ranks if (broken := _break(world, rank, one.tail, edit))]
                break
    shared = Counter(item.group.number for item in found)
    found = [item for item in found if shared[item.group.number] == 1]  # made by its partners too: legal
    return sorted(found, key=lambda item: item.rank) if len(found) < steady else []


def _made_early(tokens: list[Token], period: int, edit: tuple[int, bool]) -> bool:
    """The call too many is the last one, comes once a period and is due soon rather than just over: the rank
    has passed over the calls before it. Whoever waits in those closes a ring, which is judged as one."""
    place, extra = edit
    before = tokens[max(place - period, 0) : place]
    if not extra or place != len(tokens) - 1 or before.count(tokens[place]) != 1:
        return False
    since = len(before) - before.index(tokens[place])
    return period <= 2 * since


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


def _break(world: World, rank: int, tail: Tail, edit: tuple[int, bool]) -> Break | None:
    """``tail`` may be that of another rank of the same program: only the place is taken from it."""
    place, extra = edit
    place = min(place, len(tail.tokens) - 1)
    own = tail_of(world.windows[rank])
    kinds = {token[:2] for token in tail.tokens}
    own = own.without(frozenset(token[:2] for token in own.tokens) - kinds).last(len(tail.tokens))
    group = world.group_at(rank, own.groups[place])
    return None if group is None else Break(rank, extra, group, own.sequences[place], own.tokens[place][1])


def reached(world: World, rank: int) -> dict[str, int]:
    """Role -> calls the rank has made in its groups of that role."""
    found: Counter[str] = Counter()
    for group in world.groups_of(rank):
        found[group.role] += group.views[rank].high or 0
    return dict(found)


def positions(world: World, ranks: list[int]) -> dict[int, float]:
    """How far each rank is, in calls of the pattern; comparable between ranks of one program.

    Counts by role, so a ring that overflowed does not matter: sequence numbers are absolute. Roles that not
    all of ``ranks`` take part in are left out.
    """
    per_rank = {rank: reached(world, rank) for rank in ranks}
    shared = set.intersection(*(set(row) for row in per_rank.values())) if per_rank else set()
    return {rank: float(sum(row[role] for role in shared)) for rank, row in per_rank.items()}


def next_role(world: World, rank: int) -> str | None:
    """Role of the group in which the rank's own pattern has its next call; None without a pattern."""
    tokens = tail_of(world.windows[rank]).tokens
    period = period_of(tokens)
    return tokens[-period][0] if period is not None else None


def came_early(world: World, rank: int) -> bool:
    """Whether a rank's newest call comes once a period and is due soon rather than just over: it has passed
    over the calls before it, and made none too many.
    """
    tokens = tail_of(world.windows[rank]).tokens
    period = period_of(tokens[:-1])
    return period is not None and _made_early(tokens, period, (len(tokens) - 1, True))


def last_is_unexpected(world: World, rank: int) -> bool:
    """Whether a rank's newest call breaks the period that its earlier calls keep.

    One call repeated is no period: it does not say that another one could not follow.
    """
    tokens = tail_of(world.windows[rank]).tokens
    period = period_of(tokens[:-1])
    return period is not None and period > 1 and tokens[-1] != tokens[-1 - period]
