"""Reads proc/self/mountstats and proc/self/mountinfo. Pure functions of text.

In: the files' text. Out: ``NfsMount`` and ``Mount``. Unknown lines are passed over: ``impl_id`` may
hold newlines, and newer kernels add lines and numbers. Source: net/sunrpc/stats.c, net/sunrpc/xprtsock.c and
fs/nfs/super.c of Linux; proc_pid_mountinfo(5).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

MOUNTS_MAX: Final = 256
OPS_MAX: Final = 128
PATH_MAX_CHARS: Final = 128

_DEVICE: Final = re.compile(r"device (?P<device>.+) mounted on (?P<path>\S+) with fstype (?P<kind>\S+)")
_OP: Final = re.compile(r"\s+([A-Z][A-Z0-9_]{0,40}): ((?:\d{1,20} ?){8,16})\s*")
_OCTAL: Final = re.compile(r"\\([0-7]{3})")
_SENDS_AT: Final = {"tcp": 5, "tcp-tls": 5, "rdma": 5, "udp": 2, "local": 4}
"""Where ``sends`` stands among an xprt line's numbers; ``recvs`` follows it."""


@dataclass(frozen=True, slots=True)
class Op:
    """What one kind of RPC has done since the mount. Times are sums over ``ops``."""

    ops: int
    transmissions: int
    bytes_sent: int
    bytes_received: int
    queue_ms: int
    rtt_ms: int
    execute_ms: int
    errors: int | None
    """None before kernel 5.3."""


@dataclass(slots=True)
class NfsMount:
    """Counters of one NFS mount."""

    path: str
    server: str
    age_s: int | None = None
    bytes_moved: tuple[int, ...] = ()
    """Application read, write, direct read, direct write, server read, server write."""
    sends: int = 0
    receives: int = 0
    transports: int = 0
    ops: dict[str, Op] = field(default_factory=dict)

    @property
    def retransmitted(self) -> int:
        """Transmissions of finished RPCs beyond the first: each is a send that never gets its own receive."""
        return sum(max(0, op.transmissions - op.ops) for op in self.ops.values())


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of mountinfo."""

    path: str
    kind: str
    device_minor: int


def unescape(text: str) -> str:
    """Spaces, tabs, newlines and backslashes stand as octal in the kernel's lists of mounts."""
    raw = _OCTAL.sub(lambda match: chr(int(match[1], 8) & 0xFF), text)
    return raw.encode("latin-1", "replace").decode("utf-8", "replace") if raw != text else raw


def path_of(text: str) -> str | None:
    """A mount point that can be a name, or None."""
    path = unescape(text)
    return path if path.startswith("/") and path.isprintable() and len(path) <= PATH_MAX_CHARS else None


def nfs_mounts(text: str) -> list[NfsMount]:
    """The NFS mounts of mountstats, at most ``MOUNTS_MAX``, the last one of a path that is mounted over."""
    found: dict[str, NfsMount] = {}
    current: NfsMount | None = None
    for line in text.splitlines():
        if line.startswith("device "):
            current = _begin(line)
            if current is not None and (current.path in found or len(found) < MOUNTS_MAX):
                found[current.path] = current
        elif current is not None:
            _take(current, line)
    return list(found.values())


def _begin(line: str) -> NfsMount | None:
    match = _DEVICE.match(line)
    path = path_of(match["path"]) if match else None
    if match is None or path is None or match["kind"] not in ("nfs", "nfs4"):
        return None
    server = unescape(match["device"]).rpartition(":/")[0] or unescape(match["device"])
    return NfsMount(path, server[:128] if server.isprintable() else "unknown")


def _take(mount: NfsMount, line: str) -> None:
    key, _, rest = line.partition(":")
    key = key.strip()
    if key.isupper():  # most lines are those of operations, and most of them the same at each look
        if len(mount.ops) < OPS_MAX and (told := _op(line)) is not None:
            mount.ops[told[0]] = told[1]
    elif key == "age":
        words = rest.split(maxsplit=1)
        mount.age_s = int(words[0]) if words and _is_number(words[0]) else mount.age_s
    elif key == "bytes":
        words = rest.split()
        if len(words) >= 6 and all(map(_is_number, words[:6])):
            mount.bytes_moved = tuple(int(word) for word in words[:6])
    elif key == "xprt" and (moved := _transport(rest)) is not None:
        mount.sends += moved[0]
        mount.receives += moved[1]
        mount.transports += 1


@functools.lru_cache(maxsize=1_024)
def _transport(rest: str) -> tuple[int, int] | None:
    """(sends, receives) of a transport; one without traffic prints the same line at each look."""
    words = rest.split()
    at = _SENDS_AT.get(words[0]) if words else None
    numbers = words[1:]
    if at is None or len(numbers) <= at + 1 or not all(map(_is_number, numbers[at : at + 2])):
        return None
    return int(numbers[at]), int(numbers[at + 1])


@functools.lru_cache(maxsize=4_096)
def _op(line: str) -> tuple[str, Op] | None:
    """(name, counters) of a line of one kind of RPC. Of most kinds nothing changes from second to second."""
    match = _OP.fullmatch(line)
    if match is None:
        return None
    ops, sent, _, out, back, queue, rtt, execute, *more = (int(word) for word in match[2].split())
    return match[1].lower(), Op(ops, sent, out, back, queue, rtt, execute, more[0] if more else None)


def mounts(text: str) -> Iterator[Mount]:
    """The lines of mountinfo whose mount point can be a name, at most 16 times ``MOUNTS_MAX``."""
    for line in text.split("\n")[: 16 * MOUNTS_MAX]:
        left, dash, right = line.partition(" - ")
        words, kinds = left.split(" "), right.split(" ")
        if not dash or len(words) < 6:
            continue
        minor = words[2].partition(":")[2]
        path = path_of(words[4])
        if path is not None and _is_number(minor) and kinds[0].isprintable():
            yield Mount(path, kinds[0][:64], int(minor))


def _is_number(word: str) -> bool:
    return word.isascii() and word.isdigit() and len(word) <= 20
