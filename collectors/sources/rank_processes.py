"""The processes of jobs on this node and which of them are ranks, looked up once for all sources that ask.

In: /proc/PID/environ (a few variables only), /proc/PID/cgroup and /proc/PID/stat. Out: ``JobProcesses``. What
a process says of itself is read twice in its life. Reading the environment of another user's process needs
CAP_SYS_PTRACE; without it a job is known by its control group, a rank is not.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Final

from collectors.sources.process_identity import Group, Identity, environment, group
from collectors.sources.rank_choice import Kin, Rank, ranks
from collectors.sources.tree import Tree

PROCESSES_MAX: Final = 65_536
ENVIRON_MAX_BYTES: Final = 2 * 1024 * 1024
KEPT_S: Final = 10.0
"""So long the answer of one look serves all who ask."""
LOOKS_AT_NEW: Final = 2
"""A process is looked at again once: it may have been about to become another program."""


@dataclass(frozen=True, slots=True)
class JobProcesses:
    """What one look gave.

    Attributes:
        ranks: one process for each rank, by job and rank.
        all: every process of a job, ranks, launchers and workers, by pid.
    """

    ranks: tuple[Rank, ...] = ()
    all: tuple[Identity, ...] = ()


class ProcessTable:
    """Processes as they were told; remembers those it has looked at."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int | None], tuple[Identity, int]] = {}
        """(pid, start) -> identity and how often it was read"""
        self._of_no_job: dict[int, int] = {}

    def look(self, tree: Tree) -> JobProcesses:
        """All processes of jobs now. Cost: one file for each of them, three for a new one."""
        members: list[Identity] = []
        kin: dict[int, Kin] = {}
        known: dict[tuple[int, int | None], tuple[Identity, int]] = {}
        of_no_job: dict[int, int] = {}
        for pid in pids(tree):
            looks = self._of_no_job.get(pid, 0)
            if tree.is_live and looks >= LOOKS_AT_NEW:
                of_no_job[pid] = looks
                continue
            relation = kin_of(tree, pid)
            process, looks = self._known.get((pid, relation.start), (None, looks))
            if process is None or looks < LOOKS_AT_NEW or not tree.is_live:
                process, looks = identity(tree, pid), looks + 1
            if process.job is None:
                of_no_job[pid] = looks
                continue
            known[pid, relation.start] = process, looks
            kin[pid] = relation
            members.append(process)
        self._known, self._of_no_job = known, of_no_job
        return JobProcesses(tuple(ranks(members, kin, set(), False)), tuple(members))


class _Shared:
    """One table of the live machine. A thread that waits for /proc keeps nobody else waiting."""

    def __init__(self) -> None:
        self._table = ProcessTable()
        self._lock = threading.Lock()
        self._last: tuple[float, JobProcesses] | None = None

    def at(self, tree: Tree, at_s: float) -> JobProcesses:
        last = self._last
        if last is not None and 0 <= at_s - last[0] < KEPT_S:
            return last[1]
        if not self._lock.acquire(blocking=False):
            return last[1] if last is not None else JobProcesses()
        try:
            found = self._table.look(tree)
            self._last = at_s, found
            return found
        finally:
            self._lock.release()


_shared: Final = _Shared()


def job_processes(tree: Tree, at_s: float) -> JobProcesses:
    """The processes of jobs: of the live machine up to ``KEPT_S`` old, of a recorded tree as it is."""
    return _shared.at(tree, at_s) if tree.is_live else ProcessTable().look(tree)


def rank_entity(one: Rank) -> str:
    return f"job/{one.job}/rank/{one.rank}"


def pids(tree: Tree) -> list[int]:
    names = (name for name in tree.list("proc") if name.isascii() and name.isdigit() and len(name) <= 7)
    return sorted(map(int, names))[:PROCESSES_MAX]


def identity(tree: Tree, pid: int) -> Identity:
    """A process as far as it may be looked at."""
    try:
        values = environment(tree.read_bytes(f"proc/{pid}/environ", ENVIRON_MAX_BYTES))
    except OSError:
        values = {}
    try:
        where = group(tree.read_text(f"proc/{pid}/cgroup", 65_536))
    except OSError:
        where = Group()
    return Identity(pid, values, where)


def kin_of(tree: Tree, pid: int) -> Kin:
    """Parent and start of a process; the second field of its stat may hold blanks and brackets."""
    try:
        words = tree.read_text(f"proc/{pid}/stat", 4_096).rpartition(") ")[2].split()
        return Kin(int(words[1]), int(words[19]))
    except (OSError, ValueError, IndexError):
        return Kin()
