"""The files that ranks write their output to, as their own descriptors 1 and 2 name them.

In: /proc/PID/fd and fdinfo of ranks. Out: ``Output``. The mount of a file is known from ``mnt_id`` without
touching the file; one that another machine answers for is never opened, since even a stat of it may hang.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from collectors.sources.tail_files import DiskFile, disk_file, is_local
from collectors.sources.tree import Tree

OUTPUTS: Final = (1, 2)
_MOUNT_ID: Final = re.compile(r"^mnt_id:\s{0,8}(\d{1,10})$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Output:
    """One descriptor. ``path``: as the rank sees it; ``kind``: its file system, empty where not told."""

    name: str
    path: str
    kind: str

    @property
    def is_local(self) -> bool:
        return is_local(self.kind)


@dataclass(frozen=True, slots=True)
class OneFile:
    """A file that stays the same under its descriptor, whatever its name becomes."""

    file: DiskFile

    def current(self) -> DiskFile:
        return self.file

    def earlier(self) -> Sequence[DiskFile]:
        return ()


def output(tree: Tree, pid: int, number: int, known: Output | None) -> Output | None:
    """A descriptor that may be a file; None: a pipe, a terminal, a socket or none. Touches no file."""
    name = f"proc/{pid}/fd/{number}"
    try:
        path = os.readlink(f"{tree.root}/{name}")  # noqa: PTH115  asked of each rank at each look
    except OSError:
        return None
    if known is not None and known.path == path:
        return known
    # pipe:[1], socket:[2]; devices are known by their name, so that none is asked.
    if (":[" in path and not path.startswith("/")) or path.startswith("/dev/"):
        return None
    return Output(name, path, _kind(tree, pid, number))


def regular(tree: Tree, found: Output) -> DiskFile | None:
    """The file of a local descriptor. Raises ``OSError``."""
    return disk_file(tree, found.name)


def _kind(tree: Tree, pid: int, number: int) -> str:
    """Kind of the file system, by the rank's own mounts; empty: not told."""
    try:
        told = _MOUNT_ID.search(tree.read_text(f"proc/{pid}/fdinfo/{number}", 4_096))
        mounts = tree.read_text(f"proc/{pid}/mountinfo") if told else ""
    except OSError:
        return ""
    for line in mounts.split("\n"):
        left, dash, right = line.partition(" - ")
        if dash and told and left.split(" ", 1)[0] == told[1]:
            return right.split(" ", 1)[0]
    return ""
