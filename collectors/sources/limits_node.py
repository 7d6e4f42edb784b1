"""What the node and a job's control group may have: shared memory, open files, threads, processes.

In: proc/sys/fs/file-nr, proc/sys/kernel, proc/loadavg; the pids controller's files, version 1 or 2;
/dev/shm of the node and of containers, of a recorded tree commands/df_dev_shm.txt (``df -B1 /dev/shm``).
Out: ``Use``. Only a tmpfs is asked how full it is: no network and no process answers for it.
Source: proc_sys_fs(5), proc_sys_kernel(5); admin-guide/cgroup-v2.rst and cgroup-v1/pids.rst of Linux.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from collectors.sources.counters import NOT_AVAILABLE, Count, parsed
from collectors.sources.memory_cgroup import UNLIMITED, Place
from collectors.sources.tail_files import is_local
from collectors.sources.tools import FOLDER
from collectors.sources.tree import Tree, reason

SHM: Final = "/dev/shm"  # noqa: S108  the folder's own name; nothing is written there
SHM_RECORDED: Final = "df_dev_shm.txt"
PIDS_ROOTS: Final = {1: "sys/fs/cgroup/pids", 2: "sys/fs/cgroup"}
MOUNTINFO_MAX_BYTES: Final = 1_048_576
_UNLIMITED_FROM: Final = 2**62


@dataclass(frozen=True, slots=True)
class Use:
    """How much of something is used, and how much there may be."""

    used: Count
    limit: Count

    @property
    def share(self) -> float | None:
        """0 to 1; None where one of both is not known."""
        used, limit = self.used.value, self.limit.value
        return used / limit if used is not None and limit else None

    @property
    def why_no_share(self) -> str:
        if self.used.value is None:
            return self.used.quality
        return self.limit.quality if self.limit.value is None else "no_limit"


def open_files(tree: Tree) -> Use | None:
    """Of the whole system."""
    try:
        words = tree.read_text("proc/sys/fs/file-nr", 256).split()
    except FileNotFoundError:
        return None
    except OSError as error:
        return Use(Count(None, reason(error)), Count(None, reason(error)))
    used, limit = (parsed(words[place] if len(words) == 3 else "?") for place in (0, 2))
    return Use(used, limited(limit))


def threads(tree: Tree) -> Use | None:
    """Of the whole system: the lower of kernel.threads-max and kernel.pid_max is the limit."""
    try:
        used = parsed(tree.read_text("proc/loadavg", 256).split()[3].partition("/")[2])
    except FileNotFoundError:
        return None
    except OSError as error:
        used = Count(None, reason(error))
    except IndexError:
        used = Count(None, "unreadable")
    told = [count_of(tree, f"proc/sys/kernel/{name}") for name in ("threads-max", "pid_max")]
    known = [count.value for count in told if count.value is not None]
    return Use(used, Count(min(known)) if known else told[0])


def limited(count: Count) -> Count:
    """A limit; a huge number is none."""
    return Count(None, UNLIMITED) if (count.value or 0) >= _UNLIMITED_FROM else count


def count_of(tree: Tree, name: str) -> Count:
    try:
        text = tree.read_text(name, 64).strip()
    except OSError as error:
        return Count(None, reason(error))
    return Count(None, UNLIMITED) if text == "max" else limited(parsed(text))


def group_use(tree: Tree, place: Place) -> Use | None:
    """Processes and threads of a control group; None where the controller has no such group."""
    folder = f"{PIDS_ROOTS[place.version]}{place.path}"
    used = count_of(tree, f"{folder}/pids.current")
    if used.value is None and used.quality == NOT_AVAILABLE:
        return None
    return Use(used, count_of(tree, f"{folder}/pids.max"))


def fullest(uses: Iterable[tuple[Place, Use]]) -> tuple[Place, Use] | None:
    """The group nearest to its limit; the first where none has one."""
    known = list(uses)
    shares = [(share, -at) for at, (_, use) in enumerate(known) if (share := use.share) is not None]
    if shares:
        return known[-max(shares)[1]]
    return known[0] if known else None


@dataclass(frozen=True, slots=True)
class SharedMemory:
    """A tmpfs at /dev/shm. ``device`` tells one from another; ``path``: where this process reaches it."""

    device: str
    path: str


def shared_memory(tree: Tree, pid: int | None = None) -> SharedMemory | None:
    """That of the agent, or of a process with a root of its own; None: there is none that may be asked."""
    try:
        text = tree.read_text(f"proc/{pid or 'self'}/mountinfo", MOUNTINFO_MAX_BYTES)
    except OSError:
        return None
    device = root = ""
    for line in text.split("\n"):
        left, dash, right = line.partition(" - ")
        words = left.split(" ")
        if not dash or len(words) < 5:
            continue
        kind = right.partition(" ")[0]
        if words[4] == SHM:  # the last one covers those before
            device = words[2] if kind == "tmpfs" else ""
        elif words[4] == "/":
            root = kind
    if not device or (pid is not None and not is_local(root)):
        return None
    return SharedMemory(device, SHM if pid is None else f"/proc/{pid}/root{SHM}")


def shm_use(found: SharedMemory) -> Use:
    """How full it is: of the live machine."""
    try:
        told = os.statvfs(found.path)
    except OSError as error:
        return Use(Count(None, reason(error)), Count(None, reason(error)))
    used = (told.f_blocks - told.f_bfree) * told.f_frsize
    size = told.f_blocks * told.f_frsize
    return Use(Count(used), Count(size) if size else Count(None, UNLIMITED))


def recorded_shm_use(tree: Tree) -> Use | None:
    """The same of a recorded tree."""
    try:
        text = tree.read_text(f"{FOLDER}/{SHM_RECORDED}", 4_096)
    except FileNotFoundError:
        return None
    except OSError as error:
        return Use(Count(None, reason(error)), Count(None, reason(error)))
    for line in text.splitlines()[1:8]:
        words = line.split()
        if len(words) == 6 and words[5] == SHM:
            return Use(parsed(words[2]), parsed(words[1]))
    return Use(Count(None, "unreadable"), Count(None, "unreadable"))
