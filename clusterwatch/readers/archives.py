"""Bytes of the files under a path: plain, gzip, zstd, and tar and zip archives of them.

In: a path. Out: ``Blob`` per regular file, with its bytes read on demand and bounded. Symbolic links, pipes,
sockets and devices are not opened, so a folder from a node cannot point the reader elsewhere or hang it.
Nothing is written to disk: names inside an archive, ``../../etc/passwd`` too, are words for the report only.
"""

from __future__ import annotations

import functools
import gzip
import io
import os
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, cast

import zstandard

FILES_MAX: Final = 1_000_000
DEPTH_MAX: Final = 32
ARCHIVE_MAX_BYTES: Final = 64 * 1024**3
"""Decompressed bytes of one archive: 24,576 dumps of 2,000 entries with stacks take 31 GB."""
HEADER_MAX_BYTES: Final = 1024 * 1024
"""A tar header that carries a long name; real ones take some hundred bytes."""
ZIP_LISTING_MAX_BYTES: Final = 256 * 1024 * 1024
"""The list of members at the end of a zip file: 1,000,000 take about 100 MB."""
_ZIP_END_MAX_BYTES: Final = 22 + 65_535
"""The end record and its longest comment (APPNOTE.TXT 4.3.16)."""
LABEL_MAX_CHARS: Final = 1_000

_TAR_SUFFIXES: Final = (".tar", ".tar.gz", ".tgz", ".tar.zst", ".tzst")
_ARCHIVE_SUFFIXES: Final = (*_TAR_SUFFIXES, ".zip")
_NOT_READ: Final = (".tar.xz", ".txz", ".tar.bz2", ".tbz2", ".tar.lz4", ".7z", ".rar", ".xz", ".bz2", ".lz4")
_PACKED: Final = (".gz", ".zst")
_GZIP_MAGIC: Final = b"\x1f\x8b"
_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_ZSTD_WINDOW_MAX_BYTES: Final = 1 << 27
_NO_FOLLOW: Final = getattr(os, "O_NOFOLLOW", 0)
_NO_WAIT: Final = getattr(os, "O_NONBLOCK", 0)
_CHUNK_BYTES: Final = 1 << 20

_DAMAGE: Final = (OSError, EOFError, zlib.error, zstandard.ZstdError, tarfile.TarError, zipfile.BadZipFile)


class UnreadableError(Exception):
    """A file whose bytes cannot be had; the text says why."""


@dataclass(frozen=True, slots=True)
class Blob:
    """One file. ``name`` is its path below the input as text that is safe to print, without .gz or .zst."""

    name: str
    read: Callable[[int], bytes]
    """bytes of the file, at most so many; raises ``UnreadableError`` beyond it or when it is damaged"""
    size_bytes: int = 0
    """as it lies, packed or not; for progress and for sharing out work"""
    stream: Callable[[int], Iterator[bytes]] | None = None
    """its bytes in chunks, at most so many, where it need not be held as a whole; raises as ``read``"""


@dataclass(frozen=True, slots=True)
class Stream:
    """A packed tar archive, which can only be read from its start: its blobs must be read as they come."""

    name: str
    blobs: Callable[[], Iterator[Blob | tuple[str, str]]]
    size_bytes: int = 0


def label(name: str) -> str:
    """A file's name as text that can be printed and stored: no control characters, no broken UTF-8."""
    if not (name.isascii() and name.isprintable()):
        text = os.fsencode(name).decode("utf-8", "replace")
        name = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)
    return name[:LABEL_MAX_CHARS]


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
        yield from _file(os.path.realpath(top), path.name, looked.st_size)
    else:
        raise OSError(0, "is a pipe, socket or device")


def blobs(path: Path) -> Iterator[Blob | tuple[str, str]]:
    """As ``files``, with the members of packed archives; each blob must be read before the next is taken."""
    for item in files(path):
        if isinstance(item, Stream):
            yield from item.blobs()
        else:
            yield item


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


def _file(path: str, name: str, size: int) -> Iterator[Blob | Stream | tuple[str, str]]:
    lower = name.lower()
    if lower.endswith(_NOT_READ):
        yield label(name), "packed in a way that is not read: tar, zip, gz and zst are"
    elif lower.endswith(".zip"):
        yield from _zip(path, label(name))
    elif lower.endswith(".tar"):
        yield from _plain_tar(path, label(name))
    elif lower.endswith(_TAR_SUFFIXES):
        yield Stream(label(name), lambda: _packed_tar(path, label(name)), size)
    else:
        yield Blob(
            _unpacked_name(label(name)),
            functools.partial(_read_file, path),
            size,
            functools.partial(_stream_file, path),
        )


def _unpacked_name(name: str) -> str:
    packed = next((suffix for suffix in _PACKED if name.lower().endswith(suffix)), "")
    return name[: len(name) - len(packed)]


def _open(path: str) -> int:
    """Opens a regular file and nothing else, also when it was swapped after the listing."""
    try:
        descriptor = os.open(path, os.O_RDONLY | _NO_FOLLOW | _NO_WAIT | os.O_CLOEXEC)
    except OSError as error:
        raise UnreadableError(f"cannot be opened: {error.strerror}") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise UnreadableError("is no regular file")
    return descriptor


def _read_file(path: str, most: int) -> bytes:
    """The whole file in one read where the system allows it: a second buffer would double the memory."""
    descriptor = _open(path)
    try:
        size = os.fstat(descriptor).st_size
        if size > most:
            raise UnreadableError(f"holds more than {most} bytes")
        data = os.read(descriptor, size + 1)
        while len(data) != size:  # it grows, or the system gives it in parts
            more = os.read(descriptor, _CHUNK_BYTES)
            if not more:
                break
            data += more
            if len(data) > most:
                raise UnreadableError(f"holds more than {most} bytes")
    except OSError as error:
        raise UnreadableError(f"cannot be read: {error.strerror}") from error
    finally:
        os.close(descriptor)
    return _unpack(data, most)


def _stream_file(path: str, most: int) -> Iterator[bytes]:
    """The file in chunks, decompressed on the way."""
    with os.fdopen(_open(path), "rb") as file:
        head = file.peek(4)[:4]
        packed = head.startswith((_GZIP_MAGIC, _ZSTD_MAGIC))
        source = _unpacking(file, zstd=head == _ZSTD_MAGIC) if packed else file
        seen = 0
        while True:
            try:
                chunk = source.read(_CHUNK_BYTES)
            except _DAMAGE as error:
                raise UnreadableError(f"is damaged: {error}") from error
            if not chunk:
                return
            seen += len(chunk)
            if seen > most:
                raise UnreadableError(f"holds more than {most} bytes")
            yield chunk


def _unpack(data: bytes, most: int) -> bytes:
    """``data``, decompressed when its first bytes say that it is packed, whatever its name."""
    if not data.startswith((_GZIP_MAGIC, _ZSTD_MAGIC)):
        return data
    return _bounded(_unpacking(io.BytesIO(data), zstd=data.startswith(_ZSTD_MAGIC)), most)


def _unpacking(file: IO[bytes], *, zstd: bool) -> IO[bytes]:
    if zstd:
        return zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_MAX_BYTES).stream_reader(
            file, read_across_frames=True
        )
    return cast("IO[bytes]", gzip.GzipFile(fileobj=file))


def _bounded(file: IO[bytes], most: int) -> bytes:
    try:
        data = file.read(most + 1)
    except _DAMAGE as error:
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
        data = self._file.read(size if size >= 0 else _CHUNK_BYTES)
        self._seen += len(data)
        if self._seen > ARCHIVE_MAX_BYTES:
            raise UnreadableError(f"unpacks to more than {ARCHIVE_MAX_BYTES} bytes")
        return data


class _Header(tarfile.TarInfo):
    """A header whose long name is bounded: ``tarfile`` reads as many bytes as the header asks for."""

    def _proc_member(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
        long_names = (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE, tarfile.XGLTYPE)
        if self.type in (*long_names, tarfile.SOLARIS_XHDTYPE) and self.size > HEADER_MAX_BYTES:
            raise UnreadableError(f"a header of {self.size} bytes")
        return cast("tarfile.TarInfo", super()._proc_member(archive))  # type: ignore[misc]


def _plain_tar(path: str, name: str) -> Iterator[Blob | tuple[str, str]]:
    """Members by their place in the file, so that they can be read in any order and by any process."""
    try:
        with (
            os.fdopen(_open(path), "rb") as file,
            tarfile.open(fileobj=file, mode="r:", tarinfo=_Header) as archive,
        ):
            for member in _members(archive):
                inner = f"{name}:{label(member.name)}"
                if reason := _not_taken(member):
                    yield inner, reason
                elif not member.isdir():
                    read = functools.partial(_read_part, path, member.offset_data, member.size)
                    yield Blob(_unpacked_name(inner), read, member.size)
    except (*_DAMAGE, UnreadableError) as error:
        yield name, f"the archive is damaged: {error}"


def _packed_tar(path: str, name: str) -> Iterator[Blob | tuple[str, str]]:
    """Members in the order they lie, decompressed on the way."""
    try:
        with os.fdopen(_open(path), "rb") as file:
            zstd = file.peek(4)[:4] == _ZSTD_MAGIC
            metered = _Metered(_unpacking(file, zstd=zstd))
            with tarfile.open(fileobj=metered, mode="r|", tarinfo=_Header) as archive:
                for member in _members(archive):
                    inner = f"{name}:{label(member.name)}"
                    if reason := _not_taken(member):
                        yield inner, reason
                    elif (opened := archive.extractfile(member)) is not None:
                        read = functools.partial(_read_member, opened)
                        yield Blob(_unpacked_name(inner), read, member.size)
    except (*_DAMAGE, UnreadableError) as error:
        yield name, f"the archive is damaged: {error}"


def _members(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    for number, member in enumerate(archive):
        if number >= FILES_MAX:
            raise UnreadableError(f"more than {FILES_MAX} members")
        yield member
        archive.members = []  # type: ignore[attr-defined]  # it would keep every header it has read


def _not_taken(member: tarfile.TarInfo) -> str:
    """Why a member is no blob; empty for regular files, and for folders, which are nobody's problem."""
    if member.isdir():
        return ""
    if member.issym() or member.islnk():
        return "a link inside an archive is not followed"
    if not member.isreg():
        return "a pipe, socket or device is not opened"
    if member.issparse():
        return "a sparse member of an archive is not read"
    if member.name.lower().endswith(_ARCHIVE_SUFFIXES):
        return "an archive inside an archive is not opened"
    return ""


def _read_member(file: IO[bytes], most: int) -> bytes:
    return _unpack(_bounded(file, most), most)


def _read_part(path: str, offset: int, size: int, most: int) -> bytes:
    if size > most:
        raise UnreadableError(f"holds more than {most} bytes")
    with os.fdopen(_open(path), "rb", buffering=0) as file:
        data = os.pread(file.fileno(), size, offset)
    if len(data) != size:
        raise UnreadableError("is damaged: the archive ends before it")
    return _unpack(data, most)


def _zip(path: str, name: str) -> Iterator[Blob | tuple[str, str]]:
    try:
        members = _zip_file(path, os.getpid()).infolist()
    except (*_DAMAGE, UnreadableError, NotImplementedError, ValueError) as error:
        yield name, f"the archive is damaged: {error}"
        return
    unpacked = 0
    for number, member in enumerate(members):
        unpacked += member.file_size
        if number >= FILES_MAX or unpacked > ARCHIVE_MAX_BYTES:
            yield name, f"more than {FILES_MAX} members or {ARCHIVE_MAX_BYTES} bytes: the rest is not read"
            return
        inner = f"{name}:{label(member.filename)}"
        kind = stat.S_IFMT(member.external_attr >> 16)
        if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
            yield inner, "a link, pipe or device inside an archive is not opened"
        elif member.filename.lower().endswith(_ARCHIVE_SUFFIXES):
            yield inner, "an archive inside an archive is not opened"
        elif not member.is_dir():
            read = functools.partial(_read_zipped, path, member)
            yield Blob(_unpacked_name(inner), read, member.compress_size)


@functools.lru_cache(maxsize=4)
def _zip_file(path: str, process: int) -> zipfile.ZipFile:
    """The archive opened once per process: its list of members is long, and a file's place is not shared."""
    file = os.fdopen(_open(path), "rb")
    if _zip_listing_bytes(file) > ZIP_LISTING_MAX_BYTES:
        raise UnreadableError(f"a list of members above {ZIP_LISTING_MAX_BYTES} bytes")
    return zipfile.ZipFile(file)


def _zip_listing_bytes(file: IO[bytes]) -> int:
    """Bytes of the central directory as the end record says; 0 without one."""
    whole = file.seek(0, os.SEEK_END)
    file.seek(max(0, whole - _ZIP_END_MAX_BYTES))
    end = file.read(_ZIP_END_MAX_BYTES)
    at = end.rfind(b"PK\x05\x06")
    file.seek(0)
    return min(whole, int.from_bytes(end[at + 12 : at + 16], "little")) if at >= 0 else 0


def _read_zipped(path: str, member: zipfile.ZipInfo, most: int) -> bytes:
    try:
        with _zip_file(path, os.getpid()).open(member) as file:
            return _read_member(file, most)
    except (*_DAMAGE, RuntimeError, NotImplementedError, ValueError) as error:
        raise UnreadableError(f"is damaged or locked: {error}") from error
