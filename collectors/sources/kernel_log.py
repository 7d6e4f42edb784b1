"""The kernel's log: GPU faults, links, hung tasks, memory, disks, file systems, each with its own time.

In: dev/kmsg (live: read record by record; a tree: the whole file), else a journal of it; proc/stat for the
time of boot. Out: events only. Goes on by boot and sequence number, so an old fault is not told twice; what
the log lost in between is a ``kmsg_gap``.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Final

from collectors.minute import MetricSpec
from collectors.sources import kernel_lines, xid_lines
from collectors.sources.base import HOST, OK, Reading, Sample, SourceEvent
from collectors.sources.infiniband import reason
from collectors.sources.kernel_lines import Place
from collectors.sources.kmsg import KmsgReader, Lost, Record, fresh, parse, parse_journal
from collectors.sources.tools import output
from collectors.sources.tree import Tree

KMSG: Final = "dev/kmsg"
JOURNAL: Final = "journalctl_-k_-o_json.json"
JOURNAL_EVERY_LOOKS: Final = 30
JOURNAL_RECORDS: Final = 2_000
JOURNAL_TIMEOUT_S: Final = 4.0
EVENTS_MAX: Final = 2_000
"""Events of one look; a log that floods is told as such beyond."""


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
        self._kept_in: Path | None = None
        self._looks_without = 0
        """looks since the log itself could not be read"""

    def keep_in(self, folder: Path) -> None:
        """Goes on where an agent before stopped, by what it wrote into ``folder``."""
        self._kept_in = folder / "kernel_log.json"
        try:
            told = json.loads(self._kept_in.read_text(encoding="ascii"))
            self._boot_id = str(told["boot_id"])
            self._last = Record(int(told["sequence"]), int(told["usec"]), "")
        except (OSError, ValueError, KeyError, TypeError):
            self._boot_id = self._last = None

    def read(self, tree: Tree, at_s: float) -> Reading:
        records, quality = self._records(tree)
        readable = Sample(HOST, "kernel_log_readable_count", 1 if quality == OK else None, quality)
        boot_id = _boot_id(tree)
        if boot_id != self._boot_id:
            self._last, self._boot_id = None, boot_id
            self._xids = xid_lines.Memory()
        if not records:
            return Reading([readable])
        place = Place(tree, _boot_ns(tree))
        events = self._events(records, place)
        self._last = records[-1]
        self._keep()
        return Reading([readable], events)

    def _records(self, tree: Tree) -> tuple[list[Record], str]:
        """All that the log holds (of the live one only what was not read before), and whether it can be read.

        Without the right to read it, an empty answer would look like a host without faults.
        """
        try:
            if tree.is_live:
                self._reader = self._reader or KmsgReader(f"/{KMSG}")
                return self._reader.read(), OK
            return parse(tree.read_bytes(KMSG)), OK
        except OSError as error:
            try:
                return parse_journal(self._journal(tree)), OK
            except OSError:
                return [], reason(error)

    def _journal(self, tree: Tree) -> bytes:
        """The journal's copy; asked of a live machine rarely, since that starts a process."""
        if tree.is_live and self._looks_without % JOURNAL_EVERY_LOOKS:
            self._looks_without += 1
            return b""
        self._looks_without += 1
        argv = ["journalctl", "-k", "-o", "json", "-n", str(JOURNAL_RECORDS), "--no-pager"]
        return output(tree, JOURNAL, argv, JOURNAL_TIMEOUT_S)

    def _events(self, records: list[Record], place: Place) -> list[SourceEvent]:
        seen = [record for record in records if record.from_kernel]
        self._xids.learn(seen, place)
        found: list[SourceEvent] = []
        teller = kernel_lines.Teller(place)
        for record in fresh(records, self._last):
            if len(found) >= EVENTS_MAX:
                text = f"more than {EVENTS_MAX} faults in the kernel log at one look: the rest is left out"
                found.append(SourceEvent(HOST, "kmsg_flood", text, t_ns=place.t_ns(record.usec)))
                break
            if isinstance(record, Lost):
                found.append(_gap(record, place))
            elif record.from_kernel and (event := self._xids.event(record, place) or teller.event(record)):
                found.append(replace(event, t_ns=place.t_ns(record.usec)))
        return xid_lines.with_recovery(found)

    def _keep(self) -> None:
        if self._kept_in is None or self._last is None or self._last.sequence is None:
            return
        told = {"boot_id": self._boot_id, "sequence": self._last.sequence, "usec": self._last.usec}
        temporary = self._kept_in.with_suffix(".new")
        temporary.write_text(json.dumps(told), encoding="ascii")
        temporary.replace(self._kept_in)


def _gap(lost: Lost, place: Place) -> SourceEvent:
    text = f"{lost.count} records of the kernel log were lost before they were read"
    return SourceEvent(HOST, "kmsg_gap", text, t_ns=place.t_ns(lost.usec), attributes={"lost": lost.count})


def _boot_id(tree: Tree) -> str | None:
    try:
        return tree.read_text("proc/sys/kernel/random/boot_id", 128).strip()[:64] or None
    except OSError:
        return None


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
