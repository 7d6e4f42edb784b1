"""The processes behind FUSE mounts: a mount works as well as its daemon, and the kernel counts nothing of it.

In: proc/self/mountinfo, /proc/PID/{cmdline,stat,fd,fdinfo}, and of etc/clusterwatch/agent.toml ``[[mount]]
path, daemon`` (a program's name). A daemon is the process that has this connection of /dev/fuse open (told by
the kernel from 6.16 on), else the one that is named so, or was started with the mount point, and has
/dev/fuse open. Out: samples of ``mount/<mount point>``; standing events ``fuse_daemon_gone`` and
``fuse_daemon_blocked``, ``fuse_daemon_restarted``. Source: proc_pid_stat(5); fuse_dev_show_fdinfo of Linux.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from collectors.minute import MetricSpec
from collectors.sources.base import FIRST_SAMPLE, OK, Attribute, Reading, Sample, SourceEvent
from collectors.sources.gpu_identity import inventory
from collectors.sources.mountstats import Mount, mounts
from collectors.sources.tree import Tree

MOUNTS_MAX: Final = 32
PROCESSES_MAX: Final = 16_384
DESCRIPTORS_MAX: Final = 512
SEARCH_EVERY_S: Final = 60.0
"""How often all processes are looked through while a daemon is not known."""
BLOCKED_LOOKS: Final = 3
NOT_FOUND: Final = "not_found"
NOT_DAEMONS: Final = frozenset({"lxcfs", "gvfsd-fuse", "portal"})
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_STATE, _UTIME, _STIME, _THREADS, _START, _RSS = 0, 11, 12, 17, 19, 21
"""Places in /proc/PID/stat behind the program's name."""
_METRICS: Final = (
    "daemon_running_count",
    "daemon_blocked_count",
    "daemon_cpu_ratio",
    "daemon_rss_bytes",
    "daemon_threads_count",
    "daemon_restarts_total",
)


@dataclass(frozen=True, slots=True)
class Process:
    """What the kernel says of one process."""

    pid: int
    state: str
    cpu_s: float
    threads: int
    started_s: float
    """after boot"""
    rss_bytes: int

    @property
    def is_there(self) -> bool:
        return self.state not in "ZX"


@dataclass(slots=True)
class _Watched:
    """What is remembered of one mount's daemon."""

    last: Process | None = None
    at_s: float = 0.0
    blocked_looks: int = 0
    restarts: int = 0
    found_once: bool = False


@dataclass(slots=True)
class _Told:
    samples: list[Sample] = field(default_factory=list)
    events: list[SourceEvent] = field(default_factory=list)


class FuseDaemonsSource:
    """The daemon of every FUSE mount that is storage."""

    name = "fuse_daemons"
    period_s = 15.0
    deadline_s = 5.0
    metrics = tuple(
        MetricSpec(name, name.rpartition("_")[2], 0.001 if name.endswith("ratio") else 1.0)
        for name in _METRICS
    )

    def __init__(self) -> None:
        self._watched: dict[str, _Watched] = {}
        self._searched_s = float("-inf")

    def read(self, tree: Tree, at_s: float) -> Reading:
        try:
            known = fuse_mounts(tree.read_text("proc/self/mountinfo"))
        except OSError:
            return Reading()
        self._watched = {path: watched for path, watched in self._watched.items() if path in known}
        if not known:
            return Reading()
        named = _named(tree)
        now = {path: self._again(tree, path) for path in known}
        missing = {path: known[path] for path, process in now.items() if process is None}
        if missing and (at_s - self._searched_s >= SEARCH_EVERY_S or not tree.is_paced):
            self._searched_s = at_s
            now |= search(tree, missing, named)
        told = _Told()
        for path, process in now.items():
            watched = self._watched.setdefault(path, _Watched())
            _tell(told, path, process, watched, at_s, path in named)
        return Reading(told.samples, told.events)

    def _again(self, tree: Tree, path: str) -> Process | None:
        """The daemon of the look before, where it is still the same process."""
        watched = self._watched.get(path)
        if watched is None or watched.last is None:
            return None
        process = process_of(tree, watched.last.pid)
        if process is None or not process.is_there or process.started_s != watched.last.started_s:
            return None
        return process


def fuse_mounts(text: str) -> dict[str, Mount]:
    """Mount point -> FUSE mount that is storage."""
    found: dict[str, Mount] = {}
    for mount in mounts(text):
        kind, _, service = mount.kind.partition(".")
        if kind == "fuse" and service not in NOT_DAEMONS and (mount.path in found or len(found) < MOUNTS_MAX):
            found[mount.path] = mount
    return found


def search(tree: Tree, missing: dict[str, Mount], named: dict[str, str]) -> dict[str, Process | None]:
    """Looks through all processes for daemons. Cost: one small file a process, more for the few that fit."""
    found: dict[str, tuple[int, Process]] = {}
    for name in tree.list("proc")[:PROCESSES_MAX]:
        if not (name.isascii() and name.isdigit()):
            continue
        words = _words(tree, name)
        fits = [
            path for path in missing if words and (path in words[1:] or _program(words) == named.get(path))
        ]
        opened = _connections(tree, name) if fits or _may_serve(words, missing) else None
        for path in missing:
            certainty = _certainty(missing[path], path in fits, opened)
            if certainty > found.get(path, (0, None))[0]:
                process = process_of(tree, int(name))
                if process is not None and process.is_there:
                    found[path] = certainty, process
    return {path: found[path][1] if path in found else None for path in missing}


def _certainty(mount: Mount, fits: bool, opened: set[int | None] | None) -> int:
    """How sure it is that a process is the mount's daemon; 0: it is not.

    ``opened``: connections of /dev/fuse that it has; None for one whose number is not told.
    """
    if opened and mount.device_minor in opened:
        return 3
    if fits and opened:
        return 2 if None in opened else 0
    return 1 if fits and opened is None else 0


def _may_serve(words: list[str], missing: dict[str, Mount]) -> bool:
    """Whether a program's name is that of a mount's kind: ``blobfs`` serves ``fuse.blobfs``."""
    kinds = {mount.kind.partition(".")[2] for mount in missing.values()} - {""}
    return bool(words) and any(kind in _program(words) for kind in kinds)


def _program(words: list[str]) -> str:
    return words[0].rpartition("/")[2]


def _words(tree: Tree, pid: str) -> list[str]:
    try:
        return tree.read_bytes(f"proc/{pid}/cmdline", 4_096).decode("utf-8", "replace").split("\0")
    except OSError:
        return []


def _connections(tree: Tree, pid: str) -> set[int | None] | None:
    """The FUSE connections that a process serves; None where its descriptors may not be seen."""
    descriptors = tree.list(f"proc/{pid}/fd")[:DESCRIPTORS_MAX]
    if not descriptors:
        return None
    found: set[int | None] = set()
    for number in descriptors:
        try:
            if str((tree.root / f"proc/{pid}/fd/{number}").readlink()) != "/dev/fuse":
                continue
            text = tree.read_text(f"proc/{pid}/fdinfo/{number}", 4_096)
        except OSError:
            continue
        found.add(connection_of(text))
    return found


def connection_of(fdinfo: str) -> int | None:
    """The number of the connection that an open /dev/fuse serves, where the kernel tells it."""
    for line in fdinfo.splitlines():
        key, _, value = line.partition(":")
        if key == "fuse_connection" and value.strip().isascii() and value.strip().isdigit():
            return int(value.strip()[:20])
    return None


def process_of(tree: Tree, pid: int) -> Process | None:
    """One process; None where there is none or its line is damaged."""
    try:
        return parse_stat(tree.read_text(f"proc/{pid}/stat", 4_096))
    except OSError:
        return None


def parse_stat(text: str) -> Process | None:
    """A line of /proc/PID/stat. The program's name may hold spaces and brackets."""
    head, bracket, tail = text.rpartition(")")
    words, pid = tail.split(), head.partition(" ")[0]
    numbers = [word for at, word in enumerate(words[: _RSS + 1]) if at != _STATE]
    if not bracket or len(words) <= _RSS or not pid.isdigit() or len(pid) > 9:
        return None
    if not all(word.lstrip("-").isdigit() and word.isascii() and len(word) <= 20 for word in numbers):
        return None
    cpu_ticks = int(words[_UTIME]) + int(words[_STIME])
    started_s, rss_bytes = int(words[_START]) / _TICKS_PER_S, int(words[_RSS]) * _PAGE_BYTES
    return Process(
        int(pid), words[_STATE][:1], cpu_ticks / _TICKS_PER_S, int(words[_THREADS]), started_s, rss_bytes
    )


def _named(tree: Tree) -> dict[str, str]:
    """Mount point -> its daemon's program, as the inventory says."""
    tables = inventory(tree).get("mount")
    told = (
        [table for table in tables[:MOUNTS_MAX] if isinstance(table, dict)]
        if isinstance(tables, list)
        else []
    )
    pairs = [(table.get("path"), table.get("daemon")) for table in told]
    return {path: daemon for path, daemon in pairs if isinstance(path, str) and isinstance(daemon, str)}


def _tell(told: _Told, path: str, now: Process | None, watched: _Watched, at_s: float, named: bool) -> None:
    """Samples and events of one mount's daemon; remembers it."""
    entity, last = f"mount/{path}", watched.last
    if now is None:
        gone = watched.found_once or named
        told.samples.append(
            Sample(entity, "daemon_running_count", 0 if gone else None, OK if gone else NOT_FOUND)
        )
        if gone:
            text = f"the FUSE daemon of {path} does not run"
            told.events.append(SourceEvent(entity, "fuse_daemon_gone", text, "critical", standing=True))
        return
    if last is not None and (last.pid, last.started_s) != (now.pid, now.started_s):
        watched.restarts += 1
        attributes: dict[str, Attribute] = {"pid": now.pid, "old_pid": last.pid}
        text = f"the FUSE daemon of {path} was started again"
        told.events.append(SourceEvent(entity, "fuse_daemon_restarted", text, attributes=attributes))
        last = None
    watched.blocked_looks = watched.blocked_looks + 1 if now.state == "D" else 0
    told.samples += _samples(entity, now, last, at_s - watched.at_s, watched.restarts)
    if watched.blocked_looks >= BLOCKED_LOOKS:
        text = f"the FUSE daemon of {path} (process {now.pid}) is blocked in the kernel"
        blocked: dict[str, Attribute] = {"pid": now.pid}
        told.events.append(
            SourceEvent(entity, "fuse_daemon_blocked", text, attributes=blocked, standing=True)
        )
    watched.last, watched.at_s, watched.found_once = now, at_s, True


def _samples(
    entity: str, now: Process, last: Process | None, passed_s: float, restarts: int
) -> Iterator[Sample]:
    yield Sample(entity, "daemon_running_count", 1)
    yield Sample(entity, "daemon_blocked_count", int(now.state == "D"))
    known = last is not None and passed_s > 0
    used = max(0.0, now.cpu_s - last.cpu_s) / passed_s if last is not None and passed_s > 0 else None
    yield Sample(entity, "daemon_cpu_ratio", used, OK if known else FIRST_SAMPLE)
    yield Sample(entity, "daemon_rss_bytes", now.rss_bytes)
    yield Sample(entity, "daemon_threads_count", now.threads)
    yield Sample(entity, "daemon_restarts_total", restarts)
