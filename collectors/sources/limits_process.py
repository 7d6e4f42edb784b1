"""What one process may have, and how much of that it has: descriptors, locked memory, RDMA.

In: /proc/PID/limits, fd and status. Out: ``Limit``, counts. The kernel tells the number of descriptors as the
size of the folder since 6.2; before, the folder is listed. Source: proc_pid_limits(5), proc_pid_fd(5);
ib_umem_get of Linux, which asks RLIMIT_MEMLOCK unless the process has CAP_IPC_LOCK.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Final

from collectors.sources.counters import Count, parsed
from collectors.sources.memory_cgroup import UNLIMITED
from collectors.sources.tree import Tree, reason

DESCRIPTORS_MAX: Final = 65_536
"""How far a folder is listed."""
AT_LEAST: Final = "at_least"
"""The quality of a count that stopped at ``DESCRIPTORS_MAX``."""
LINKS_MAX: Final = 512
"""Descriptors that are looked through for an RDMA device: libibverbs opens it early."""
_UNLIMITED_FROM: Final = 2**62
_LINE: Final = re.compile(r"(Max [a-z -]{2,24}?) {2,24}(\S{1,20}) +(\S{1,20})")
_NAMES: Final = {
    "Max open files": "nofile",
    "Max locked memory": "memlock",
    "Max processes": "nproc",
    "Max stack size": "stack",
    "Max core file size": "core",
}
_IPC_LOCK: Final = 14
"""CAP_IPC_LOCK of include/uapi/linux/capability.h."""
_VERBS: Final = "/dev/infiniband/uverbs"


@dataclass(frozen=True, slots=True)
class Limit:
    """Soft and hard limit; ``unlimited`` is None with that quality."""

    soft: Count
    hard: Count


def limits(text: str) -> dict[str, Limit]:
    """Limits of /proc/PID/limits by the names of ``ulimit``: bytes, and counts."""
    found = {}
    for line in text.splitlines()[:32]:
        match = _LINE.match(line)
        name = _NAMES.get(match[1]) if match else None
        if match and name:
            found[name] = Limit(_count(match[2]), _count(match[3]))
    return found


def _count(text: str) -> Count:
    count = Count(None, UNLIMITED) if text == "unlimited" else parsed(text)
    return Count(None, UNLIMITED) if (count.value or 0) >= _UNLIMITED_FROM else count


def told_descriptors(tree: Tree, pid: int) -> int | None:
    """Open descriptors as the folder's size tells them; None: this kernel does not, or it is no kernel."""
    if not tree.is_live:
        return None
    try:
        return os.stat(f"/proc/{pid}/fd").st_size or None  # noqa: PTH116  asked of each rank at each look
    except OSError:
        return None


def listed_descriptors(tree: Tree, pid: int) -> Count:
    """Open descriptors by listing the folder."""
    found = 0
    try:
        with os.scandir(tree.path(f"proc/{pid}/fd")) as entries:
            for _ in entries:
                found += 1
                if found >= DESCRIPTORS_MAX:
                    return Count(found, AT_LEAST)
    except OSError as error:
        return Count(None, reason(error))
    return Count(found)


def uses_rdma(tree: Tree, pid: int, status: str) -> bool:
    """Whether a process has memory pinned for a device, or an RDMA device open."""
    pinned = parsed(_field(status, "VmPin").removesuffix(" kB"))
    if pinned.value:
        return True
    try:
        folder = tree.path(f"proc/{pid}/fd")
        with os.scandir(folder) as entries:
            names = [entry.name for entry, _ in zip(entries, range(LINKS_MAX), strict=False)]
    except OSError:
        return False
    return any(_link(f"{folder}/{name}").startswith(_VERBS) for name in names)


def may_lock_all(tree: Tree, pid: int, status: str) -> bool:
    """Whether CAP_IPC_LOCK lifts the limit: the machine's own, not that of a user namespace."""
    text = _field(status, "CapEff")
    try:
        has = bool(int(text, 16) >> _IPC_LOCK & 1) if len(text) <= 32 else False
        words = tree.read_text(f"proc/{pid}/uid_map", 4_096).split() if has else []
    except (OSError, ValueError):
        return False
    return words == ["0", "0", "4294967295"]


def _field(status: str, name: str) -> str:
    for line in status.splitlines()[:128]:
        left, _, rest = line.partition(":")
        if left == name:
            return rest.strip()
    return ""


def _link(path: str) -> str:
    try:
        return os.readlink(path)  # noqa: PTH115  the text of a descriptor's link; nothing is opened
    except OSError:
        return ""
