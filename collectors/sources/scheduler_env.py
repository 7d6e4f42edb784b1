"""Jobs and ranks of a node as its processes tell them: which process each rank is, with its GPU and NIC.

In: /proc/PID/environ (a few variables only) and /proc/PID/cgroup, who holds which GPU, the node's topology.
Out: an event ``rank_map`` for each rank, ``job`` for each job. Reading the environment of another user's
process needs CAP_SYS_PTRACE; without it a job is known by its control group, a rank is not.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from collectors.sources.base import Attribute, Reading, SourceEvent
from collectors.sources.gpu_identity import expected_uuids
from collectors.sources.gpu_processes import Held, held
from collectors.sources.node_topology import nearest_rdma
from collectors.sources.process_identity import Identity
from collectors.sources.rank_choice import Rank, ranks
from collectors.sources.rank_gpu import Placement, placement
from collectors.sources.rank_processes import LOOKS_AT_NEW, identity, kin_of, pids
from collectors.sources.slurm_topology import leaf_of
from collectors.sources.tree import Tree

ANCESTORS_MAX: Final = 16
ASK_AGAIN_S: Final = 600.0
ASK_MIN_S: Final = 60.0
"""The driver answers under its lock: it is asked at most this often, while processes of jobs come and go or a
rank holds no GPU yet; else every ``ASK_AGAIN_S``."""


@dataclass(slots=True)
class _Asked:
    """What was asked of tools on the live machine, and of which processes."""

    at_s: float
    pids: frozenset[int]
    held: Held
    nearest: dict[str, str | None] = field(default_factory=dict)
    is_whole: bool = False
    """whether every rank held a GPU"""


class SchedulerEnvSource:
    """Every process of a job. Keeps the indices of GPUs of when each rank was first seen."""

    name = "scheduler_env"
    period_s = 15.0
    deadline_s = 60.0
    metrics = ()

    def __init__(self) -> None:
        self._asked: _Asked | None = None
        self._looked: dict[int, int] = {}
        self._indices: dict[tuple[str, int, int], dict[int, str]] = {}

    def read(self, tree: Tree, at_s: float) -> Reading:
        processes = list(self._processes(tree))
        if not processes:
            self._indices = {}
            return Reading()
        asked = self._ask(tree, at_s, frozenset(process.pid for process in processes))
        family = _Family(tree, processes, asked.held)
        found = ranks(processes, family.kin, set(family.devices), asked.held.known)
        asked.is_whole = all(one.process.pid in family.devices for one in found)
        return Reading(
            (), [*self._rank_events(tree, found, family, asked), *_job_events(tree, processes, found)]
        )

    def _processes(self, tree: Tree) -> Iterator[Identity]:
        """All processes of jobs."""
        looked: dict[int, int] = {}
        for pid in pids(tree):
            looks = self._looked.get(pid, 0)
            if tree.is_live and looks >= LOOKS_AT_NEW:
                looked[pid] = looks
                continue
            process = identity(tree, pid)
            if process.job is None:
                looked[pid] = looks + 1
            else:
                yield process
        self._looked = looked

    def _ask(self, tree: Tree, at_s: float, pids: frozenset[int]) -> _Asked:
        last = self._asked
        if tree.is_live and last is not None:
            settled = last.pids == pids and last.is_whole
            if at_s - last.at_s < (ASK_AGAIN_S if settled else ASK_MIN_S):
                return last
        told = held(tree)
        before = {} if last is None else last.nearest
        is_same = tree.is_live and last is not None and last.held.places == told.places
        # A GPU that is lost is in no table now; it was in its slot.
        nearest = before if is_same else {**before, **nearest_rdma(tree, told.places)}
        self._asked = _Asked(at_s, pids, told, nearest)
        return self._asked

    def _rank_events(
        self, tree: Tree, found: list[Rank], family: _Family, asked: _Asked
    ) -> Iterator[SourceEvent]:
        expected = expected_uuids(tree)
        numbers = {uuid: index for index, uuid in asked.held.by_index.items()}
        if expected:  # the driver counts anew when a GPU is lost; a slot keeps its number
            numbers |= {uuid: index for index, uuid in enumerate(expected)}
        devices = {one.process.pid: family.devices_of(one, found) for one in found}
        shared = frozenset(uuid for uuid, count in Tally(sum(devices.values(), ())).items() if count > 1)
        seen: dict[tuple[str, int, int], dict[int, str]] = {}
        for one in found:
            key = one.job, one.rank, one.process.pid
            first = self._indices.get(key)
            seen[key] = indices = first or _indices(one.process, asked.held.by_index, expected)
            place = placement(one.process, devices[one.process.pid], indices, shared)
            yield _rank_event(one, place, numbers, asked.nearest)
        self._indices = seen


class _Family:
    """Which processes hold GPUs, themselves or by a child that does not say which rank it works for."""

    def __init__(self, tree: Tree, processes: Iterable[Identity], told: Held) -> None:
        self._tree = tree
        self._by_pid = {process.pid: process for process in processes}
        self._told = told
        self.kin = {pid: kin_of(tree, pid) for pid in self._by_pid}
        self.devices = {pid: told.by_pid[pid] for pid in self._by_pid if pid in told.by_pid}
        for pid, devices in told.by_pid.items():
            owner = self._owner(pid)
            if owner is not None:
                self.devices[owner] = tuple(dict.fromkeys((*self.devices.get(owner, ()), *devices)))

    def _owner(self, pid: int) -> int | None:
        """The nearest ancestor that says which rank it is, of a process that does not."""
        if pid in self._by_pid and self._by_pid[pid].rank is not None:
            return None
        for _ in range(ANCESTORS_MAX):
            parent = (self.kin.get(pid) or kin_of(self._tree, pid)).parent
            if parent is None or parent <= 1:
                return None
            if parent in self._by_pid and self._by_pid[parent].rank is not None:
                return parent
            pid = parent
        return None

    def devices_of(self, one: Rank, found: list[Rank]) -> tuple[str, ...]:
        """What a rank holds; else what a nameless process in a control group of this rank alone holds."""
        process = one.process
        if process.pid in self.devices or not process.group.is_closed:
            return self.devices.get(process.pid, ())
        path = process.group.path
        if sum(other.process.group.path == path for other in found) > 1:
            return ()
        nameless = (
            other
            for other in self._by_pid.values()
            if other.group.path == path and other.rank is None and other.pid in self.devices
        )
        return tuple(dict.fromkeys(device for other in nameless for device in self.devices[other.pid]))


def _indices(process: Identity, now: Mapping[int, str], expected: tuple[str, ...]) -> dict[int, str]:
    """The driver's indices of when a rank began, as far as they can be told now.

    When a GPU is lost, those after it count differently: then only numbers that mean the same in both ways,
    or in one way only, are of use.
    """
    before = dict(enumerate(expected))
    present = set(now.values())
    if not before or not present < set(before.values()):
        return dict(now)
    listed = process.values.get("CUDA_VISIBLE_DEVICES", "").split(",")
    if max(len(listed), process.number("LOCAL_WORLD_SIZE") or 0) > len(now):
        return before
    return {index: uuid for index, uuid in before.items() if now.get(index, uuid) == uuid}


def _rank_event(
    one: Rank, place: Placement, numbers: Mapping[str, int], nearest: Mapping[str, str | None]
) -> SourceEvent:
    process, uuid = one.process, place.uuid
    local_rank = process.local_rank
    if local_rank is None and process.rank is None:
        local_rank = process.number("SLURM_LOCALID")
    attributes: dict[str, Attribute] = {
        "pid": process.pid,
        "local_rank": local_rank,
        "gpu_uuid": uuid,
        "nic": nearest.get(uuid) if uuid else None,
        "map_source": place.source,
    }
    if process.group.pod_uid:
        attributes["pod_uid"] = process.group.pod_uid
    if place.gpu_instance is not None:
        attributes["gpu_instance"] = place.gpu_instance
    if uuid is None:
        where = "on an unknown GPU"
    elif uuid in numbers:
        where = f"on GPU {numbers[uuid]}"
    else:
        where = f"on {uuid}"
    return SourceEvent(
        f"job/{one.job}/rank/{one.rank}", "rank_map", f"rank {one.rank} {where}", "info",
        attributes=attributes, standing=True,
    )  # fmt: skip


def _job_events(tree: Tree, processes: list[Identity], found: list[Rank]) -> Iterator[SourceEvent]:
    """What the node itself knows of each job; its scheduler knows more where it is asked."""
    switch = leaf_of(tree, tree.host_name())
    running = {one.job: one.process for one in found}
    others = {process.job: process for process in reversed(processes) if process.job is not None}
    for job, process in (others | running).items():
        nodes = process.number("SLURM_JOB_NUM_NODES") or process.number("SLURM_NNODES")
        name = process.values.get("SLURM_JOB_NAME") or f"job {job}"
        doing = "running" if job in running else "has processes here, none of them a rank"
        count = "" if nodes is None or job not in running else f" on {nodes} node{'s'[: nodes != 1]}"
        attributes: dict[str, Attribute] = {
            "nodes": nodes,
            "gpus": process.number("SLURM_GPUS"),
            "restarts": _restarts(process),
            "state": "RUNNING" if job in running else None,
            "node_index": process.number("SLURM_NODEID"),
            "time_limit_s": _time_limit_s(process),
            "switch": switch,
        }
        if process.group.pod_uid:
            attributes["pod_uid"] = process.group.pod_uid
        yield SourceEvent(
            f"job/{job}", "job", f"{name} {doing}{count}", "info", attributes=attributes, standing=True
        )


def _restarts(process: Identity) -> int | None:
    """Slurm sets its count from the first restart on: a job of its without one never had any."""
    if process.group.job or "SLURM_JOB_ID" in process.values:
        count = process.number("SLURM_RESTART_COUNT")
        return count if count is not None or not process.values else 0
    return process.number("TORCHELASTIC_RESTART_COUNT")


def _time_limit_s(process: Identity) -> int | None:
    start, end = process.number("SLURM_JOB_START_TIME"), process.number("SLURM_JOB_END_TIME")
    return end - start if start is not None and end is not None and end > start else None
