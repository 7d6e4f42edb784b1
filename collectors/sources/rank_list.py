"""The ranks of this node and the processes that work for them, for sources that look at each of them.

In: what /proc tells of processes, without asking the GPU driver. Out: ``Members``. Who a process is does not
change while it lives, so its environment is read once, or twice where it began just before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from collectors.sources.process_identity import Identity
from collectors.sources.rank_choice import Kin, Rank, ranks
from collectors.sources.rank_processes import LOOKS_AT_NEW, identity, kin_of, pids
from collectors.sources.tree import Tree

RANKS_MAX: Final = 256
HELPERS_MAX: Final = 1_024
LIST_EVERY_S: Final = 60.0
_ANCESTORS_MAX: Final = 8


@dataclass(frozen=True, slots=True)
class Member:
    """A rank's process and its helpers: processes below it that are no rank, such as data loaders."""

    rank: Rank
    helpers: tuple[int, ...] = ()

    @property
    def entity(self) -> str:
        return f"job/{self.rank.job}/rank/{self.rank.rank}"

    @property
    def pid(self) -> int:
        return self.rank.process.pid


class RankList:
    """The ranks as they were found last. For one source."""

    def __init__(self) -> None:
        self._members: list[Member] = []
        self._at_s: float | None = None
        self._known: dict[int, tuple[Kin, Identity, int]] = {}
        """process of a job -> its parent and start, who it is, how often it was looked at"""
        self._others: dict[int, int] = {}
        """process of no job -> how often it was looked at"""

    def members(self, tree: Tree, at_s: float) -> list[Member]:
        """By job and rank; looked for every ``LIST_EVERY_S``."""
        if tree.is_due(self._at_s, at_s, LIST_EVERY_S):
            self._at_s = at_s
            self._members = self._found(tree)
        return self._members

    def _found(self, tree: Tree) -> list[Member]:
        known: dict[int, tuple[Kin, Identity, int]] = {}
        others: dict[int, int] = {}
        for pid in pids(tree):
            looks = self._others.get(pid, 0)
            if tree.is_live and looks >= LOOKS_AT_NEW:
                others[pid] = looks
                continue
            kin, process, looks = self._look(tree, pid)
            if process.job is None:
                others[pid] = looks
            else:
                known[pid] = kin, process, looks
        self._known, self._others = known, others
        kin_by_pid = {pid: kin for pid, (kin, _, _) in known.items()}
        chosen = ranks([process for _, process, _ in known.values()], kin_by_pid, set(), holders_known=False)
        helpers = _helpers(kin_by_pid, {one.process.pid for one in chosen[:RANKS_MAX]})
        return [Member(one, tuple(helpers.get(one.process.pid, ()))) for one in chosen[:RANKS_MAX]]

    def _look(self, tree: Tree, pid: int) -> tuple[Kin, Identity, int]:
        kin = kin_of(tree, pid)
        last = self._known.get(pid)
        if tree.is_live and last is not None and last[0].start == kin.start and last[2] >= LOOKS_AT_NEW:
            return kin, last[1], last[2]
        looks = last[2] if last is not None else self._others.get(pid, 0)
        return kin, identity(tree, pid), looks + 1


def _helpers(kin: dict[int, Kin], rank_pids: set[int]) -> dict[int, list[int]]:
    """Rank's process -> the processes below it that are no rank."""
    found: dict[int, list[int]] = {}
    for pid in list(kin)[: HELPERS_MAX * 4]:
        if pid in rank_pids:
            continue
        parent = kin[pid].parent
        for _ in range(_ANCESTORS_MAX):
            if parent is None or parent in rank_pids:
                break
            parent = kin[parent].parent if parent in kin else None
        if parent is not None and sum(map(len, found.values())) < HELPERS_MAX:
            found.setdefault(parent, []).append(pid)
    return found
