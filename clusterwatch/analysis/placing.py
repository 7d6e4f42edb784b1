"""Which group each row stands for: by what the dump says, what the hook says, and who recorded what.

In: ``JobRows`` and the hook's groups. Out: groups, and ``rows.number`` as index into them. Rows whose dumps
say the same are placed at once; only where the hook contradicts or the dump is silent (gloo), one by one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import numpy as np

from clusterwatch.analysis.group import Group
from clusterwatch.analysis.members import is_world
from clusterwatch.analysis.model import KnownGroup
from clusterwatch.analysis.rows import JobRows
from clusterwatch.analysis.tables import Numbers, ToldGroup
from collectors.formats.columns import NULL


class Placing:
    """``groups`` in no order. ``rows.number`` is an index into it until the groups are sorted."""

    def __init__(self, rows: JobRows, known: tuple[KnownGroup, ...]) -> None:
        self.rows = rows
        self.groups: list[Group] = []
        self.highest = -1
        """highest rank that any list of members holds"""
        self._named: dict[tuple[str, str], list[int]] = defaultdict(list)
        self._loose: dict[tuple[str, str], list[int]] = defaultdict(list)
        self._known: dict[str, list[KnownGroup]] = defaultdict(list)
        for group in known:
            self._known[group.name].append(group)
        self._place_all()

    def _place_all(self) -> None:
        rows = self.rows
        _, first, inverse = np.unique(rows.groups["key"], return_index=True, return_inverse=True)
        told = [
            rows.windows[owner].told_groups[index]
            for owner, index in zip(rows.owner[first].tolist(), rows.index[first].tolist(), strict=True)
        ]
        sizes, self.highest = _extents(told)
        numbers, single = np.full(len(told), NULL), []
        for same, (group, size) in enumerate(zip(told, sizes.tolist(), strict=True)):
            if size and self._undisputed(group):
                numbers[same] = len(self.groups)
                one = Group(group.name, group.desc, True, None, group.runs)
                one.size = size
                self._add(one)
            else:
                single.append(same)
        rows.number = numbers[inverse]
        if single:
            self._place_singly(inverse, [(same, told[same]) for same in single])

    def _undisputed(self, group: ToldGroup) -> bool:
        """The hook knows of no other members under this name."""
        return not self._known or all(
            sorted(known.ranks) == sorted(group.ranks) for known in self._candidates(group)
        )

    def _candidates(self, group: ToldGroup) -> list[KnownGroup]:
        return [k for k in self._known.get(group.name, ()) if k.desc == group.desc or not k.desc]

    def _add(self, group: Group) -> int:
        self._named[(group.name, group.desc)].append(len(self.groups))
        self.groups.append(group)
        return len(self.groups) - 1

    def _place_singly(self, inverse: Numbers, told: Iterable[tuple[int, ToldGroup]]) -> None:
        """Row by row: the hook says other members than the dump, or the dump says none."""
        rows = self.rows
        used = (rows.groups["call_count"] > 0) | (rows.groups["p2p_count"] > 0)
        order = np.argsort(inverse, kind="stable")
        starts = np.searchsorted(inverse[order], np.arange(inverse.max(initial=-1) + 2)).tolist()
        for same, group in told:
            of_rank: dict[int, list[KnownGroup]] = defaultdict(list)
            for known in self._candidates(group):
                for rank in known.ranks:
                    of_rank[rank].append(known)
            for row in order[starts[same] : starts[same + 1]].tolist():
                fitting = of_rank.get(int(rows.rank[row]), ())
                ranks = fitting[0].ranks if len(fitting) == 1 else group.ranks
                if ranks:
                    rows.number[row] = self._number(group.name, group.desc, ranks, certain=True)
                elif used[row]:
                    self._loose[(group.name, group.desc)].append(row)

    def _number(self, name: str, desc: str, members: tuple[int, ...], certain: bool) -> int:
        """The group of these members, made where there is none."""
        for number in self._named[(name, desc)]:
            group = self.groups[number]
            if group.size == len(members) and (
                group.members == members or group.ordered == tuple(sorted(members))
            ):
                return number
        return self._add(Group(name, desc, certain, members))

    @property
    def tells_world(self) -> bool:
        """Whether a dump or the hook lists the members of the default group. Asked before ``settle``."""
        listed = any(is_world(group.name, group.desc) for group in self.groups)
        hook = (known for same in self._known.values() for known in same if known.ranks)
        return listed or any(is_world(known.name, known.desc) for known in hook)

    def settle(self, world: range) -> None:
        """Places rows whose dump did not tell the members.

        Args:
            world: ranks of the job as far as known by now.
        """
        for (name, desc), rows in sorted(self._loose.items()):
            named, left = list(self._named.get((name, desc), ())), []
            for row in rows:
                rank = int(self.rows.rank[row])
                fitting = [number for number in named if rank in self.groups[number].members]
                if len(fitting) == 1:
                    self.rows.number[row] = fitting[0]
                else:
                    left.append(row)
            if left:
                whole = is_world(name, desc)
                recorded = tuple(sorted({int(self.rows.rank[row]) for row in left}))
                members = tuple(world) if whole else recorded
                self.rows.number[left] = self._number(name, desc, members, certain=whole)


def _extents(told: list[ToldGroup]) -> tuple[Numbers, int]:
    """Members of each group, and the highest rank of all; of the runs, without expanding them."""
    lengths = np.array([len(group.runs) for group in told], np.int64) // 12
    runs = np.frombuffer(b"".join([group.runs for group in told]), "<i4").reshape(-1, 3).astype(np.int64)
    first, stride, count = runs.T
    ends = np.cumsum(lengths)
    total = np.append(0, np.cumsum(count))
    sizes: Numbers = total[ends] - total[ends - lengths]
    last = first + stride * (count - 1)
    return sizes, int(max(first.max(initial=-1), last.max(initial=-1)))
