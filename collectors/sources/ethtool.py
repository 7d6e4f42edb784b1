"""What a network driver counts: ``ethtool -S`` as text, or asked of the kernel of the live machine.

Source: ethtool(8); include/uapi/linux/ethtool.h of Linux (ETHTOOL_GSSET_INFO, GSTRINGS, GSTATS).
"""

from __future__ import annotations

import array
import fcntl
import functools
import re
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from collectors.sources.counters import Count, parsed

STATS_MAX: Final = 1_024
"""Statistics kept of one device, after those of its queues are left out."""

_SIOCETHTOOL: Final = 0x8946
_GSTRINGS: Final = 0x1B
_GSTATS: Final = 0x1D
_GSSET_INFO: Final = 0x37
_SET_OF_STATS: Final = 1
_NAME_BYTES: Final = 32
_ASKED_MAX: Final = 65_536
_STATS_HEAD: Final = struct.Struct("=II")
_ROOM: Final = 1_024
"""Statistics beyond those that were counted: a device that got more queues meanwhile fills in more."""
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,96}")
_OF_A_QUEUE: Final = re.compile(r"(rx|tx|ch|xsk|ptp)\w*?_?\d+_(?!.*phy)|\w*queue_?\d+", re.IGNORECASE)
_OF_A_PRIORITY: Final = re.compile(r"[rt]x_prio\d")


@functools.lru_cache(maxsize=8_192)
def is_kept(name: str) -> bool:
    """Whether a statistic is of the device: queues have thousands, and lanes and priorities few."""
    if _OF_A_PRIORITY.match(name) or name.endswith("_phy") or "_lane_" in name:
        return bool(_NAME.fullmatch(name))
    return bool(_NAME.fullmatch(name)) and not _OF_A_QUEUE.match(name)


def parse(text: str, wanted: Callable[[str], bool] = is_kept) -> dict[str, Count]:
    """Statistic -> value. Lines that are none are passed over: "no stats available" is an answer, too."""
    found: dict[str, Count] = {}
    for line in text.splitlines():
        told = _statistic(line)
        if told is not None and wanted(told[0]) and len(found) < STATS_MAX:
            found[told[0]] = told[1]
    return found


@functools.lru_cache(maxsize=4_096)
def _statistic(line: str) -> tuple[str, Count] | None:
    """(name, value) of one line. What counts errors prints the same line at each look."""
    name, colon, value = line.strip().rpartition(":")
    return (name, parsed(value)) if colon and value.strip() else None


@dataclass(slots=True)
class _Known:
    """What is remembered of one device: how many statistics it has, and where those are that are kept."""

    count: int
    kept: list[tuple[int, str]]
    block: array.array[int]
    """what the kernel fills at each look; some drivers tell thousands, so it is made once"""
    chosen: dict[Callable[[str], bool], list[tuple[int, str]]] = field(default_factory=dict)
    """what is wanted -> places and names of that"""


class KernelStats:
    """Asks the kernel of this machine. The names of a device are asked again when their number changes."""

    def __init__(self) -> None:
        self._devices: dict[str, _Known] = {}
        self._socket: socket.socket | None = None

    def read(self, netdev: str, wanted: Callable[[str], bool] = is_kept) -> dict[str, Count]:
        """Statistic -> value, of those that are kept and ``wanted``.

        Raises:
            OSError: the device is gone, or its driver has none.
        """
        if self._socket is None:
            self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        count = self._count(self._socket, netdev)
        known = self._devices.get(netdev)
        if known is None or known.count != count:
            named = enumerate(self._strings(self._socket, netdev, count))
            kept = [(at, name) for at, name in named if is_kept(name)][:STATS_MAX]
            known = _Known(count, kept, array.array("B", bytes(_STATS_HEAD.size + 8 * (count + _ROOM))))
            self._devices[netdev] = known
        if wanted not in known.chosen:
            known.chosen[wanted] = [(at, name) for at, name in known.kept if wanted(name)]
        values = self._values(self._socket, netdev, known)
        return {name: Count(values[at]) for at, name in known.chosen[wanted]}

    def _count(self, sock: socket.socket, netdev: str) -> int:
        block = array.array("B", struct.pack("=IIQI", _GSSET_INFO, 0, 1 << _SET_OF_STATS, 0))
        _ask(sock, netdev, block)
        _, _, mask, count = struct.unpack("=IIQI", block.tobytes())
        return min(count, _ASKED_MAX) if mask else 0

    def _strings(self, sock: socket.socket, netdev: str, count: int) -> list[str]:
        head = struct.pack("=III", _GSTRINGS, _SET_OF_STATS, count)
        block = array.array("B", head + bytes(_NAME_BYTES * count))
        _ask(sock, netdev, block)
        text = block.tobytes()[len(head) :]
        names = (text[at : at + _NAME_BYTES] for at in range(0, len(text), _NAME_BYTES))
        return [name.split(b"\0")[0].decode("ascii", "replace") for name in names]

    def _values(self, sock: socket.socket, netdev: str, known: _Known) -> memoryview:
        """One number of 64 bits for each statistic; of thousands only what is asked for becomes an object."""
        _STATS_HEAD.pack_into(known.block, 0, _GSTATS, known.count)
        _ask(sock, netdev, known.block)
        return memoryview(known.block)[_STATS_HEAD.size :].cast("Q")[: known.count]


def _ask(sock: socket.socket, netdev: str, block: array.array[int]) -> None:
    address, _ = block.buffer_info()
    fcntl.ioctl(sock.fileno(), _SIOCETHTOOL, struct.pack("16sP16x", netdev.encode()[:15], address))
