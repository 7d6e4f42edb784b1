"""Process groups of a job, put together from what every dump says of them.

In: ``Observation``. Out: ``World``: a ``Group`` per (name, description, members), with the rows of those
that left a dump. Members come from the hook, else from pg_config, else from who recorded the group (gloo).
Never keyed by pg_id, which is a process's own counter. A ``View`` of a member is built when it is asked for.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from clusterwatch.analysis import members as shapes
from clusterwatch.analysis.columns import View
from clusterwatch.analysis.model import GroupRef, KnownGroup, Observation
from clusterwatch.analysis.rows import Calls, JobRows
from clusterwatch.analysis.tables import Numbers, Window
from clusterwatch.analysis.window import reduce
from collectors.formats.columns import NULL, TraceColumns, from_trace

GroupKey = tuple[str, str, tuple[int, ...]]


class Views(Mapping[int, View]):
    """rank -> ``View`` of the members that left a dump, by rising rank."""

    def __init__(self, rows: JobRows, mine: Numbers) -> None:
        self._rows = rows
        self._mine = mine
        self._built: dict[int, View] = {}

    @functools.cached_property
    def row_of(self) -> dict[int, int]:
        """rank -> row of ``JobRows``."""
        return dict(zip(self._rows.rank[self._mine].tolist(), self._mine.tolist(), strict=True))

    def __getitem__(self, rank: int) -> View:
        view = self._built.get(rank)
        if view is None:
            row = self.row_of[rank]
            window = self._rows.windows[self._rows.owner[row]]
            view = self._built[rank] = View(window, int(self._rows.index[row]))
        return view

    def __contains__(self, rank: object) -> bool:
        return rank in self.row_of

    def __iter__(self) -> Iterator[int]:
        return iter(self.row_of)

    def __len__(self) -> int:
        return len(self._mine)


class Group:
    """One process group. ``members`` in the order of group ranks where a dump or the hook says it."""

    def __init__(
        self, name: str, desc: str, members: tuple[int, ...], certain: bool, ordered: tuple[int, ...] = ()
    ) -> None:
        self.name = name
        self.desc = desc
        self.members = members
        self.certain = certain
        """members are told, not inferred from who recorded the group"""
        self.ordered = ordered or tuple(sorted(members))
        """members, rising"""
        self.number = NULL
        """place in ``World.groups``"""

    def take(self, rows: JobRows, mine: Numbers, number: int) -> None:
        """``mine``: rows of the members that left a dump, by rising rank."""
        self.rows, self.mine, self.number = rows, mine, number
        self.views = Views(rows, mine)

    def enlarge(self, members: tuple[int, ...]) -> None:
        """Takes ``members`` for the group's, once more of them are known."""
        self.members = self.ordered = tuple(sorted(members))

    @property
    def ref(self) -> GroupRef:
        return GroupRef(self.name, self.desc, self.ordered)

    @property
    def key(self) -> GroupKey:
        return (self.name, self.desc, self.ordered)

    @property
    def role(self) -> str:
        """What siblings share: the description, or the name where there is none."""
        return self.desc or self.name

    @functools.cached_property
    def high(self) -> int | None:
        """The newest call any member has issued."""
        highest = int(self.rows.high[self.mine].max())
        return None if highest == NULL else highest

    @property
    def calls(self) -> Calls:
        """Kept calls of all members."""
        return self.rows.calls_of(self.mine)

    def issued(self, sequence: int) -> tuple[int, ...]:
        """Members that have issued a call, rising."""
        made = self.mine[(self.rows.high[self.mine] >= sequence) & (self.rows.high[self.mine] != NULL)]
        return tuple(self.rows.rank[made].tolist())

    @functools.cached_property
    def lacking(self) -> tuple[int, ...]:
        """Members without a row, rising: they left no dump, or one that does not know the group."""
        if len(self.mine) == len(self.ordered):
            return ()
        return tuple(rank for rank in self.ordered if rank not in self.views)


@dataclass(eq=False)
class World:
    """All groups and windows of one observation."""

    size: int
    groups: list[Group]
    """sorted by key, so that no answer depends on the order of files"""
    windows: dict[int, Window]
    """one per rank, by rising rank"""
    rows: JobRows
    no_dump: tuple[int, ...]
    """ranks of the world that left no dump"""
    first_issue: dict[tuple[int, int], int | None] = field(default_factory=dict)
    """(group, sequence) -> when a member first made the call, ns, as far as asked for"""

    @functools.cached_property
    def place(self) -> dict[int, int]:
        """rank -> index into ``rows.windows``"""
        return {rank: number for number, rank in enumerate(self.windows)}

    def groups_of(self, rank: int) -> list[Group]:
        """Groups that the rank's dump knows, in their order."""
        if rank not in self.place:
            return []
        first, end = self.rows.bounds(self.place[rank])
        numbers = {number for number in self.rows.number[first:end].tolist() if number != NULL}
        return [self.groups[number] for number in sorted(numbers)]

    def group_at(self, rank: int, index: int) -> Group | None:
        """The group that the rank's dump lists at ``index``."""
        first, _ = self.rows.bounds(self.place[rank])
        number = int(self.rows.number[first + index])
        return None if number == NULL else self.groups[number]


def reduced(observation: Observation) -> list[Window]:
    """All windows of an observation; traces are reduced. Cost: O(entries)."""
    traces = (t if isinstance(t, TraceColumns) else from_trace(t) for t in observation.traces)
    return [*observation.windows, *map(reduce, traces)]


def newest(windows: list[Window]) -> dict[int, Window]:
    """One window per rank: the newest by its newest call, then by content, never by order."""
    chosen: dict[int, Window] = {}
    for window in windows:
        kept = chosen.get(window.rank)
        if kept is None or _age_key(window) > _age_key(kept):
            chosen[window.rank] = window
    return dict(sorted(chosen.items()))


def _age_key(window: Window) -> tuple[int, int, int, bytes, str]:
    content = window.groups.tobytes() + window.calls.tobytes()
    return (window.taken_ns or 0, window.newest_ns or 0, window.entry_count, content, window.source)


def build(observation: Observation, size: int | None = None) -> World:
    """Groups, members and rows.

    Args:
        size: ranks the world has at least, known from dumps that are not part of ``observation``.

    Cost: O(ranks x groups) in numpy, O(different groups) in Python.
    """
    windows = newest(reduced(observation))
    rows = JobRows.of(tuple(windows.values()))
    placing = _Placing(rows, observation.groups)
    told = observation.world_size or max(_told_size(observation, windows, placing), size or 0)
    placing.settle(range(told))
    found = placing.groups
    whole = observation.world_size or max(told, shapes.lone_rank(found, told))
    for group in found:
        if shapes.is_world(group.name, group.desc) and len(group.members) == told < whole:
            group.enlarge(tuple(range(whole)))
    shapes.complete(found, whole)
    silent = tuple(rank for rank in range(whole) if rank not in windows)
    return World(whole, _numbered(rows, found), windows, rows, silent)


def _told_size(observation: Observation, windows: Mapping[int, Window], placing: _Placing) -> int:
    highest = max((group.ordered[-1] for group in placing.groups if group.ordered), default=-1)
    known = max((max(group.ranks) for group in observation.groups if group.ranks), default=-1)
    return max(highest, known, *windows, *observation.facts, -1) + 1


def _numbered(rows: JobRows, found: list[Group]) -> list[Group]:
    """Gives each group its rows and its number; one row per rank and group, the newest life of the group."""
    ordered = sorted(range(len(found)), key=lambda place: found[place].key)
    number_of = np.full(len(found) + 1, NULL)
    number_of[ordered] = np.arange(len(ordered))
    rows.number = number_of[rows.number]
    _drop_older_lives(rows)
    order = np.argsort(rows.number, kind="stable")
    starts = np.searchsorted(rows.number[order], np.arange(len(found) + 1))
    for number, place in enumerate(ordered):
        found[place].take(rows, order[starts[number] : starts[number + 1]], number)
    return [found[place] for place in ordered]


def _drop_older_lives(rows: JobRows) -> None:
    """A group made again under its name is listed twice in a dump: its newest life counts, the last one with
    a call; groups are listed as they first appear."""
    used = (rows.groups["call_count"] > 0) | (rows.groups["p2p_count"] > 0)
    key = rows.owner * (int(rows.number.max(initial=0)) + 2) + rows.number
    order = np.lexsort((rows.index, used, key))
    double = key[order][1:] == key[order][:-1]
    rows.number[order[:-1][double]] = NULL


class _Placing:
    """Gives rows to groups. ``rows.number`` is an index into ``groups`` until the groups are sorted."""

    def __init__(self, rows: JobRows, known: tuple[KnownGroup, ...]) -> None:
        self.rows = rows
        self.groups: list[Group] = []
        self.by_key: dict[GroupKey, int] = {}
        self.known: dict[str, list[KnownGroup]] = defaultdict(list)
        for group in known:
            self.known[group.name].append(group)
        self.sorted: dict[int, tuple[tuple[int, ...], tuple[int, ...]]] = {}
        self.loose: dict[tuple[str, str], list[int]] = defaultdict(list)
        self._place_all()

    def _place_all(self) -> None:
        rows = self.rows
        _, first, inverse = np.unique(rows.groups["key"], return_index=True, return_inverse=True)
        order = np.argsort(inverse, kind="stable")
        starts = np.searchsorted(inverse[order], np.arange(len(first) + 1)).tolist()
        numbers = np.full(len(first), NULL)
        for same, row in enumerate(first.tolist()):
            told = rows.windows[rows.owner[row]].told_groups[rows.index[row]]
            ranks = told.ranks
            ordered = self._ordered(ranks)
            candidates = [k for k in self.known.get(told.name, ()) if k.desc == told.desc or not k.desc]
            agreed = [k for k in candidates if self._ordered(k.ranks) == ordered]
            if ranks and len(agreed) == len(candidates):
                numbers[same] = self._number(told.name, told.desc, ranks, ordered)
            else:
                self._place(order[starts[same] : starts[same + 1]].tolist(), told.name, told.desc, ranks)
        placed = numbers[inverse]
        rows.number = np.where(placed != NULL, placed, rows.number)

    def _place(self, rows: list[int], name: str, desc: str, told: tuple[int, ...]) -> None:
        """Row by row: the hook says other members than the dump, or the dump says none."""
        candidates = [k for k in self.known.get(name, ()) if k.desc == desc or not k.desc]
        of_rank: dict[int, list[KnownGroup]] = defaultdict(list)
        for group in candidates:
            for rank in group.ranks:
                of_rank[rank].append(group)
        used = (self.rows.groups["call_count"] > 0) | (self.rows.groups["p2p_count"] > 0)
        for row in rows:
            same = of_rank.get(int(self.rows.rank[row]), ())
            ranks = same[0].ranks if len(same) == 1 else told
            if ranks:
                self.rows.number[row] = self._number(name, desc, ranks, self._ordered(ranks))
            elif used[row]:
                self.loose[(name, desc)].append(row)

    def _ordered(self, ranks: tuple[int, ...]) -> tuple[int, ...]:
        """Ranks of a job share one list, read once: it is sorted once too."""
        known = self.sorted.get(id(ranks))
        if known is None:
            known = self.sorted[id(ranks)] = (ranks, tuple(sorted(ranks)))
        return known[1]

    def _number(self, name: str, desc: str, members: tuple[int, ...], ordered: tuple[int, ...]) -> int:
        number = self.by_key.setdefault((name, desc, ordered), len(self.groups))
        if number == len(self.groups):
            self.groups.append(Group(name, desc, members, certain=True, ordered=ordered))
        return number

    def settle(self, world: range) -> None:
        """Places rows whose dump did not tell the members."""
        named: dict[tuple[str, str], list[int]] = defaultdict(list)
        for number, group in enumerate(self.groups):
            named[(group.name, group.desc)].append(number)
        for (name, desc), rows in sorted(self.loose.items()):
            left = []
            for row in rows:
                rank = int(self.rows.rank[row])
                fitting = [n for n in named.get((name, desc), ()) if rank in self.groups[n].members]
                if len(fitting) == 1:
                    self.rows.number[row] = fitting[0]
                else:
                    left.append(row)
            if left:
                whole = shapes.is_world(name, desc)
                recorded = tuple(sorted({int(self.rows.rank[row]) for row in left}))
                members = tuple(world) if whole else recorded
                self.rows.number[left] = self._loose_number(name, desc, members, whole)

    def _loose_number(self, name: str, desc: str, members: tuple[int, ...], whole: bool) -> int:
        number = self.by_key.setdefault((name, desc, members), len(self.groups))
        if number == len(self.groups):
            self.groups.append(Group(name, desc, members, certain=whole))
        return number
