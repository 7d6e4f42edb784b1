"""How fast each rank's collectives are, as NCCL's own Inspector plugin logs them.

In: what is new in the logs that ranks with ``NCCL_INSPECTOR_ENABLE=1`` have open, at most ``LOOK_MAX_BYTES``
a look. Out: samples of ``job/<id>/rank/<rank>`` per collective, group size, class of sizes and, where it has
one, the communicator's name. Of more than can be read the first and last part are: rates are then scaled and
called ``sampled``, and ``nccl_inspector_skipped`` says how much it was. A log on a network mount is not
touched. Bandwidths are gigabits a second, as those of links are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from collectors.minute import MetricSpec
from collectors.sources.base import FIRST_SAMPLE, OK, RESET, Attribute, Reading, Sample, SourceEvent
from collectors.sources.job_logs_files import OneFile, regular
from collectors.sources.nccl_inspector_files import Log, is_on
from collectors.sources.nccl_inspector_lines import Class, Labels, Window, other, window
from collectors.sources.rank_list import RankList
from collectors.sources.tail import FileId, Tail
from collectors.sources.tail_files import DiskFile
from collectors.sources.tree import Tree, reason

READABLE: Final = "nccl_inspector_readable_count"
DROPPED: Final = "nccl_inspector_dropped_count"
NETWORK: Final = "network_file_system"
UNKNOWN_MOUNT: Final = "unknown_file_system"
NO_LOG: Final = "no_log"
"""The plugin is on, and has no log open: it writes none, or only at the end."""
NO_OPS: Final = "no_ops"
SILENT: Final = "no_new_lines"
SAMPLED: Final = "sampled"
UNREADABLE: Final = "unreadable"
LOOK_MAX_BYTES: Final = 128 * 1024
LINE_MAX_BYTES: Final = 64 * 1024
"""A verbose line of 32 channels has about 10 kB."""
SHARE_MIN_BYTES: Final = 16 * 1024
KEPT_S: Final = 300.0
"""How long an operation that was not seen any more is told of."""
CLASSES_MAX: Final = 512
"""Of all ranks of a node."""
TOLD_AGAIN_S: Final = 300.0


@dataclass(slots=True)
class _Rank:
    """What is remembered of a rank."""

    log: Log
    tail: Tail = field(default_factory=lambda: Tail(line_max_bytes=LINE_MAX_BYTES))
    file: FileId | None = None
    newest_us: float | None = None
    seen_s: dict[Labels, float] = field(default_factory=dict)
    skipped_bytes: int = 0
    told_s: float | None = None


class NcclInspectorSource:
    """The Inspector logs of this node's ranks; silent where the plugin is not on."""

    name = "nccl_inspector"
    period_s = 15.0
    deadline_s = 5.0
    metrics = (
        MetricSpec("nccl_calls_per_s", "per_s", 0.001),
        MetricSpec("nccl_exec_s", "s", 0.000001),
        MetricSpec("nccl_exec_max_s", "s", 0.000001),
        MetricSpec("nccl_algorithm_bandwidth_gbps", "gbps", 0.01),
        MetricSpec("nccl_bus_bandwidth_gbps", "gbps", 0.01),
        MetricSpec(DROPPED, "count", 1.0),
        MetricSpec(READABLE, "count", 1.0),
    )

    def __init__(self) -> None:
        self._ranks = RankList()
        self._kept: dict[str, _Rank] = {}

    def read(self, tree: Tree, at_s: float) -> Reading:
        samples: list[Sample] = []
        events: list[SourceEvent] = []
        files = self._files(tree, at_s, samples)
        left = LOOK_MAX_BYTES
        waiting = {entity: self._kept[entity].tail.unread_bytes(file) for entity, file in files.items()}
        for done, (entity, unread) in enumerate(sorted(waiting.items(), key=lambda item: item[1])):
            share = max(left // (len(files) - done), SHARE_MIN_BYTES)
            left = max(0, left - min(unread, share))
            samples += self._look(entity, files[entity], share, at_s)
            events += _skipped(entity, self._kept[entity], at_s)
        return Reading(samples, events)

    def _files(self, tree: Tree, at_s: float, samples: list[Sample]) -> dict[str, DiskFile]:
        """Entity of a rank -> its log; ``samples`` gets why others have none."""
        kept: dict[str, _Rank] = {}
        files: dict[str, DiskFile] = {}
        for member in self._ranks.members(tree, at_s):
            if not is_on(member):
                continue
            before = self._kept.get(member.entity)
            rank = before if before is not None and before.log.pid == member.pid else _Rank(Log(member.pid))
            kept[member.entity] = rank
            file, why = _file(tree, rank.log, at_s)
            if file is None:
                samples.append(Sample(member.entity, READABLE, None, why))
                continue
            if file.id != rank.file:
                rank.file, rank.tail = file.id, Tail(line_max_bytes=LINE_MAX_BYTES)
                rank.newest_us = None
            files[member.entity] = file
        self._kept = kept
        return files

    def _look(self, entity: str, file: DiskFile, share: int, at_s: float) -> Iterator[Sample]:
        rank = self._kept[entity]
        try:
            piece = rank.tail.look(OneFile(file), share)
        except OSError as error:  # nothing is lost: the next look reads it
            yield Sample(entity, READABLE, None, reason(error))
            return
        found = window(piece.lines, rank.seen_s)
        if not piece.is_first:
            rank.skipped_bytes += piece.skipped_bytes
        if found.unreadable and not found.lines:
            yield Sample(entity, READABLE, None, UNREADABLE)
        else:
            yield Sample(entity, READABLE, 1)
        if found.dropped is not None:
            yield Sample(entity, DROPPED, found.dropped)
        read = sum(map(len, piece.lines)) + len(piece.lines)
        yield from self._classes(entity, found, _scale(read, piece.skipped_bytes), at_s)

    def _classes(self, entity: str, found: Window, scale: float, at_s: float) -> Iterator[Sample]:
        """Samples of what was seen now, and of what was seen lately and is not there."""
        rank = self._kept[entity]
        passed_s, quality = _passed_s(rank, found)
        if quality == OK and (scale != 1 or found.dropped):
            quality = SAMPLED
        room = CLASSES_MAX - sum(len(one.seen_s) for one in self._kept.values())
        for labels, one in _bounded(found.classes, rank.seen_s, room).items():
            rank.seen_s[labels] = at_s
            per_s = one.count * scale / passed_s if passed_s else None
            yield from _samples(entity, labels, one, (per_s, quality))
        for labels, last_s in list(rank.seen_s.items()):
            if labels in found.classes or last_s == at_s:
                continue
            if at_s - last_s > KEPT_S:
                del rank.seen_s[labels]
                continue
            is_none = passed_s is not None and scale == 1 and quality == OK
            why = NO_OPS if found.lines else SILENT
            rate = (0.0, OK) if is_none else (None, quality if found.lines else SILENT)
            yield from _absent(entity, labels, rate, why)
        rank.newest_us = found.newest_us if found.newest_us is not None else rank.newest_us


def _scale(read_bytes: int, skipped_bytes: int) -> float:
    """How much there was of each operation that was read."""
    return (read_bytes + skipped_bytes) / read_bytes if read_bytes and skipped_bytes else 1.0


def _file(tree: Tree, log: Log, at_s: float) -> tuple[DiskFile | None, str]:
    """The log, or why it is not read."""
    found = log.find(tree, at_s)
    if found is None:
        return None, NO_LOG
    if not found.kind:
        return None, UNKNOWN_MOUNT
    if not found.is_local:
        return None, NETWORK
    try:
        return regular(tree, found), NO_LOG
    except OSError as error:
        return None, reason(error)


def _passed_s(rank: _Rank, found: Window) -> tuple[float | None, str]:
    """Seconds that the lines are of, by the rank's own clock, which stamps every dump."""
    if found.newest_us is None or rank.newest_us is None:
        return None, FIRST_SAMPLE
    passed_s = (found.newest_us - rank.newest_us) / 1e6
    if passed_s == 0:  # the rest of a dump that was being written
        return None, FIRST_SAMPLE
    return (passed_s, OK) if passed_s > 0 else (None, RESET)


def _bounded(classes: dict[Labels, Class], known: dict[Labels, float], room: int) -> dict[Labels, Class]:
    """The classes, those beyond ``room`` put together."""
    kept: dict[Labels, Class] = {}
    for labels, one in classes.items():
        if labels not in known and labels != other():
            room -= 1
        place = labels if labels in known or room >= 0 else other()
        if place in kept:
            kept[place].join(one)
        else:
            kept[place] = one
    return kept


def _samples(entity: str, labels: Labels, one: Class, rate: tuple[float | None, str]) -> Iterator[Sample]:
    told = dict(labels)
    yield Sample(entity, "nccl_calls_per_s", *rate, told)
    yield Sample(entity, "nccl_exec_s", one.exec_s / one.count, OK, told)
    yield Sample(entity, "nccl_exec_max_s", one.exec_max_s, OK, told)
    for metric, gbit in (
        ("nccl_algorithm_bandwidth_gbps", one.algorithm_gbit),
        ("nccl_bus_bandwidth_gbps", one.bus_gbit),
    ):
        known = one.weighed_s > 0
        yield Sample(
            entity, metric, gbit / one.weighed_s if known else None, OK if known else "not_told", told
        )


def _absent(entity: str, labels: Labels, rate: tuple[float | None, str], why: str) -> Iterator[Sample]:
    told = dict(labels)
    yield Sample(entity, "nccl_calls_per_s", *rate, told)
    for spec in NcclInspectorSource.metrics[1:5]:
        yield Sample(entity, spec.name, None, why, told)


def _skipped(entity: str, rank: _Rank, at_s: float) -> Iterator[SourceEvent]:
    """Told when it begins, then with its sum as long as it goes on."""
    if not rank.skipped_bytes or (rank.told_s is not None and at_s - rank.told_s < TOLD_AGAIN_S):
        return
    told: dict[str, Attribute] = {"skipped_bytes": rank.skipped_bytes}
    text = f"the Inspector's log grows too fast: {rank.skipped_bytes} bytes were not looked at"
    yield SourceEvent(entity, "nccl_inspector_skipped", text, "info", attributes=told)
    rank.skipped_bytes, rank.told_s = 0, at_s
