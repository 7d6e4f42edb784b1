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
        name, colon, value = line.strip().rpartition(":")
        if colon and value.strip() and wanted(name) and len(found) < STATS_MAX:
            found[name] = parsed(value)
    return found


class KernelStats:
    """Asks the kernel for statistics of its devices. Names are asked for once per device."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[int, list[tuple[int, str]]]] = {}
        """device -> how many statistics it has, and the place and name of those that are kept"""

    def read(self, netdev: str, wanted: Callable[[str], bool] = is_kept) -> dict[str, Count]:
        """Statistic -> value, of those that are kept and ``wanted``.

        Raises:
            OSError: the device is gone, or its driver has none.
        """
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            count = self._count(sock, netdev)
            known, kept = self._kept.get(netdev, (-1, []))
            if known != count:
                named = enumerate(self._strings(sock, netdev, count))
                kept = [(at, name) for at, name in named if is_kept(name)][:STATS_MAX]
                self._kept[netdev] = count, kept
            values = self._values(sock, netdev, count)
        return {name: Count(values[at]) for at, name in kept if wanted(name)}

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

    def _values(self, sock: socket.socket, netdev: str, count: int) -> tuple[int, ...]:
        head = struct.pack("=II", _GSTATS, count)
        block = array.array("B", head + bytes(8 * count))
        _ask(sock, netdev, block)
        return struct.unpack(f"={count}Q", block.tobytes()[len(head) :])


def _ask(sock: socket.socket, netdev: str, block: array.array[int]) -> None:
    address, _ = block.buffer_info()
    fcntl.ioctl(sock.fileno(), _SIOCETHTOOL, struct.pack("16sP16x", netdev.encode()[:15], address))
