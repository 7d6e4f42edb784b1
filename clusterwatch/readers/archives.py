"""Bytes of the files under a path: plain, gzip, zstd, and tar archives of them, as a stream of small blobs.

In: a path. Out: ``Blob`` per regular file, with its bytes read on demand and bounded. Symbolic links, pipes,
sockets and devices are not opened, so a folder from a node cannot point the reader elsewhere or hang it.
"""

from __future__ import annotations

import gzip
import io
import os
import stat
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, cast

import zstandard

FILES_MAX: Final = 1_000_000
DEPTH_MAX: Final = 32
ARCHIVE_MAX_BYTES: Final = 64 * 1024**3
"""Decompressed bytes of one archive: 24,576 dumps of 2,000 entries with stacks take 31 GB."""

_TAR_SUFFIXES: Final = (".tar", ".tar.gz", ".tgz", ".tar.zst", ".tzst")
_PACKED: Final = (".gz", ".zst")
_NO_FOLLOW: Final = getattr(os, "O_NOFOLLOW", 0)
_NO_WAIT: Final = getattr(os, "O_NONBLOCK", 0)


class UnreadableError(Exception):
    """A file whose bytes cannot be had; the text says why."""


@dataclass(frozen=True, slots=True)
class Blob:
    """One file. ``name`` is its path below the input, without .gz or .zst."""

    name: str
    read: Callable[[int], bytes]
    """bytes of the file, at most so many; raises ``UnreadableError`` beyond it or when it is damaged"""


def blobs(path: Path) -> Iterator[Blob | tuple[str, str]]:
    """Every regular file at or below ``path`` in order of name; (name, reason) for what is not opened.

    Raises:
        FileNotFoundError: ``path`` does not exist.
    """
    if not path.exists():
        raise FileNotFoundError(path)
    if path.is_dir():
        yield from _folder(path, path, 0)
    else:
        yield from _file(path.resolve(), path.name)


def _folder(folder: Path, top: Path, depth: int) -> Iterator[Blob | tuple[str, str]]:
    if depth > DEPTH_MAX:
        yield str(folder.relative_to(top)), f"deeper than {DEPTH_MAX} folders"
        return
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        yield str(folder.relative_to(top)), f"the folder cannot be read: {error.strerror}"
        return
    for entry in entries[:FILES_MAX]:
        name = str(Path(entry.path).relative_to(top))
        if entry.is_symlink():
            yield name, "a symbolic link is not followed"
        elif entry.is_dir(follow_symlinks=False):
            yield from _folder(Path(entry.path), top, depth + 1)
        elif entry.is_file(follow_symlinks=False):
            yield from _file(Path(entry.path), name)
        else:
            yield name, "a pipe, socket or device is not opened"


def _file(path: Path, name: str) -> Iterator[Blob | tuple[str, str]]:
    if name.endswith(_TAR_SUFFIXES):
        yield from _tar(path, name)
        return
    packed = next((suffix for suffix in _PACKED if name.endswith(suffix)), "")
    yield Blob(name.removesuffix(packed), lambda most: _read_file(path, packed, most))


def _open(path: Path) -> IO[bytes]:
    """Opens a regular file and nothing else, also when it was swapped after the listing."""
    try:
        descriptor = os.open(path, os.O_RDONLY | _NO_FOLLOW | _NO_WAIT)
    except OSError as error:
        raise UnreadableError(f"cannot be opened: {error.strerror}") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise UnreadableError("is no regular file")
    return os.fdopen(descriptor, "rb")


def _read_file(path: Path, packed: str, most: int) -> bytes:
    with _open(path) as file:
        return _bounded(_unpacked(file, packed), most)


def _unpacked(file: IO[bytes], packed: str) -> IO[bytes]:
    if packed == ".gz":
        return cast("IO[bytes]", gzip.GzipFile(fileobj=file))
    if packed == ".zst":
        return zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(file)
    return file


def _bounded(file: IO[bytes], most: int) -> bytes:
    try:
        data = file.read(most + 1)
    except (OSError, EOFError, zstandard.ZstdError) as error:
        raise UnreadableError(f"is damaged: {error}") from error
    if len(data) > most:
        raise UnreadableError(f"holds more than {most} bytes")
    return data


class _Metered(io.RawIOBase):
    """Counts what an archive unpacks to and stops at ``ARCHIVE_MAX_BYTES``."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._seen = 0

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size if size >= 0 else 1 << 20)
        self._seen += len(data)
        if self._seen > ARCHIVE_MAX_BYTES:
            raise UnreadableError(f"unpacks to more than {ARCHIVE_MAX_BYTES} bytes")
        return data


def _tar(path: Path, name: str) -> Iterator[Blob | tuple[str, str]]:
    """Members in the order they lie; read as a stream, so nothing is written to disk."""
    packed = ".gz" if name.endswith((".gz", ".tgz")) else ".zst" if name.endswith((".zst", ".tzst")) else ""
    try:
        with (
            _open(path) as file,
            tarfile.open(fileobj=_Metered(_unpacked(file, packed)), mode="r|") as archive,
        ):
            for number, member in enumerate(archive):
                if number >= FILES_MAX:
                    yield name, f"more than {FILES_MAX} members"
                    return
                if member.isfile():
                    yield from _member(archive, member, name)
    except (tarfile.TarError, OSError, EOFError, zstandard.ZstdError, UnreadableError) as error:
        yield name, f"the archive is damaged: {error}"


def _member(archive: tarfile.TarFile, member: tarfile.TarInfo, name: str) -> Iterator[Blob]:
    file = archive.extractfile(member)
    if file is None:
        return
    packed = next((suffix for suffix in _PACKED if member.name.endswith(suffix)), "")
    inner = f"{name}:{member.name.removesuffix(packed)}"
    stream = _unpacked(file, packed)
    yield Blob(inner, lambda most: _bounded(stream, most))
