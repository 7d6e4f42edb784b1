"""Files of a node that are tailed, and where an agent before stopped in them.

In: names in a ``Tree`` of files on this machine's own disks. Out: readers of ``tail``, ``Marks``. Only
regular files are opened, and only for as long as they are read: a file system is never kept busy. Whoever
asks has made sure that the file is on no network mount (``is_local``), where a stat may hang.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from collectors.sources.tail import FileId, Mark
from collectors.sources.tree import Tree

LOCAL: Final = frozenset({
    "bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "ramfs", "tmpfs", "xfs", "zfs",
})  # fmt: skip
"""File systems that no other machine and no process answers for."""
SIBLINGS_MAX: Final = 16
ENTRIES_MAX: Final = 10_000
"""A folder with more is not looked through for what became of a file."""
MARKS_MAX: Final = 512
_PACKED: Final = (".gz", ".xz", ".bz2", ".zst")


@dataclass(frozen=True, slots=True)
class DiskFile:
    """A regular file on this machine's own disks."""

    tree: Tree
    name: str
    id: FileId
    size: int

    def read(self, offset: int, max_bytes: int) -> bytes:
        fd = self.tree.open(self.name)
        try:
            now = os.fstat(fd)
            if FileId(now.st_dev, now.st_ino) != self.id:
                raise FileNotFoundError(self.name)  # another came between: the next look sees it
            return os.pread(fd, max_bytes, offset)
        finally:
            os.close(fd)


def disk_file(tree: Tree, name: str) -> DiskFile | None:
    """The regular file of a name; None where there is none. Raises ``OSError`` where that cannot be told."""
    try:
        found = os.stat(tree.path(name))  # noqa: PTH116  asked of each log at each look
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(found.st_mode):
        return None
    return DiskFile(tree, name, FileId(found.st_dev, found.st_ino), found.st_size)


def siblings(tree: Tree, name: str) -> list[DiskFile]:
    """Files beside ``name`` whose names begin with its, as rotation leaves them, the newest first."""
    path = PurePosixPath(name)
    try:
        with os.scandir(tree.path(str(path.parent))) as entries:
            names = [
                entry.name
                for entry, _ in zip(entries, range(ENTRIES_MAX), strict=False)
                if entry.name.startswith(path.name) and not entry.name.endswith(_PACKED)
            ]
    except OSError:
        return []
    found: list[tuple[float, DiskFile]] = []
    for other in names[: 4 * SIBLINGS_MAX]:
        with contextlib.suppress(OSError):
            file = disk_file(tree, str(path.parent / other)) if other != path.name else None
            if file is not None:
                found.append((os.stat(tree.path(file.name)).st_mtime, file))  # noqa: PTH116
    found.sort(key=lambda one: -one[0])
    return [file for _, file in found[:SIBLINGS_MAX]]


@dataclass(frozen=True, slots=True)
class NamedFile:
    """Whatever file has this name: a log of a service that opens it anew after a rotation."""

    tree: Tree
    name: str

    def current(self) -> DiskFile | None:
        return disk_file(self.tree, self.name)

    def earlier(self) -> Sequence[DiskFile]:
        return siblings(self.tree, self.name)


def is_local(kind: str) -> bool:
    """Whether files of this kind of file system may be opened by the agent itself."""
    return kind in LOCAL


def kind_of_path(mountinfo: str, path: str) -> str:
    """Kind of the file system that ``path`` is on, by the longest mount point above it; empty: unknown."""
    best, kind = -1, ""
    for line in mountinfo.split("\n"):
        left, dash, right = line.partition(" - ")
        words = left.split(" ")
        if not dash or len(words) < 5:
            continue
        point = words[4].rstrip("/")
        if (path == point or path.startswith(f"{point}/")) and len(point) >= best:
            best, kind = len(point), right.split(" ")[0]
    return kind


class Marks:
    """Where each file was left, kept in one file of the agent's own folder."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._saved: dict[str, Mark] = {}
        with contextlib.suppress(OSError, ValueError, TypeError, AttributeError, KeyError):
            told = json.loads(path.read_text(encoding="ascii"))
            for key, (device, inode, offset, in_line, head_bytes, head_crc) in list(told.items())[:MARKS_MAX]:
                numbers = (int(offset), bool(in_line), int(head_bytes), int(head_crc))
                self._saved[key] = Mark(FileId(int(device), int(inode)), *numbers)

    def get(self, key: str) -> Mark | None:
        return self._saved.get(key)

    def save(self, marks: dict[str, Mark | None]) -> None:
        """The newest marks; those of files that are not looked at now are kept as long as there is room."""
        fresh = {key: mark for key, mark in marks.items() if mark is not None}
        old = {key: mark for key, mark in self._saved.items() if key not in fresh}
        kept = dict(list({**old, **fresh}.items())[-MARKS_MAX:])
        if kept == self._saved:
            return
        self._saved = kept
        told = {
            key: (m.id.device, m.id.inode, m.offset, m.in_line, m.head_bytes, m.head_crc)
            for key, m in kept.items()
        }
        temporary = self._path.with_suffix(".new")
        with contextlib.suppress(OSError):  # a full disk must not cost the lines of this look
            temporary.write_text(json.dumps(told), encoding="ascii")
            temporary.replace(self._path)
