"""The kernel's log: GPU faults, links, hung tasks, memory, disks, file systems, each with its own time.

In: dev/kmsg (live: read record by record; a tree: the whole file), else a journal of it; proc/stat for the
time of boot. Out: events only. Goes on by boot and sequence number, so an old fault is not told twice; what
the log lost in between is a ``kmsg_gap``.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Final

from collectors.minute import MetricSpec
from collectors.sources import kernel_lines, xid_lines
from collectors.sources.base import HOST, OK, Attribute, Reading, Sample, SourceEvent
from collectors.sources.gpu_identity import GPUS_MAX
from collectors.sources.kernel_lines import Place
from collectors.sources.kmsg import KmsgReader, Lost, Record, fresh, parse, parse_journal
from collectors.sources.tools import output
from collectors.sources.tree import Tree, reason

KMSG: Final = "dev/kmsg"
JOURNAL: Final = "journalctl_-k_-o_json.json"
JOURNAL_EVERY_LOOKS: Final = 30
JOURNAL_RECORDS: Final = 2_000
JOURNAL_TIMEOUT_S: Final = 4.0
RECORDED_MAX_BYTES: Final = 16 * 1024 * 1024
"""of a recorded log; the largest buffer that distributions give the kernel's."""
REPEATS_MAX: Final = 200
"""Events of one kind and code of one part at one look; what is beyond is counted in a ``kmsg_flood``."""
KINDS_MAX: Final = 500


class KernelLogSource:
    """Everything in the log that is a fault, a link that went, or a loss of the log itself."""

    name = "kernel_log"
    period_s = 1.0
    deadline_s = 5.0
    metrics = (MetricSpec("kernel_log_readable_count", "count", 1.0),)

    def __init__(self) -> None:
        self._reader: KmsgReader | None = None
        self._boot_id: str | None = None
        self._last: Record | None = None
        self._xids = xid_lines.Memory()
        self._killed: dict[int, int] = {}
        self._listed: dict[str, str] = {}
        self._kept_in: Path | None = None
        self._journal_quality = OK
        self._looks_without = 0
        """looks since the log itself could not be read"""

    def keep_in(self, folder: Path) -> None:
        """Goes on where an agent before stopped, by what it wrote into ``folder``."""
        self._kept_in = folder / "kernel_log.json"
        try:
            told = json.loads(self._kept_in.read_text(encoding="ascii"))
            self._boot_id = str(told["boot_id"]) if told["boot_id"] else None
            self._last = Record(int(told["sequence"]), int(told["usec"]), "")
        except (OSError, ValueError, KeyError, TypeError):
            self._boot_id = self._last = None

    def read(self, tree: Tree, at_s: float) -> Reading:
        records, quality = self._records(tree)
        readable = Sample(HOST, "kernel_log_readable_count", 1 if quality == OK else None, quality)
        if not records and tree.is_paced:
            return Reading([readable])
        self._see_boot(tree.boot_id())
        place = Place(tree, _boot_ns(tree), self._listed)
        events = self._events(records, place, REPEATS_MAX if tree.is_live else None)
        if records:
            self._last = _later(self._last, records[-1])
            self._keep()
        if not tree.is_live:
            listed = self._listed if len(self._listed) < GPUS_MAX else {}
            self._listed = {**listed, **kernel_lines.listed_gpus(tree)}
        return Reading([readable], events)

    def _see_boot(self, boot_id: str | None) -> None:
        """Another boot counts its records from 0; one that is not told is taken for the same."""
        if boot_id is not None and boot_id != self._boot_id:
            if self._boot_id is not None:
                self._last = None
                self._xids, self._killed, self._listed = xid_lines.Memory(), {}, {}
            self._boot_id = boot_id

    def _records(self, tree: Tree) -> tuple[list[Record], str]:
        """All that the log holds (of the live one only what was not read before), and whether it can be read.

        Without the right to read it, an empty answer would look like a host without faults.
        """
        try:
            if tree.is_live:
                self._reader = self._reader or KmsgReader(f"/{KMSG}")
                return self._reader.read(), OK
            return parse(_recorded(tree)), OK
        except OSError as error:
            return self._journal(tree, reason(error))

    def _journal(self, tree: Tree, why_not: str) -> tuple[list[Record], str]:
        """The journal's copy; asked of a live machine rarely, since that starts a process.

        One without any record of the kernel is one that this user may not see, not a quiet kernel.
        """
        self._looks_without += 1
        if tree.is_live and self._looks_without % JOURNAL_EVERY_LOOKS != 1:
            return [], self._journal_quality
        argv = ["journalctl", "-k", "-o", "json", "-n", str(JOURNAL_RECORDS), "--no-pager"]
        try:
            records = parse_journal(output(tree, JOURNAL, argv, JOURNAL_TIMEOUT_S))
        except OSError:
            records = []
        self._journal_quality = OK if records else why_not
        return records, self._journal_quality

    def _events(self, records: list[Record], place: Place, repeats_max: int | None) -> list[SourceEvent]:
        seen = [record for record in records if record.from_kernel]
        self._xids.learn(seen, place)
        found: list[SourceEvent] = []
        teller = kernel_lines.Teller(place, self._killed)
        for record in fresh(records, self._last):
            if isinstance(record, Lost):
                found.append(_gap(record, place))
            elif record.from_kernel and (event := self._xids.event(record, place) or teller.event(record)):
                found.append(replace(event, t_ns=place.t_ns(record.usec)))
        found = xid_lines.with_recovery(found)
        return found if repeats_max is None else bounded(found, repeats_max)

    def _keep(self) -> None:
        if self._kept_in is None or self._last is None or self._last.sequence is None:
            return
        told = {"boot_id": self._boot_id, "sequence": self._last.sequence, "usec": self._last.usec}
        temporary = self._kept_in.with_suffix(".new")
        with contextlib.suppress(OSError):  # a full disk must not cost the events of this look
            temporary.write_text(json.dumps(told), encoding="ascii")
            temporary.replace(self._kept_in)


def _recorded(tree: Tree) -> bytes:
    """The end of a recorded log, from a whole line on: of a long one the newest records count."""
    with os.fdopen(tree.open(KMSG), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > RECORDED_MAX_BYTES:
            file.seek(size - RECORDED_MAX_BYTES - 1)
            file.readline()
        return file.read(RECORDED_MAX_BYTES)


def bounded(events: list[SourceEvent], repeats_max: int) -> list[SourceEvent]:
    """The first ``repeats_max`` of each kind and code of a part; of the others only how many there were.

    A node whose job cleans up after a fault prints thousands of the same Xid: the other faults are not lost.
    """
    counts: Counter[tuple[str, str, int | None]] = Counter()
    last: dict[tuple[str, str, int | None], SourceEvent] = {}
    kept: list[SourceEvent] = []
    for event in events:
        key = event.entity, event.kind, event.code
        if key not in counts and len(counts) >= KINDS_MAX:
            key = HOST, "others", None
        counts[key] += 1
        if counts[key] <= repeats_max:
            kept.append(event)
        else:
            last[key] = event
    for (entity, kind, code), event in last.items():
        more = counts[entity, kind, code] - repeats_max
        text = f"{more} more of {kind}{'' if code is None else f' {code}'} in the kernel log at this look"
        told: dict[str, Attribute] = {"kind": kind, "count": more}
        kept.append(SourceEvent(entity, "kmsg_flood", text, "warning", code, event.t_ns, told))
    return kept


def _later(last: Record | None, newest: Record) -> Record:
    """A log that was cut off at its end does not begin again."""
    if last is None or last.sequence is None or newest.sequence is None:
        return newest
    return newest if newest.sequence > last.sequence else last


def _gap(lost: Lost, place: Place) -> SourceEvent:
    text = f"{lost.count} records of the kernel log were lost before they were read"
    return SourceEvent(HOST, "kmsg_gap", text, t_ns=place.t_ns(lost.usec), attributes={"lost": lost.count})


def _boot_ns(tree: Tree) -> int | None:
    """Wall time of boot; None where it is not told."""
    try:
        for line in tree.read_text("proc/stat").splitlines():
            word, _, value = line.partition(" ")
            if word == "btime" and value.strip().isdigit() and len(value) < 16:
                return int(value) * 1_000_000_000
    except OSError:
        pass
    return None
