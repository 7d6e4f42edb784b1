"""What NCCL chose, from the lines it prints with NCCL_DEBUG=INFO.

In: lines of a rank's log, as bytes. Out: ``Choices`` per process: facts as short texts that are the same on
two nodes that chose the same: no addresses, no places of devices, no numbers of channels. Lines that are not
known are passed over. Source: NCCL user guide, "Troubleshooting", and its log lines of versions 2.4 to 2.28.
"""

from __future__ import annotations

import re
import zlib
from typing import Final

TEXT_MAX_CHARS: Final = 120
WAYS_MAX: Final = 8
"""Different values of one fact that one process may have."""
_MARK: Final = b"NCCL"
_LINE: Final = re.compile(rb":(\d{1,10}):\d{1,10} \[\d{1,4}\] NCCL INFO (.{1,4096})")
_VERSION: Final = re.compile(r"NCCL version (\d[\w.+-]{0,40})", re.ASCII)
_NAME: Final = r"[A-Za-z][\w .+-]{0,39}"
_NETWORK: Final = re.compile(rf"Using network ({_NAME})|Assigned NET plugin ({_NAME}) to ", re.ASCII)
_WAY_NAME: Final = re.compile(_NAME, re.ASCII)
_DEVICE: Final = re.compile(r"\[\d{1,3}\]\s?([\w.-]{1,32}):(\d{1,3})/([A-Za-z]{1,16})", re.ASCII)
_WAY: Final = re.compile(r"(?:Channel|Ring|Tree) .{1,120} via ([A-Za-z0-9].{0,120})")
_GID: Final = re.compile(
    r"\bqpn \d{1,10} .{0,200}?\bGID (\d{1,5}) \(|\bGID [Ii]ndex[ :=]{1,3}(\d{1,5})", re.ASCII
)
_CLASS: Final = re.compile(r"\b[Tt]raffic ?[Cc]lass[ :=]{1,3}(\d{1,5})", re.ASCII)
_SET: Final = re.compile(r"NCCL_IB_(GID_INDEX|TC) set (?:by environment )?to (\d{1,5})", re.ASCII)
_OF_SETTING: Final = {"GID_INDEX": "nccl.gid_index", "TC": "nccl.traffic_class"}
_INTRA: Final = frozenset({"P2P", "SHM"})
_INTER: Final = frozenset({"NET", "COLLNET"})


class Choices:
    """What one process chose, over all its communicators."""

    def __init__(self) -> None:
        self._told: dict[str, set[str]] = {}

    def take(self, text: str) -> None:
        """One line after ``NCCL INFO``."""
        if text.startswith(("Channel ", "Ring ", "Tree ")):
            self._take_way(text)
        elif text.startswith("NET/IB"):
            self._take_devices(text)
        elif match := _NETWORK.match(text):
            self._add("nccl.net", (match[1] or match[2]).strip())
        elif match := _VERSION.search(text):
            self._add("nccl.version", match[1])
        elif match := _SET.match(text):
            self._add(_OF_SETTING[match[1]], match[2])
        self._take_class(text)

    def facts(self) -> dict[str, str]:
        """Fact -> value; several values of one fact are joined in one order."""
        found = {fact: bounded(", ".join(sorted(values))) for fact, values in self._told.items()}
        return dict(sorted(found.items()))

    def _add(self, fact: str, value: str) -> None:
        values = self._told.setdefault(fact, set())
        if len(values) < WAYS_MAX:
            values.add(value)

    def _take_way(self, text: str) -> None:
        match = _WAY.match(text)
        if match is None:
            return
        kind, _, rest = match[1].strip().partition("/")
        word = re.split(r"/|\d\[", rest)[0].strip()
        if word and not _WAY_NAME.fullmatch(word):
            return
        if kind in _INTRA:
            self._add("nccl.transport_intra", f"{kind}/{word}" if word and kind == "P2P" else kind)
        elif kind in _INTER and word:
            self._add("nccl.transport_inter", f"{kind}/{word}")
            self._add("nccl.gdr", "yes" if "/GDRDMA" in rest else "no")

    def _take_devices(self, text: str) -> None:
        """The list of devices in NCCL's own order, which is that of their places on the bus."""
        if "No device found" in text:
            self._add("nccl.hca", "none")
        elif ": Using " in text[:16]:
            devices = _DEVICE.findall(text.partition(";")[0])
            layers = sorted({layer for *_, layer in devices})
            if devices:
                names = " ".join(f"{name}:{port}" for name, port, _ in devices)
                self._add("nccl.hca", bounded(f"{'+'.join(layers)} {names}"))
        elif match := _GID.search(text):
            self._add("nccl.gid_index", match[1] or match[2])

    def _take_class(self, text: str) -> None:
        if "lass" in text and (match := _CLASS.search(text)):
            self._add("nccl.traffic_class", match[1])


class ProcessChoices:
    """``Choices`` by the process ids that one file names, the newest ``pids_max`` of them."""

    def __init__(self, pids_max: int = 512) -> None:
        self._pids_max = pids_max
        self._by_pid: dict[int, Choices] = {}
        self.unnamed = Choices()
        """lines without a process, as older versions print theirs"""

    def take(self, line: bytes) -> None:
        """One line of a log, whatever it says."""
        if _MARK not in line:
            return
        match = _LINE.search(line)
        if match is not None:
            self._of(int(match[1])).take(match[2].decode("utf-8", "replace"))
        elif line.startswith(b"NCCL version "):
            self.unnamed.take(line[:128].decode("utf-8", "replace"))

    def get(self, pid: int) -> Choices | None:
        return self._by_pid.get(pid)

    def _of(self, pid: int) -> Choices:
        found = self._by_pid.get(pid)
        if found is None:
            if len(self._by_pid) >= self._pids_max:
                del self._by_pid[next(iter(self._by_pid))]
            found = self._by_pid[pid] = Choices()
        return found


def bounded(text: str) -> str:
    """At most ``TEXT_MAX_CHARS``; what is cut is told apart by a checksum of the whole."""
    if len(text) <= TEXT_MAX_CHARS:
        return text
    return f"{text[: TEXT_MAX_CHARS - 10]} #{zlib.crc32(text.encode('utf-8', 'replace')):08x}"
