"""Limits that end a job when they are reached: descriptors, shared memory, processes, locked memory.

In: /proc/PID/limits and fd of ranks, the pids controller of their jobs, /dev/shm, the kernel's own limits;
which processes hold GPU memory. Out: samples of ``host``, ``job/<id>`` and ``job/<id>/rank/<rank>``; standing
``descriptors_near_limit``, ``pids_near_limit``, ``shm_nearly_full``, ``memlock_limited`` for a rank that uses
RDMA, and ``gpu_memory_orphaned``. Source: see the parts.
"""

from __future__ import annotations

import os
from typing import Final

from collectors.minute import MetricSpec
from collectors.sources.base import HOST, OK, Attribute, Reading, Sample, SourceEvent
from collectors.sources.counters import NOT_AVAILABLE, Count
from collectors.sources.gpu_orphans import Orphans
from collectors.sources.limits_node import (
    SHM,
    SharedMemory,
    Use,
    fullest,
    group_use,
    open_files,
    recorded_shm_use,
    shared_memory,
    shm_use,
    threads,
)
from collectors.sources.limits_process import (
    Limit,
    limits,
    listed_descriptors,
    may_lock_all,
    told_descriptors,
    uses_rdma,
)
from collectors.sources.memory_cgroup import Place, place_of
from collectors.sources.rank_list import Member, RankList
from collectors.sources.tree import Tree, reason
from collectors.wire.records import Severity

NEAR: Final = 0.9
FAR: Final = 0.85
"""A warning ends below this, so that it does not come and go."""
CRITICAL: Final = 0.99
SLOW_EVERY_S: Final = 120.0
"""How often a folder of descriptors is listed at most."""
RDMA: Final = "sys/class/infiniband"


class LimitsSource:
    """All ranks of a node, their jobs, and the node."""

    name = "limits"
    period_s = 60.0
    deadline_s = 10.0
    metrics = (
        MetricSpec("shm_used_bytes", "bytes", 1_048_576.0),
        MetricSpec("shm_used_ratio", "ratio", 0.001),
        MetricSpec("open_files_count", "count", 1.0),
        MetricSpec("threads_count", "count", 1.0),
        MetricSpec("threads_used_ratio", "ratio", 0.001),
        MetricSpec("open_descriptors_count", "count", 1.0),
        MetricSpec("descriptors_used_ratio", "ratio", 0.001),
        MetricSpec("cgroup_pids_count", "count", 1.0),
        MetricSpec("cgroup_pids_used_ratio", "ratio", 0.001),
    )

    def __init__(self) -> None:
        self._ranks = RankList()
        self._orphans = Orphans()
        self._near: set[tuple[str, str]] = set()
        self._listed: dict[int, tuple[float, Count]] = {}
        """process -> when its descriptors were listed, and how many there were"""
        self._rdma: dict[int, tuple[float, bool]] = {}
        """process -> when it was looked through for RDMA, and whether it uses it"""

    def read(self, tree: Tree, at_s: float) -> Reading:
        told = _Told(self._near)
        told.node(tree)
        members = self._ranks.members(tree, at_s)
        by_job: dict[str, list[Member]] = {}
        for member in members:
            by_job.setdefault(member.rank.job, []).append(member)
            self._rank(told, tree, member, at_s)
        told.groups(tree, by_job)
        told.containers(tree, members)
        alive = {member.pid for member in members}
        self._listed = {pid: one for pid, one in self._listed.items() if pid in alive}
        self._rdma = {pid: one for pid, one in self._rdma.items() if pid in alive}
        self._near = told.near
        return Reading(told.samples, [*told.events, *self._orphans.events(tree, at_s)])

    def _rank(self, told: _Told, tree: Tree, member: Member, at_s: float) -> None:
        """Limits of a rank's own process."""
        try:
            known = limits(tree.read_text(f"proc/{member.pid}/limits", 8_192))
            missing = Count(None, "unreadable")
        except OSError as error:
            known, missing = {}, Count(None, reason(error))
        nofile = known.get("nofile", Limit(missing, missing)).soft
        memlock = known.get("memlock", Limit(missing, missing)).soft
        used = self._descriptors(tree, member.pid, at_s)
        if used.quality == NOT_AVAILABLE and nofile.quality == NOT_AVAILABLE:
            return  # it has ended, or its files were not recorded
        who = f"rank {member.rank.rank} of job {member.rank.job}"
        told.use(
            member.entity, "descriptors", ("open_descriptors_count", "descriptors_limit_count"),
            Use(used, nofile), f"the descriptors of {who}",
        )  # fmt: skip
        told.samples.append(Sample(member.entity, "memlock_limit_bytes", memlock.value, memlock.quality))
        if memlock.value is not None and self._is_held_back(tree, member.pid, at_s):
            text = f"{who} may lock {memlock.value} bytes only: RDMA needs an unlimited memlock"
            attributes: dict[str, Attribute] = {"limit_bytes": memlock.value}
            told.events.append(
                SourceEvent(member.entity, "memlock_limited", text, attributes=attributes, standing=True)
            )

    def _descriptors(self, tree: Tree, pid: int, at_s: float) -> Count:
        if (size := told_descriptors(tree, pid)) is not None:
            return Count(size)
        last = self._listed.get(pid)
        if last is not None and not tree.is_due(last[0], at_s, SLOW_EVERY_S):
            return last[1]
        count = listed_descriptors(tree, pid)
        self._listed[pid] = at_s, count
        return count

    def _is_held_back(self, tree: Tree, pid: int, at_s: float) -> bool:
        """Whether a process with a finite limit of locked memory needs more for RDMA."""
        last = self._rdma.get(pid)
        if last is not None and not tree.is_due(last[0], at_s, SLOW_EVERY_S):
            return last[1]
        try:
            status = tree.read_text(f"proc/{pid}/status", 16_384)
        except OSError:
            return False
        held_back = (
            bool(tree.list(RDMA)) and not may_lock_all(tree, pid, status) and uses_rdma(tree, pid, status)
        )
        self._rdma[pid] = at_s, held_back
        return held_back


class _Told:
    """One look."""

    def __init__(self, before: set[tuple[str, str]]) -> None:
        self._before = before
        self.near: set[tuple[str, str]] = set()
        self.samples: list[Sample] = []
        self.events: list[SourceEvent] = []

    def node(self, tree: Tree) -> None:
        files, tasks = open_files(tree), threads(tree)
        if files is not None:
            names = "open_files_count", "open_files_limit_count"
            self.use(HOST, "descriptors", names, files, "the open files of the whole node")
        if tasks is not None:
            self.use(HOST, "pids", ("threads_count", "threads_limit_count"), tasks, "the threads of the node")
        found = shared_memory(tree) if tree.is_live else None
        shm = shm_use(found) if found is not None else None if tree.is_live else recorded_shm_use(tree)
        if shm is not None:
            self._shm(HOST, shm, f"{SHM} of the node")

    def groups(self, tree: Tree, by_job: dict[str, list[Member]]) -> None:
        """Of each job the control group nearest to its limit, of all that hold its ranks."""
        known: dict[Place, Use | None] = {}
        for job, members in by_job.items():
            levels = dict.fromkeys(level for member in members for level in _levels(tree, member.pid))
            for level in levels:
                if level not in known:
                    known[level] = group_use(tree, level)
            found = fullest([(level, use) for level in levels if (use := known[level]) is not None])
            if found is not None:
                names = "cgroup_pids_count", "cgroup_pids_limit_count"
                cgroup: dict[str, Attribute] = {"cgroup": found[0].path[-256:]}
                self.use(f"job/{job}", "pids", names, found[1], f"the processes of job {job}", cgroup)

    def containers(self, tree: Tree, members: list[Member]) -> None:
        """The shared memory of ranks that have one of their own."""
        if not tree.is_live:
            return
        own = _link("/proc/self/ns/mnt")
        namespaces: dict[str, SharedMemory | None] = {}
        seen = shared_memory(tree)
        devices = {seen.device} if seen is not None else set()
        for member in members:
            namespace = _link(f"/proc/{member.pid}/ns/mnt")
            if not namespace or namespace in (own, *namespaces):
                continue
            namespaces[namespace] = found = shared_memory(tree, member.pid)
            if found is not None and found.device not in devices:
                devices.add(found.device)
                who = f"{SHM} of rank {member.rank.rank} of job {member.rank.job}"
                self._shm(member.entity, shm_use(found), who)

    def _shm(self, entity: str, use: Use, what: str) -> None:
        self.use(entity, "shm", ("shm_used_bytes", "shm_size_bytes"), use, what)

    def use(
        self, entity: str, of: str, names: tuple[str, str], use: Use, what: str,
        more: dict[str, Attribute] | None = None,
    ) -> None:  # fmt: skip
        """Samples of a use, its limit and their ratio; an event while the ratio is high."""
        for name, count in zip(names, (use.used, use.limit), strict=True):
            self.samples.append(Sample(entity, name, count.value, count.quality))
        share = use.share
        ratio = _RATIOS.get(names[0], f"{of}_used_ratio")
        self.samples.append(Sample(entity, ratio, share, OK if share is not None else use.why_no_share))
        kind = _KINDS[of]
        if share is None or share < (FAR if (entity, kind) in self._before else NEAR):
            return
        self.near.add((entity, kind))
        attributes: dict[str, Attribute] = {"limit": use.limit.value, **(more or {})}
        text = f"{what}: {100 * share:.0f} % of {use.limit.value} are used"
        severity: Severity = "critical" if share >= CRITICAL else "warning"
        self.events.append(SourceEvent(entity, kind, text, severity, attributes=attributes, standing=True))


_KINDS: Final = {
    "descriptors": "descriptors_near_limit",
    "pids": "pids_near_limit",
    "shm": "shm_nearly_full",
}
_RATIOS: Final = {
    "open_files_count": "open_files_used_ratio",
    "threads_count": "threads_used_ratio",
    "cgroup_pids_count": "cgroup_pids_used_ratio",
}


def _levels(tree: Tree, pid: int) -> list[Place]:
    try:
        place = place_of(tree.read_text(f"proc/{pid}/cgroup", 65_536), "pids")
    except OSError:
        return []
    return place.levels() if place is not None else []


def _link(path: str) -> str:
    try:
        return os.readlink(path)  # noqa: PTH115  the link's text, no path
    except OSError:
        return ""
