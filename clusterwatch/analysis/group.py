"""One process group, and what its members' dumps say of it.

In: ``JobRows``. Out: ``Group``. A job of 24,576 ranks has about as many groups, so what few ask for (members,
a ``View`` of one of them) is made when it is asked for.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping

from clusterwatch.analysis.columns import View
from clusterwatch.analysis.model import GroupRef
from clusterwatch.analysis.rows import Calls, JobRows
from clusterwatch.analysis.sentence import group_title
from clusterwatch.analysis.tables import Numbers
from collectors.formats.columns import NULL, members_of

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
    """``rows`` and ``number`` (place in ``World.groups``) are there once the world is built."""

    __slots__ = (
        "name", "desc", "certain", "size", "number", "rows",
        "_bounds", "_runs", "_members", "_ordered", "_views",
    )  # fmt: skip

    def __init__(
        self, name: str, desc: str, certain: bool, members: tuple[int, ...] | None, runs: bytes = b""
    ) -> None:
        """
        Args:
            certain: members are told, not inferred from who recorded the group.
            members: in the order of group ranks where a dump or the hook says it; None: they are in ``runs``.
        """
        self.name = name
        self.desc = desc
        self.certain = certain
        self.size = 0 if members is None else len(members)
        self.number = NULL
        self._runs = runs
        self._members = members
        self._ordered: tuple[int, ...] | None = None
        self._views: Views | None = None

    def take(self, rows: JobRows, bounds: tuple[int, int], number: int) -> None:
        """``bounds``: of its members' rows in ``rows.by_group``."""
        self.rows, self._bounds, self.number = rows, bounds, number

    def enlarge(self, members: tuple[int, ...]) -> None:
        """Takes ``members`` for the group's, once more of them are known."""
        self._members = self._ordered = tuple(sorted(members))
        self.size = len(members)

    @property
    def members(self) -> tuple[int, ...]:
        """In the order of group ranks, where anything says it."""
        if self._members is None:
            self._members = members_of(self._runs)
        return self._members

    @property
    def ordered(self) -> tuple[int, ...]:
        """Members, rising."""
        if self._ordered is None:
            self._ordered = tuple(sorted(self.members))
        return self._ordered

    @property
    def mine(self) -> Numbers:
        """Rows of the members that left a dump, by rising rank."""
        first, end = self._bounds
        return self.rows.by_group[first:end]

    @property
    def views(self) -> Views:
        if self._views is None:
            self._views = Views(self.rows, self.mine)
        return self._views

    @property
    def ref(self) -> GroupRef:
        return GroupRef(self.name, self.desc, self.ordered)

    @property
    def key(self) -> GroupKey:
        return (self.name, self.desc, self.ordered)

    @property
    def sort_key(self) -> tuple[str, str, int, bytes, tuple[int, ...]]:
        """Cheaper than ``key``, and as independent of the order of files."""
        if self._members is None:
            return (self.name, self.desc, self.size, self._runs, ())
        return (self.name, self.desc, self.size, b"", self.ordered)

    @property
    def role(self) -> str:
        """What siblings share: the description, or the name where there is none."""
        return self.desc or self.name

    @property
    def title(self) -> str:
        """What people call it."""
        return group_title(self.name, self.desc)

    @property
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

    def unissued(self, sequence: int) -> tuple[int, ...]:
        """Members whose dumps know the group and end before a call, rising."""
        mine = self.mine[self.rows.high[self.mine] < sequence]
        return tuple(self.rows.rank[mine].tolist())

    @property
    def whole(self) -> bool:
        """Every member left a dump that knows the group."""
        first, end = self._bounds
        return end - first == self.size

    @property
    def lacking(self) -> tuple[int, ...]:
        """Members without a row, rising: they left no dump, or one that does not know the group."""
        return () if self.whole else tuple(rank for rank in self.ordered if rank not in self.views)
