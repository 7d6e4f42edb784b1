"""What should be alike on all nodes of a job: how NCCL is set and what it chose, for each rank of this node.

In: NCCL's lines in the logs of ranks on this node's own disks (as in ``job_logs``, and what
``NCCL_DEBUG_FILE`` names), allowed variables of /proc/PID/environ, ``/etc/nccl.conf``. Out: samples
``fact_count`` of value 1 whose labels ``fact`` and ``value`` tell; ``nccl_fell_back`` while ranks talk over
sockets to other nodes although there are RDMA devices. Nodes are compared where all of them are known.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from collectors.formats.nccl_log import ProcessChoices
from collectors.minute import MetricSpec
from collectors.sources.base import HOST, Attribute, Reading, Sample, SourceEvent
from collectors.sources.job_logs_files import OUTPUTS, OneFile, Output, output, regular
from collectors.sources.nccl_environment import (
    DEBUG_FILE,
    asked_for,
    config,
    environment,
    is_multi_node,
    log_pattern,
    told,
)
from collectors.sources.rank_list import Member, RankList
from collectors.sources.rank_processes import ENVIRON_MAX_BYTES, LOOKS_AT_NEW
from collectors.sources.tail import FileId, Mark, Tail
from collectors.sources.tail_files import DiskFile
from collectors.sources.tree import Tree

FACT: Final = "fact_count"
ENVIRONMENT_READ: Final = "env.read"
"""Tells that a variable which is not told is not set."""
LOOK_MAX_BYTES: Final = 2 * 1024 * 1024
FILE_MAX_BYTES: Final = 512 * 1024
"""Of one file and look: its first and its last half of what is new. NCCL speaks when a rank begins."""
FILES_MAX: Final = 256
DESCRIPTORS_MAX: Final = 4_096
DESCRIPTOR_LOOKS: Final = 5
"""NCCL opens its own log when the first communicator is made."""
_RDMA: Final = "sys/class/infiniband"
_NSPID: Final = re.compile(r"^NSpid:\s{1,8}([\d\t ]{1,200})$", re.MULTILINE)


@dataclass(slots=True)
class _Life:
    """A rank's process. ``pids``: as it is called here and in its own namespaces."""

    environment: dict[str, str] = field(default_factory=dict)
    is_readable: bool = False
    pids: tuple[int, ...] = ()
    looks: int = 0
    own_log: int | None = None
    """descriptor of NCCL's own log"""
    outputs: dict[int, Output] = field(default_factory=dict)


@dataclass(slots=True)
class _Log:
    """One file and who writes to it now."""

    tail: Tail
    choices: ProcessChoices = field(default_factory=ProcessChoices)
    writers: set[str] = field(default_factory=set)


class DriftSource:
    """All ranks of a node; of a node without any, its ``nccl.conf``."""

    name = "drift"
    period_s = 60.0
    deadline_s = 10.0
    metrics = (MetricSpec(FACT, "count", 1.0),)

    def __init__(self) -> None:
        self._ranks = RankList()
        self._lives: dict[tuple[str, int], _Life] = {}
        self._logs: dict[FileId, _Log] = {}

    def read(self, tree: Tree, at_s: float) -> Reading:
        members = self._ranks.members(tree, at_s)
        self._lives = {
            key: self._lives.get(key) or _Life() for key in ((one.entity, one.pid) for one in members)
        }
        files: dict[FileId, DiskFile] = {}
        for log in self._logs.values():
            log.writers.clear()
        for member in members:
            life = self._life(member)
            _identify(tree, member.pid, life)
            self._find(tree, member, life, files)
        self._logs = {one: log for one, log in self._logs.items() if log.writers}
        self._look(files)
        return self._told(tree, members)

    def _life(self, member: Member) -> _Life:
        return self._lives[member.entity, member.pid]

    def _find(self, tree: Tree, member: Member, life: _Life, files: dict[FileId, DiskFile]) -> None:
        """The files of one rank; none is touched on a mount that another machine answers for."""
        numbers = (*OUTPUTS, *(() if life.own_log is None else (life.own_log,)))
        kept: dict[int, Output] = {}
        for number in numbers:
            found = output(tree, member.pid, number, life.outputs.get(number))
            if found is None:
                continue
            kept[number] = found
            try:
                file = regular(tree, found) if found.is_local else None
            except OSError:
                continue  # it ended just now
            if file is not None and (file.id in self._logs or len(self._logs) < FILES_MAX):
                log = self._logs.setdefault(file.id, _Log(Tail(Mark(file.id))))
                log.writers.add(member.entity)
                files[file.id] = file
        life.outputs = kept

    def _look(self, files: dict[FileId, DiskFile]) -> None:
        """What is new in all files; those with little news leave their share to the others."""
        waiting = {one: self._logs[one].tail.unread_bytes(file) for one, file in files.items()}
        left_bytes = LOOK_MAX_BYTES
        for done, (one, unread) in enumerate(sorted(waiting.items(), key=lambda item: item[1])):
            share = min(FILE_MAX_BYTES, left_bytes // (len(files) - done))
            if not unread:
                continue
            log = self._logs[one]
            try:
                piece = log.tail.look(OneFile(files[one]), share)
            except OSError:
                continue  # the next look reads it
            left_bytes -= min(unread, share)
            for line in piece.lines:
                log.choices.take(line)

    def _told(self, tree: Tree, members: list[Member]) -> Reading:
        rdma = len(tree.list(_RDMA))
        samples = _config(tree, rdma > 0)
        fell_back: dict[str, str] = {}
        for member in members:
            life, facts = self._life(member), self._chosen(member)
            samples += _facts(member.entity, facts)
            if life.is_readable:
                samples.append(_fact(member.entity, ENVIRONMENT_READ, "yes"))
                of_rank = told(life.environment)
                samples += _facts(member.entity, {f"env.{name}": value for name, value in of_rank.items()})
            if rdma and _is_on_sockets(facts, life.environment):
                fell_back.setdefault(f"job/{member.rank.job}", asked_for(life.environment))
        return Reading(samples, [_fell_back(job, rdma, wish) for job, wish in fell_back.items()])

    def _chosen(self, member: Member) -> dict[str, str]:
        """What NCCL told of one rank in all its files."""
        found: dict[str, str] = {}
        for log in self._logs.values():
            if member.entity not in log.writers:
                continue
            if len(log.writers) == 1:
                found |= log.choices.unnamed.facts()
            for pid in self._life(member).pids:
                choices = log.choices.get(pid)
                found |= choices.facts() if choices is not None else {}
        return found


def _identify(tree: Tree, pid: int, life: _Life) -> None:
    """Environment and names of a process: twice, since it may have been about to become another program."""
    life.looks += 1
    if life.looks <= LOOKS_AT_NEW:
        try:
            life.environment = environment(tree.read_bytes(f"proc/{pid}/environ", ENVIRON_MAX_BYTES))
            life.is_readable = True
        except OSError:
            life.is_readable = False
        life.pids = _pids(tree, pid)
    pattern = log_pattern(life.environment.get(DEBUG_FILE, ""))
    if life.own_log is None and pattern is not None and life.looks <= DESCRIPTOR_LOOKS:
        life.own_log = _descriptor(tree, pid, pattern)


def _pids(tree: Tree, pid: int) -> tuple[int, ...]:
    """A process inside a container prints the number that it has there."""
    try:
        match = _NSPID.search(tree.read_text(f"proc/{pid}/status", 16_384))
    except OSError:
        match = None
    words = match[1].split() if match else []
    return tuple(dict.fromkeys((pid, *(int(word) for word in words[:8] if len(word) <= 10))))


def _descriptor(tree: Tree, pid: int, pattern: re.Pattern[str]) -> int | None:
    """The descriptor whose file has such a path; no file is touched."""
    names = [name for name in tree.list(f"proc/{pid}/fd") if name.isascii() and name.isdigit()]
    for name in names[:DESCRIPTORS_MAX]:
        try:
            path = os.readlink(f"{tree.root}/proc/{pid}/fd/{name}")  # noqa: PTH115  asked of every descriptor
        except OSError:
            continue
        if pattern.fullmatch(path):
            return int(name[:10])
    return None


def _config(tree: Tree, has_rdma: bool) -> list[Sample]:
    """The node's own settings; that there are none is told where RDMA devices are."""
    try:
        data = tree.read_bytes("etc/nccl.conf", 65_536)
    except FileNotFoundError:
        return [_fact(HOST, "nccl_conf", "none")] if has_rdma else []
    except OSError:
        return []
    settings = {f"nccl_conf.{name}": value for name, value in told(config(data)).items()}
    return [_fact(HOST, "nccl_conf", "there"), *_facts(HOST, settings)]


def _is_on_sockets(facts: dict[str, str], values: dict[str, str]) -> bool:
    """A way to another node over sockets; what NCCL means to use says so of a job of several nodes only."""
    if "NET/Socket" in facts.get("nccl.transport_inter", "").split(", "):
        return True
    return facts.get("nccl.net") == "Socket" and is_multi_node(values)


def _fell_back(job: str, devices: int, wish: str) -> SourceEvent:
    why = f" ({wish} asks for it)" if wish else ""
    text = f"NCCL talks to other nodes over sockets{why}, though this node has {devices} RDMA devices"
    attributes: dict[str, Attribute] = {"rdma_devices": devices, "asked_by": wish or None}
    return SourceEvent(job, "nccl_fell_back", text, attributes=attributes, standing=True)


def _facts(entity: str, facts: dict[str, str]) -> Iterable[Sample]:
    return [_fact(entity, fact, value) for fact, value in facts.items()]


def _fact(entity: str, fact: str, value: str) -> Sample:
    return Sample(entity, FACT, 1, labels={"fact": fact, "value": value})
