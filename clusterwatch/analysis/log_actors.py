"""Which process each line of the logs is of: rank, host and pid put together from all that any line tells.

In: ``JobLog`` of every file. Out: ``Story``: events with their actor, in attempts. A number is taken for a
rank only where the text supports it: torchrun's and srun's labels may be local ranks or nodes, the rank
inside a ``ProcessGroupNCCL`` message is one of its group.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from collectors.formats.job_log import JobLog, LogEvent
from collectors.formats.job_log_prefix import NOBODY, Stamp, in_year, kernel_host

Scope = tuple[str, int | None, str | None]

_OF_NODES: Final = frozenset({
    "elastic_item", "elastic_exit", "task_exit", "scheduler", "slurm_oom", "kernel_oom", "kubernetes_oom",
    "xid", "node_failure", "restart", "told_to_end",
})  # fmt: skip
"""Kinds that a launcher, a kernel or a scheduler prints about processes; the line is not of the process."""
_LABELLED_SHARE: Final = 0.9
_TASKS_MAX: Final = 100_000
"""Tasks of one line of srun."""


@dataclass(frozen=True, slots=True)
class Actor:
    """A process as far as it is known. ``anonymous``: all that wrote into one unlabelled file."""

    rank: int | None
    host: str | None = None
    pid: int | None = None
    stream: str = ""
    anonymous: bool = False

    @property
    def key(self) -> tuple[int, str, int, str]:
        """For order and identity: by rank where known."""
        if self.rank is not None:
            return (self.rank, "", 0, "")
        return (1 << 40, self.host or "", self.pid or 0, self.stream if self.pid is None else "")


@dataclass(frozen=True, slots=True)
class Told:
    """An event with its process and place."""

    event: LogEvent
    actor: Actor
    source: str
    attempt: int
    stamp: Stamp | None
    of_node: bool
    """printed by a launcher, kernel or scheduler"""

    @property
    def at(self) -> str:
        return f"{self.source}:{self.event.line}"


@dataclass(slots=True)
class Story:
    """All events of all logs."""

    told: list[Told]
    """by source and line"""
    world_size: int | None
    ranks: frozenset[int]
    """ranks of which any line was read"""
    assumed: bool
    """local ranks were taken for ranks: one launcher's logs, nothing ties the two"""
    lines: int = 0
    sources: int = 0
    size_told: bool = True
    """``world_size`` is said somewhere, not only the highest rank that any line is of"""
    last: Stamp | None = None
    """of the newest line of all files, without the scheduler's; None where one file's newest has no stamp"""


def gather(logs: Iterable[JobLog], world_size: int | None = None) -> Story:
    """Puts the logs together. Cost: O(events)."""
    ordered = sorted(logs, key=lambda log: log.source)
    who = _Who(ordered)
    year = _year(ordered)
    told = []
    for log in ordered:
        attempt = log.attempt or 0
        for event in log.events:
            if event.kind == "restart":
                attempt = event.number("count") or attempt + (event.number("count") is None)
            stamp = in_year(event.stamp, year) if event.stamp is not None else None
            of_node = event.kind in _OF_NODES
            for actor in who.actors(log, event):
                told.append(Told(event, actor, log.source, attempt, stamp, of_node))
    ranks = {one.actor.rank for one in told if one.actor.rank is not None} | who.named_ranks()
    seen = max(ranks, default=-1) + 1
    size = world_size or who.world_size or max(who.group_size, seen if len(ranks) > 1 else 0) or None
    lines, last = sum(log.lines for log in ordered), _last(ordered, year)
    said = bool(world_size or who.world_size or who.group_size >= (size or 1))
    return Story(told, size, frozenset(ranks), who.assumed, lines, len(ordered), said, last)


def _last(logs: Sequence[JobLog], year: int) -> Stamp | None:
    """When the job last logged anything, where every file tells and by one clock."""
    stamps = [in_year(log.last, year) for log in logs if log.last is not None]
    if not stamps or any(log.undated_end for log in logs) or len({stamp.clock for stamp in stamps}) > 1:
        return None
    return max(stamps)


def _year(logs: Sequence[JobLog]) -> int:
    """Year of the newest dated stamp, for those without one."""
    newest = max(
        (
            e.stamp.ns
            for log in logs
            for e in log.events
            if e.stamp is not None and e.stamp.clock != "undated"
        ),
        default=0,
    )
    return datetime.fromtimestamp(newest / 1e9, UTC).year


def short_host(host: str | None) -> str | None:
    """Without its domain; an address stays whole."""
    if host is None or host.replace(".", "").isdigit() or ":" in host:
        return host
    return host.partition(".")[0]


def _scope(log: JobLog, event: LogEvent) -> Scope:
    host = event.label.host or (event.word("host") if event.kind == "elastic_exit" else None)
    return (log.scope or log.source, event.label.task, host)


def _local(event: LogEvent) -> int | None:
    return event.label.local_rank if event.label.local_rank is not None else event.number("local")


def _by_launcher(event: LogEvent) -> bool:
    """Whether torchrun started the processes: srun's tasks are then launchers, one per node."""
    return event.label.local_rank is not None or event.kind in ("elastic_item", "elastic_exit", "restart")


def _numbers(text: str) -> list[int]:
    """``3,5-7`` as numbers, at most ``_TASKS_MAX``."""
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        if first.isdigit() and len(first) < 8 and (last.isdigit() or not last) and len(last) < 8:
            most = int(first) + _TASKS_MAX - len(found)
            found += range(int(first), min(int(last or first) + 1, most))
    return found


class _Who:
    """Learns from lines that tell two names of a process, then names all."""

    def __init__(self, logs: Sequence[JobLog]) -> None:
        self._logs = logs
        self.assumed = False
        self.world_size: int | None = None
        self.group_size = max((_whole_size(event) for log in logs for event in log.events), default=0)
        """size of the default group as its own lines say, 0 without"""
        self.buses: dict[tuple[str, str], int] = {}
        self._launchers = any(_by_launcher(event) for log in logs for event in log.events)
        self._message_ranks = _unique_message_ranks(logs)
        self._task_sources = self._learn_tasks()
        self._offsets = self._learn_offsets()
        self._by_pid: dict[tuple[str | None, int], int] = {}
        self._learn_pids()

    def actors(self, log: JobLog, event: LogEvent) -> list[Actor]:
        """The process of an event; the processes of a list of srun tasks."""
        if event.kind != "task_exit":
            return [self._actor(log, event)]
        host, tasks = short_host(event.word("host")), _numbers(event.word("tasks") or "")
        if self._launchers:
            return [Actor(None, host, None, f"task {task} of srun") for task in tasks]
        self.assumed = self.assumed or not self._task_sources
        return [Actor(task, host) for task in tasks]

    def _actor(self, log: JobLog, event: LogEvent) -> Actor:
        host = short_host(event.word("host")) or short_host(event.label.host)
        pid = event.number("pid")
        if event.kind in ("kernel_oom", "xid") and host is None:
            host = kernel_host(event.text)
        rank = self._rank(log, event)
        if rank is None and pid is not None:
            rank = self._by_pid.get((host, pid), self._by_pid.get((None, pid)) if host is None else None)
        if rank is None and event.kind == "xid":
            rank = self.buses.get((host or "", _bus(event.word("pci") or "")))
        nobody = event.label == NOBODY and pid is None and rank is None
        stream = f"{log.source} {tuple(event.label)}"
        return Actor(rank, host, pid, stream, anonymous=nobody)

    def named_ranks(self) -> set[int]:
        """Ranks that a file is named after, whether or not it tells of a failure."""
        found = set()
        for log in self._logs:
            if log.who.rank is not None:
                found.add(log.who.rank)
            elif log.who.local_rank is not None:
                offset = self._offsets.get((log.scope or log.source, log.who.task, log.who.host))
                found |= set() if offset is None else {log.who.local_rank + offset}
            elif log.who.task is not None and self._task_sources:
                found.add(log.who.task)
        return found

    def _rank(self, log: JobLog, event: LogEvent) -> int | None:
        if event.kind in _OF_NODES:
            known = event.number("rank")
            if known is not None or event.kind != "elastic_exit":
                return known
            return self._from_local(log, event)
        if event.label.rank is not None:
            return event.label.rank
        if (said := self._said(event)) is not None:
            return said
        if (found := self._from_local(log, event)) is not None:
            return found
        if event.label.local_rank is None and log.source in self._task_sources:
            return event.label.task
        return None

    def _said(self, event: LogEvent) -> int | None:
        """The rank in a message of ProcessGroupNCCL: a rank of the job only in the default group."""
        rank = event.number("rank")
        if rank is None or event.kind == "comm_init":
            return None
        guid, group = event.word("guid"), event.word("pg")
        if guid is not None:
            return rank if guid.partition("(")[0] == "0" or "default_pg" in guid else None
        if group is not None:
            return rank if group in ("0", "default_pg") else None
        return rank if self._message_ranks else None

    def _from_local(self, log: JobLog, event: LogEvent) -> int | None:
        local = _local(event)
        if local is None:
            return None
        offset = self._offsets.get(_scope(log, event))
        return None if offset is None else local + offset

    def _learn_offsets(self) -> dict[Scope, int]:
        votes: dict[Scope, Counter[int]] = defaultdict(Counter)
        locals_of: dict[Scope, set[int]] = defaultdict(set)
        several: set[Scope] = set()  # one of a launcher's hosts, or it would not be told
        for log in self._logs:
            for event in log.events:
                local = _local(event)
                if local is None:
                    continue
                scope = _scope(log, event)
                locals_of[scope].add(local)
                if event.kind == "elastic_exit" and event.word("host"):
                    several.add(scope)
                rank = event.label.rank
                if rank is None:
                    rank = event.number("rank") if event.kind == "elastic_item" else self._said(event)
                if rank is not None and rank >= local:
                    votes[scope][rank - local] += 1
        offsets = {scope: next(iter(count)) for scope, count in votes.items() if len(count) == 1}
        unknown = [scope for scope in locals_of if scope not in votes]
        if unknown and not offsets and not several:
            numbers = [local for found in locals_of.values() for local in found]
            if len(numbers) == len(set(numbers)):
                self.assumed = True
                offsets |= dict.fromkeys(unknown, 0)
        return offsets

    def _learn_tasks(self) -> frozenset[str]:
        """Files in which the number of an srun task is the rank of a process."""
        sources, contradicted = set(), False
        for log in self._logs:
            own = [event for event in log.events if event.kind not in _OF_NODES]
            tasks = [event for event in own if event.label.task is not None]
            if not tasks or len(tasks) < _LABELLED_SHARE * len(own):
                continue
            if any(event.label.local_rank is not None for event in tasks):
                contradicted = True
            said = [
                (e.label.task, e.label.rank if e.label.rank is not None else self._said(e)) for e in tasks
            ]
            if any(rank is not None and rank != task for task, rank in said):
                contradicted = True
            sources.add(log.source)
        return frozenset() if contradicted else frozenset(sources)

    def _learn_pids(self) -> None:
        starts = [(log, e) for log in self._logs for e in log.events if e.kind == "comm_init"]
        self.world_size = max((e.number("nranks") or 0 for _, e in starts), default=0) or None
        for log in self._logs:
            for event in log.events:
                pid, host = event.number("pid"), short_host(event.word("host"))
                if pid is None:
                    continue
                rank = self._rank(log, event)
                if rank is None and event.kind == "comm_init" and event.number("nranks") == self.world_size:
                    rank = event.number("rank")
                if rank is None:
                    continue
                self._by_pid.setdefault((host, pid), rank)
                self._by_pid.setdefault((None, pid), rank)
                if event.kind == "comm_init" and (bus := event.word("bus")) and host:
                    self.buses[host, _bus(bus)] = rank


def _whole_size(event: LogEvent) -> int:
    """Size of the group that a line of ProcessGroupNCCL is about, where that is the default group."""
    guid, group = event.word("guid") or "", event.word("pg") or ""
    default = guid.partition("(")[0] == "0" or "default" in guid or (not guid and group in ("", "0"))
    return (event.number("size") or 0) if default else 0


def _bus(text: str) -> str:
    """``0000:5e:00`` of a Xid and ``5e000`` of NCCL, alike: bus and device."""
    if ":" in text:
        return text.replace(":", "").partition(".")[0].lower().lstrip("0")
    return text[:-1].lower().lstrip("0")


def _unique_message_ranks(logs: Sequence[JobLog]) -> bool:
    """Whether ``[Rank 3]`` without a group can be a rank of the job: it times out once per call."""
    seen: Counter[tuple[int | None, int | None, int | None, str | None]] = Counter()
    for log in logs:
        attempt = log.attempt
        for event in log.events:
            if event.kind == "restart":
                attempt = (attempt or 0) + 1
            if event.kind == "watchdog_timeout" and event.word("pg") is None:
                seen[attempt, event.number("rank"), event.number("seq"), event.word("op")] += 1
    return all(count == 1 for key, count in seen.items() if key[1] is not None)
