"""Bytes of the files under a path: plain, gzip, zstd, and tar and zip archives of them.

In: a path. Out: ``Blob`` per regular file, with its bytes read on demand and bounded. Symbolic links, pipes,
sockets and devices are not opened, so a folder from a node cannot point the reader elsewhere or hang it.
Nothing is written to disk: names inside an archive, ``../../etc/passwd`` too, are words for the report only.
"""

from __future__ import annotations

import functools
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from clusterwatch.readers.archive_members import ARCHIVE_SUFFIXES, packed_tar, plain_tar, zipped
from clusterwatch.readers.blobs import Blob, Stream, UnreadableError, label, unpacked_name
from clusterwatch.readers.unpacking import beginning, read_file, stream_file

__all__ = ["Blob", "Stream", "Survey", "UnreadableError", "files", "label", "members", "survey"]

FILES_MAX: Final = 1_000_000
DEPTH_MAX: Final = 32
_TAR_BLOCK_BYTES: Final = 512
_USTAR_AT: Final = 257
"""Where a tar header says what it is (POSIX.1-1988)."""
_NOT_READ: Final = (".tar.xz", ".txz", ".tar.bz2", ".tbz2", ".tar.lz4", ".7z", ".rar", ".xz", ".bz2", ".lz4")


def files(path: Path) -> Iterator[Blob | Stream | tuple[str, str]]:
    """Every regular file at or below ``path`` in order of name; (name, reason) for what is not opened.

    Raises:
        FileNotFoundError: ``path`` does not exist.
        OSError: ``path`` itself cannot be listed, or is a pipe, socket or device.
    """
    top = os.fspath(path)
    looked = path.stat()
    if stat.S_ISDIR(looked.st_mode):
        for number, item in enumerate(_folder(top, "", 0)):
            if number >= FILES_MAX:
                yield label(path.name), f"more than {FILES_MAX} files: the rest is not read"
                return
            yield item
    elif stat.S_ISREG(looked.st_mode):
        yield from _file(os.path.realpath(top), path.name, looked.st_size, sniff=True)
    else:
        raise OSError(0, "is a pipe, socket or device")


@dataclass(slots=True)
class Survey:
    """What lies at a path, looked at once for all readers."""

    blobs: dict[str, Blob] = field(default_factory=dict)
    """by name"""
    streams: list[tuple[Stream, list[str]]] = field(default_factory=list)
    """packed archives and the names in them"""
    not_opened: list[tuple[str, str]] = field(default_factory=list)
    """(name, reason)"""
    one_file: bool = False
    """the path is a file, which somebody chose by hand"""


def survey(path: Path) -> Survey:
    """Looks at everything at or below ``path``. Packed archives are gone through once for their names.

    Raises:
        FileNotFoundError, OSError: as ``files``.
    """
    found = Survey(one_file=path.is_file())
    for item in files(path):
        if isinstance(item, Blob):
            found.blobs[item.name] = item
        elif isinstance(item, Stream):
            inside = []
            for member in item.blobs():
                if isinstance(member, Blob):
                    inside.append(member.name)
                else:
                    found.not_opened.append(member)
            found.streams.append((item, inside))
        else:
            found.not_opened.append(item)
    return found


def members(task: Blob | Stream) -> Iterator[Blob]:
    """The blobs of a task; those of a packed archive must be read as they come."""
    if isinstance(task, Blob):
        yield task
    else:
        yield from (blob for blob in task.blobs() if isinstance(blob, Blob))


def _folder(folder: str, below: str, depth: int) -> Iterator[Blob | Stream | tuple[str, str]]:
    if depth > DEPTH_MAX:
        yield label(below), f"deeper than {DEPTH_MAX} folders"
        return
    try:
        with os.scandir(folder) as listing:
            entries = sorted(listing, key=lambda entry: entry.name)
    except OSError as error:
        if not depth:
            raise
        yield label(below), f"the folder cannot be read: {error.strerror}"
        return
    for entry in entries:
        name = f"{below}/{entry.name}" if below else entry.name
        try:
            if entry.is_symlink():
                yield label(name), "a symbolic link is not followed"
            elif entry.is_dir(follow_symlinks=False):
                yield from _folder(entry.path, name, depth + 1)
            elif entry.is_file(follow_symlinks=False):
                yield from _file(entry.path, name, entry.stat(follow_symlinks=False).st_size)
            else:
                yield label(name), "a pipe, socket or device is not opened"
        except OSError as error:  # it went away, or its folder's disk is sick
            yield label(name), f"cannot be looked at: {error.strerror}"


def _file(
    path: str, name: str, size: int, *, sniff: bool = False
) -> Iterator[Blob | Stream | tuple[str, str]]:
    lower = name.lower()
    kind = next((suffix for suffix in (*_NOT_READ, *ARCHIVE_SUFFIXES) if lower.endswith(suffix)), "")
    if kind in _NOT_READ:
        yield label(name), "packed in a way that is not read: tar, zip, gz and zst are"
        return
    if kind in (".tar", ".zip") or not kind and (sniff or _bare_packed(lower)):
        kind = _inside(path) or kind
    if kind == ".zip":
        yield from zipped(path, label(name))
    elif kind == ".tar":
        yield from plain_tar(path, label(name))
    elif kind:
        yield Stream(label(name), lambda: packed_tar(path, label(name)), size)
    else:
        read, stream = functools.partial(read_file, path), functools.partial(stream_file, path)
        yield Blob(unpacked_name(label(name)), read, size, stream)


def _bare_packed(lower: str) -> bool:
    """``dumps.zst``: packed, and no number in its name could be a rank."""
    return lower.endswith((".gz", ".zst")) and not any(map(str.isdigit, lower.rpartition("/")[2]))


def _inside(path: str) -> str:
    """What an archive is by its first bytes, whatever its name; empty for other files."""
    try:
        first, packed = beginning(path, _TAR_BLOCK_BYTES)
    except UnreadableError:
        return ""
    if first.startswith(b"PK\x03\x04"):
        return ".zip"
    if first[_USTAR_AT:].startswith(b"ustar"):
        return ".tar.gz" if packed else ".tar"
    return ""
