"""Process groups of a job, put together from what every dump says of them.

In: ``Observation``. Out: ``World``: a ``Group`` per (name, description, members), with the rows of those
that left a dump. Members come from the hook, else from pg_config, else from who recorded the group (gloo).
Never keyed by pg_id, which is a process's own counter.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field

import numpy as np

from clusterwatch.analysis import lives
from clusterwatch.analysis import members as shapes
from clusterwatch.analysis.group import Group
from clusterwatch.analysis.model import Observation
from clusterwatch.analysis.placing import Placing
from clusterwatch.analysis.rows import JobRows
from clusterwatch.analysis.tables import Window
from clusterwatch.analysis.window import reduce
from collectors.formats.columns import NULL

__all__ = ["Group", "World", "build", "newest", "reduced"]


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
    size_told: bool = True
    """False where ``size`` is no more than the highest rank heard of: gloo's dumps name no member"""
    first_issue: dict[tuple[int, int], int | None] = field(default_factory=dict)
    """(group, sequence) -> when a member first made the call, ns, as far as asked for"""

    @functools.cached_property
    def place(self) -> dict[int, int]:
        """rank -> index into ``rows.windows``"""
        return {rank: number for number, rank in enumerate(self.windows)}

    @functools.cached_property
    def _any_gloo(self) -> bool:
        return any(window.gloo for window in self.windows.values())

    def gloo(self, rank: int) -> bool:
        """Whether the rank's sends and receives go unrecorded; an empty ring is like those of its peers."""
        window = self.windows[rank]
        return window.gloo or (not window.entry_count and self._any_gloo)

    @functools.cached_property
    def _siblings(self) -> dict[str, list[Group]]:
        return shapes.by_role(self.groups)

    @functools.cached_property
    def _usual_sizes(self) -> dict[str, int]:
        return {role: shapes.usual_size(same) for role, same in self._siblings.items() if len(same) > 1}

    def knows_members(self, group: Group) -> bool:
        """Whether a group's members are told, or follow from its siblings and from who left a dump.

        Only recorded calls tell of gloo's members: who left no dump may be one more, unless a sibling has it.
        One call has several members, so a group of one is not whole.
        """
        if group.certain or (self.size_told and not self.no_dump):
            return True
        return group.size > 1 and group.size == self._usual_sizes.get(group.role) and self._placed[group.role]

    @functools.cached_property
    def _placed(self) -> dict[str, bool]:
        """Role -> every rank without a dump is a member of one of its groups."""
        silent = set(self.no_dump)
        members = {role: {r for g in same for r in g.members} for role, same in self._siblings.items()}
        return {role: silent <= placed for role, placed in members.items()}

    def torn(self) -> bool:
        """Whether some group shows that a member left no dump: fewer members than its siblings, or one alone
        while no world group holds all who are heard."""
        loose = [group for group in self.groups if not group.certain]
        whole = any(shapes.is_world(g.name, g.desc) and g.size == len(self.windows) > 1 for g in self.groups)
        least = 1 if whole else 2
        return any(group.size < self._usual_sizes.get(group.role, least) for group in loose)

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
    return [*observation.windows, *map(reduce, observation.traces)]


def newest(windows: list[Window]) -> dict[int, Window]:
    """One window per rank: the newest by its newest call, then by content, never by order."""
    chosen: dict[int, Window] = {}
    for window in windows:
        kept = chosen.get(window.rank)
        if kept is None or _age_key(window) > _age_key(kept):
            chosen[window.rank] = window
    return dict(sorted(chosen.items()))


def _age_key(window: Window) -> tuple[int, int, int, bytes, str]:
    content = window.group_bytes + window.call_bytes
    return (window.taken_ns or 0, window.newest_ns or 0, window.entry_count, content, window.source)


def build(observation: Observation, size: int | None = None) -> World:
    """Groups, members and rows.

    Args:
        size: ranks the world has at least, known from dumps that are not part of ``observation``.

    Cost: O(ranks x groups) in numpy, O(different groups) in Python.
    """
    windows = newest(reduced(observation))
    rows = JobRows.of(tuple(windows.values()))
    placing = Placing(rows, observation.groups)
    known = max((max(group.ranks) for group in observation.groups if group.ranks), default=-1)
    highest = max(placing.highest, known, *windows, *observation.facts, -1)
    told = observation.world_size or max(highest + 1, size or 0)
    size_told = bool(observation.world_size) or placing.tells_world
    placing.settle(range(told))
    found = placing.groups
    whole = observation.world_size or max(told, shapes.lone_rank(found, told))
    for group in found:
        if shapes.is_world(group.name, group.desc) and group.size == told < whole:
            group.enlarge(tuple(range(whole)))
    shapes.complete(found, whole)
    silent = tuple(rank for rank in range(whole) if rank not in windows)
    return World(whole, _numbered(rows, found), windows, rows, silent, size_told)


def _numbered(rows: JobRows, found: list[Group]) -> list[Group]:
    """Gives each group its rows and its number; one row per rank and group, the newest life of the group."""
    ordered = sorted(range(len(found)), key=lambda place: found[place].sort_key)
    number_of = np.full(len(found) + 1, NULL)
    number_of[ordered] = np.arange(len(ordered))
    rows.number = number_of[rows.number]
    lives.keep_newest(rows)
    rows.by_group = np.argsort(rows.number, kind="stable")
    starts = np.searchsorted(rows.number[rows.by_group], np.arange(len(found) + 1)).tolist()
    for number, place in enumerate(ordered):
        found[place].take(rows, (starts[number], starts[number + 1]), number)
    return [found[place] for place in ordered]
