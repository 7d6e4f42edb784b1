"""What ranks print: time-outs, tracebacks, errors of CUDA and NCCL, from their logs as they grow.

In: files on this node's own disks that a rank has as descriptor 1 or 2. Out: events ``log_<kind>`` with the
kinds of ``formats.job_log``, secrets masked; ``log_flood`` for what was too much. A log on a network mount is
not read and said so once. What stands in a log when the agent first sees it at its own start is history. The
end of a dead rank's log is read where its path leads to that same file, on this host or in a container of its
job's other processes here; else ``log_end_unread`` says that it is not known.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from collectors.formats.job_log import LogEvent, LogParser
from collectors.formats.secrets import masked
from collectors.minute import MetricSpec
from collectors.sources.base import Attribute, Reading, Sample, SourceEvent
from collectors.sources.job_logs_files import OUTPUTS, OneFile, Output, output, regular
from collectors.sources.rank_list import Member, RankList
from collectors.sources.tail import FileId, Tail
from collectors.sources.tail_files import DiskFile, Marks, disk_file, is_local, kind_of_path
from collectors.sources.tree import Tree, printable
from collectors.wire.records import Severity

READABLE: Final = "job_log_readable_count"
NETWORK: Final = "network_file_system"
LOOK_MAX_BYTES: Final = 1024 * 1024
CHUNK_BYTES: Final = 16 * 1024
EVENTS_MAX: Final = 256
PARSER_LINES_MAX: Final = 20_000
AGAIN_S: Final = 300.0
FOLDS_MAX: Final = 4_096
ROOTS_MAX: Final = 4
TEXT_MAX_CHARS: Final = 400
_NO_FAULT: Final = frozenset({"comm_init", "group_size"})
_MILD: Final = frozenset({"progress", "restart", "told_to_end"})


@dataclass(slots=True)
class _Log:
    """One file and who writes to it."""

    tail: Tail
    job: str
    path: str
    writers: set[str] = field(default_factory=set)
    parser: LogParser = field(default_factory=lambda: LogParser(""))
    lines: int = 0

    @property
    def entity(self) -> str:
        return next(iter(self.writers)) if len(self.writers) == 1 else f"job/{self.job}"


@dataclass(slots=True)
class _Fold:
    """Events that say the same. ``count``: those not told yet."""

    event: SourceEvent
    told_s: float
    count: int = 0


class JobLogsSource:
    """The logs of this node's ranks; silent where there are none."""

    name = "job_logs"
    period_s = 15.0
    deadline_s = 5.0
    metrics = (MetricSpec(READABLE, "count", 1.0),)

    def __init__(self) -> None:
        self._ranks = RankList()
        self._outputs: dict[str, Output] = {}
        self._logs: dict[FileId, _Log] = {}
        self._folds: dict[tuple[str, str, str], _Fold] = {}
        self._refused: set[str] = set()
        self._marks: Marks | None = None
        self._is_started = False

    def keep_in(self, folder: Path) -> None:
        """Goes on where an agent before stopped."""
        self._marks = Marks(folder / "job_logs.json")

    def read(self, tree: Tree, at_s: float) -> Reading:
        members = self._ranks.members(tree, at_s)
        files, samples = self._find(tree, members)
        gone = {one: log for one, log in self._logs.items() if one not in files}
        go_on = {writer for one in files for writer in self._logs[one].writers}
        unread = []
        for one, log in gone.items():
            living = [member.pid for member in members if member.rank.job == log.job]
            file = _left_behind(tree, one, log, living)
            if file is not None:
                files[one] = file
            elif not log.writers & go_on:  # else it was rotated
                unread.append(_unread(log))
        events = self._look(files, set(gone), at_s) + unread
        if self._marks is not None and self._logs:
            self._marks.save({_key(one): log.tail.mark for one, log in self._logs.items()})
        for one in gone:
            del self._logs[one]
        self._is_started = True
        return Reading(samples, [*events, *self._due(at_s)])

    def _find(self, tree: Tree, members: list[Member]) -> tuple[dict[FileId, DiskFile], list[Sample]]:
        """The files of all ranks, each once, and a sample for each rank whose log is elsewhere."""
        files: dict[FileId, DiskFile] = {}
        outputs: dict[str, Output] = {}
        refused: set[str] = set()
        for member in members:
            for number in OUTPUTS:
                name = f"proc/{member.pid}/fd/{number}"
                found = output(tree, member.pid, number, self._outputs.get(name))
                if found is None:
                    continue
                outputs[name] = found
                if found.kind and not found.is_local:
                    refused.add(member.entity)
                file = None
                with contextlib.suppress(OSError):  # it ended just now: what became of its file is seen below
                    file = regular(tree, found) if found.is_local else None
                if file is not None:
                    files[file.id] = file
                    self._log(file.id, member.rank.job, found.path).writers.add(member.entity)
        new = sorted(refused - self._refused)
        self._outputs, self._refused = outputs, refused
        return files, [Sample(entity, READABLE, None, NETWORK) for entity in new]

    def _log(self, one: FileId, job: str, path: str) -> _Log:
        log = self._logs.get(one)
        if log is None:
            mark = self._marks.get(_key(one)) if self._marks is not None else None
            log = self._logs[one] = _Log(Tail(mark), job, path)
        return log

    def _look(self, files: dict[FileId, DiskFile], gone: set[FileId], at_s: float) -> list[SourceEvent]:
        """What is new in all files; those with little news leave their share to the others."""
        waiting_bytes = {one: self._logs[one].tail.unread_bytes(file) for one, file in files.items()}
        told: list[SourceEvent] = []
        left, events_left = LOOK_MAX_BYTES, EVENTS_MAX
        for done, (one, waiting) in enumerate(sorted(waiting_bytes.items(), key=lambda item: item[1])):
            if not waiting and one not in gone and self._logs[one].tail.mark is not None:
                continue
            log, before = self._logs[one], self._logs[one].tail.mark
            share = left // (len(files) - done)
            try:
                piece = log.tail.look(OneFile(files[one]), share, one in gone)
            except OSError:
                continue  # nothing is lost: the next look reads it
            left -= min(waiting, share)
            if before is None and not self._is_started and files[one].tree.is_live:
                continue
            events, skipped_lines = _parsed(log, piece.lines, events_left)
            events_left -= len(events)
            told += self._folded(log, events, at_s)
            if skipped_lines or piece.skipped_bytes:
                told.append(_flood(log, skipped_lines, piece.skipped_bytes))
        return told

    def _folded(self, log: _Log, events: Iterable[LogEvent], at_s: float) -> Iterable[SourceEvent]:
        """Those that say something for the first time; the rest is counted."""
        for event in (_event(log, one) for one in events if one.kind not in _NO_FAULT):
            key = event.entity, event.kind, re.sub(r"\d+", "#", event.message)
            fold = self._folds.get(key)
            if fold is not None:
                fold.event, fold.count = event, fold.count + 1
            elif len(self._folds) < FOLDS_MAX:
                self._folds[key] = _Fold(event, at_s)
                yield event

    def _due(self, at_s: float) -> list[SourceEvent]:
        told: list[SourceEvent] = []
        for key, fold in list(self._folds.items()):
            if at_s - fold.told_s < AGAIN_S:
                continue
            if not fold.count:
                del self._folds[key]
                continue
            event, attributes = fold.event, {**fold.event.attributes, "count": fold.count}
            told.append(
                SourceEvent(event.entity, event.kind, event.message, event.severity, attributes=attributes)
            )
            fold.told_s, fold.count = at_s, 0
        return told


def _left_behind(tree: Tree, one: FileId, log: _Log, living: list[int]) -> DiskFile | None:
    """The file of a rank that has ended, by its path, where that is the same file on a disk of this node.

    In a container the path leads elsewhere than on the host: then by the roots of ``living``, processes of
    its job. No file is kept open for this: it would keep its file system busy.
    """
    views = [("proc/self/mountinfo", "")]
    views += [(f"proc/{pid}/mountinfo", f"proc/{pid}/root/") for pid in living[:ROOTS_MAX]]
    for mounts, root in views:
        try:
            kind = kind_of_path(tree.read_text(mounts), log.path)
            file = disk_file(tree, f"{root}{log.path[1:]}") if is_local(kind) else None
        except OSError:
            continue
        if file is not None and file.id == one:
            return file
    return None


def _unread(log: _Log) -> SourceEvent:
    text = "the log's last lines were not read: its file is gone, or its path is another file on this host"
    return SourceEvent(log.entity, "log_end_unread", text, "info")


def _parsed(log: _Log, lines: tuple[bytes, ...], events_max: int) -> tuple[list[LogEvent], int]:
    """(events, lines that were skipped because there were too many events)."""
    found: list[LogEvent] = []
    at = 0
    while at < len(lines):
        if len(found) >= events_max:
            log.parser, log.lines = LogParser(""), 0
            return found[:events_max], len(lines) - at
        start, size = at, 0
        while at < len(lines) and size < CHUNK_BYTES:
            size += len(lines[at]) + 1
            at += 1
        if log.lines >= PARSER_LINES_MAX:
            log.parser, log.lines = LogParser(""), 0
        log.parser.feed(b"\n".join(lines[start:at]) + b"\n")
        log.lines += at - start
        found += log.parser.take()[0]
    return found[:events_max], 0


def _event(log: _Log, one: LogEvent) -> SourceEvent:
    entity = log.entity if one.label.rank is None else f"job/{log.job}/rank/{one.label.rank}"
    severity: Severity = "info" if one.kind in _MILD else "warning"
    text = printable(masked(one.text))[:TEXT_MAX_CHARS]
    attributes: dict[str, Attribute] = {"count": 1}
    return SourceEvent(entity, f"log_{one.kind}", text, severity, attributes=attributes)


def _flood(log: _Log, lines: int, skipped_bytes: int) -> SourceEvent:
    text = f"the log floods: {lines} lines and {skipped_bytes} bytes were not looked at"
    told: dict[str, Attribute] = {"skipped_lines": lines, "skipped_bytes": skipped_bytes}
    return SourceEvent(log.entity, "log_flood", text, attributes=told)


def _key(one: FileId) -> str:
    return f"{one.device}:{one.inode}"
