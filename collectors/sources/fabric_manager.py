"""NVIDIA's fabric manager as its log tells it: faults of NVSwitches and NVLinks, and how its start ended.

In: /var/log/fabricmanager.log. Out: events, and ``fabric_manager_ready_count``: 1 after it has said that the
switches are configured, 0 after it has given up, unknown before it has said either. Whether it runs now is
not in its log; the driver tells that (``gpu_nvml``). The log bears the host's own time without a zone, so an
event has the time of the look, and the log's words beside it. What stands in the log at the first look is
history: it sets the state and is not told.

Forms: ``[Jul 23 2024 07:53:55] [ERROR] [tid 841] detected NVSwitch fatal error 20034 on fid 0 on NVSwitch pci
bus id 00000000:86:00.0 physical id 3 port 33``; newer ones name ``NodeId`` in place of ``fid``, some lack the
thread. Source: NVIDIA's Fabric Manager User Guide and lines in public bug reports.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from collectors.formats.secrets import masked
from collectors.minute import MetricSpec
from collectors.sources.base import HOST, OK, Attribute, Reading, Sample, SourceEvent
from collectors.sources.gpu_identity import normal_bdf
from collectors.sources.tail import Tail
from collectors.sources.tail_files import Marks, NamedFile, is_local, kind_of_path
from collectors.sources.tree import Tree, printable, reason
from collectors.wire.records import Severity

LOG: Final = "var/log/fabricmanager.log"
READY: Final = "fabric_manager_ready_count"
NOT_TOLD: Final = "not_told"
LOOK_MAX_BYTES: Final = 256 * 1024
EVENTS_MAX: Final = 64
TEXT_MAX_CHARS: Final = 400

_LINE: Final = re.compile(
    r"(?:\[(?P<at>[A-Z][a-z]{2} \d{1,2} \d{4} \d\d:\d\d:\d\d)\] )?\[(?P<level>[A-Z]{1,10})\] ?"
    r"(?:\[tid \d{1,10}\] ?)?(?P<text>.{1,4000})"
)
_SXID: Final = re.compile(
    r"detected NVSwitch (?P<fatal>non-fatal|fatal) error (?P<code>\d{1,6})(?P<where>.{0,300})", re.IGNORECASE
)
_WHERE: Final = {
    "bus": re.compile(r"pci bus id ([0-9a-fA-F:.]{7,16})"),
    "physical_id": re.compile(r"physical id (\d{1,6})"),
    "port": re.compile(r"\bport (\d{1,6})"),
}
_CONFIGURED: Final = re.compile(r"successfully configured all the available\b", re.IGNORECASE)
_GAVE_UP: Final = re.compile(
    r"aborting fabric manager|interface version \S{1,40} (?:don't|doesn't|does not) match with driver version"
    r"|\[NV_WARN_NOTHING_TO_DO\]|failed to configure all the available",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Said:
    """What one line says. ``ready``: None where it is not about that."""

    level: str
    text: str
    at: str = ""
    ready: bool | None = None
    code: int | None = None
    fatal: bool = False


class FabricManagerSource:
    """The log of this node's fabric manager; silent where there is none."""

    name = "fabric_manager"
    period_s = 15.0
    deadline_s = 5.0
    metrics = (MetricSpec(READY, "count", 1.0),)

    def __init__(self) -> None:
        self._tail = Tail()
        self._marks: Marks | None = None
        self._ready: bool | None = None
        self._is_local: bool | None = None
        self._was_missing = False
        """whether there was no log at a look before: then all of it is new"""

    def keep_in(self, folder: Path) -> None:
        """Goes on where an agent before stopped."""
        self._marks = Marks(folder / "fabric_manager.json")

    def read(self, tree: Tree, at_s: float) -> Reading:
        if not self._may_open(tree):
            return Reading()
        try:
            said, skipped_bytes = self._look(tree)
        except OSError as error:
            return Reading([Sample(HOST, READY, None, reason(error))])
        if self._tail.mark is None:
            self._was_missing = True
            return Reading()
        if self._marks is not None:
            self._marks.save({LOG: self._tail.mark})
        ready = None if self._ready is None else int(self._ready)
        sample = Sample(HOST, READY, ready, OK if ready is not None else NOT_TOLD)
        return Reading([sample], list(_events(said, skipped_bytes)))

    def _look(self, tree: Tree) -> tuple[list[Said], int]:
        """What is new in the log, and how much of it was skipped. Raises ``OSError``."""
        reader = NamedFile(tree, LOG)
        is_first = self._tail.mark is None and tree.is_live and not self._was_missing
        piece = self._tail.look(reader, LOOK_MAX_BYTES)
        said = self._learn(piece.lines)
        if not is_first:
            return said, piece.skipped_bytes
        before = self._marks.get(LOG) if self._marks is not None else None
        if before is None or self._tail.mark is None:
            return [], 0
        self._tail = Tail(before)  # the end of the log has told the state; now what is new to us
        piece = self._tail.look(reader, LOOK_MAX_BYTES)
        return self._learn(piece.lines), piece.skipped_bytes

    def _learn(self, lines: Iterable[bytes]) -> list[Said]:
        said = [one for line in lines if (one := parse(line)) is not None]
        for one in said:
            self._ready = self._ready if one.ready is None else one.ready
        return said

    def _may_open(self, tree: Tree) -> bool:
        """Asked once: /var/log does not move to another file system."""
        if self._is_local is None:
            try:
                kind = kind_of_path(tree.read_text("proc/self/mountinfo"), f"/{LOG}") if tree.is_live else ""
            except OSError:
                kind = ""
            self._is_local = is_local(kind) or not tree.is_live
        return self._is_local


def parse(line: bytes) -> Said | None:
    """What one line says; None: no line of this log, as the middle of a message of several lines."""
    match = _LINE.match(line.decode("utf-8", "replace"))
    if match is None:
        return None
    text = printable(match["text"]).strip()
    level, at = match["level"], match["at"] or ""
    if sxid := _SXID.search(text):
        return Said(level, text, at, None, int(sxid["code"]), sxid["fatal"].lower() == "fatal")
    if _CONFIGURED.search(text):
        return Said(level, text, at, ready=True)
    return Said(level, text, at, ready=False if _GAVE_UP.search(text) else None)


def _events(said: Iterable[Said], skipped_bytes: int) -> Iterable[SourceEvent]:
    """Equal ones as one with a count; what is only information is no event."""
    folded: dict[tuple[str, int | None, str], tuple[Said, int]] = {}
    for one in said:
        kind = _kind(one)
        if kind is not None:
            key = kind, one.code, re.sub(r"\d+", "#", one.text) if one.code is None else one.text
            folded[key] = one, folded.get(key, (one, 0))[1] + 1
    for (kind, _, _), (one, count) in list(folded.items())[:EVENTS_MAX]:
        yield _event(kind, one, count)
    more = sum(count for _, count in list(folded.values())[EVENTS_MAX:])
    if more or skipped_bytes:
        text = f"the fabric manager's log floods: {more} more faults, {skipped_bytes} bytes not looked at"
        flood: dict[str, Attribute] = {"count": more, "skipped_bytes": skipped_bytes}
        yield SourceEvent(HOST, "log_flood", text, attributes=flood)


def _kind(one: Said) -> str | None:
    if one.code is not None:
        return "fabric_sxid"
    if one.ready is not None:
        return "fabric_manager_ready" if one.ready else "fabric_manager_failed"
    return "fabric_manager_error" if one.level in ("ERROR", "CRITICAL", "ALERT", "EMERGENCY") else None


def _event(kind: str, one: Said, count: int) -> SourceEvent:
    severity: Severity = "info" if kind == "fabric_manager_ready" else "warning"
    if one.fatal or kind == "fabric_manager_failed":
        severity = "critical"
    told: dict[str, Attribute] = {"count": count, "logged_at": one.at or None}
    entity = HOST
    if one.code is not None:
        told["fatal"] = one.fatal
        for name, pattern in _WHERE.items():
            if found := pattern.search(one.text):
                told[name] = found[1] if name == "bus" else int(found[1])
        bus = told.pop("bus", None)
        if isinstance(bus, str) and (bdf := normal_bdf(bus)):
            told["bdf"], entity = bdf, f"pci/{bdf}"
    return SourceEvent(entity, kind, masked(one.text)[:TEXT_MAX_CHARS], severity, one.code, attributes=told)
