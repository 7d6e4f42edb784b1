"""Bytes of a file or of a part of one, decompressed and bounded. Nothing but regular files is opened."""

from __future__ import annotations

import gzip
import io
import os
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from typing import IO, Final, Protocol, cast

import zstandard

from clusterwatch.readers.blobs import UnreadableError, size_text

ARCHIVE_MAX_BYTES: Final = 64 * 1024**3
"""Decompressed bytes of one archive: 24,576 dumps of 2,000 entries with stacks take 31 GB."""
GZIP_MAGIC: Final = b"\x1f\x8b"
ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_ZSTD_WINDOW_MAX_BYTES: Final = 1 << 27
_NO_FOLLOW: Final = getattr(os, "O_NOFOLLOW", 0)
_NO_WAIT: Final = getattr(os, "O_NONBLOCK", 0)
CHUNK_BYTES: Final = 1 << 20

DAMAGE: Final = (OSError, EOFError, zlib.error, zstandard.ZstdError, tarfile.TarError, zipfile.BadZipFile)


class Peekable(Protocol):
    """A file whose next bytes can be seen without taking them."""

    def peek(self, size: int, /) -> bytes: ...
    def read(self, size: int, /) -> bytes: ...


class Part:
    """A member of a plain archive as a file of its own."""

    def __init__(self, descriptor: int, offset: int, size: int) -> None:
        self._descriptor, self._at, self._end = descriptor, offset, offset + size

    def peek(self, size: int, /) -> bytes:
        return os.pread(self._descriptor, min(size, self._end - self._at), self._at)

    def read(self, size: int, /) -> bytes:
        data = self.peek(size)
        if not data and self._at < self._end and size:
            raise UnreadableError("is damaged: the archive ends before it")
        self._at += len(data)
        return data


def open_regular(path: str) -> int:
    """Opens a regular file and nothing else, also when it was swapped after the listing."""
    try:
        descriptor = os.open(path, os.O_RDONLY | _NO_FOLLOW | _NO_WAIT | os.O_CLOEXEC)
    except OSError as error:
        raise UnreadableError(f"cannot be opened: {error.strerror}") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise UnreadableError("is no regular file")
    return descriptor


def read_file(path: str, most: int) -> bytes:
    """The whole file in one read where the system allows it: a second buffer would double the memory."""
    descriptor = open_regular(path)
    try:
        size = os.fstat(descriptor).st_size
        if size > most:
            raise UnreadableError(f"holds more than {size_text(most)}")
        data = os.read(descriptor, size + 1)
        while len(data) != size:  # it grows, or the system gives it in parts
            more = os.read(descriptor, CHUNK_BYTES)
            if not more:
                break
            data += more
            if len(data) > most:
                raise UnreadableError(f"holds more than {size_text(most)}")
    except OSError as error:
        raise UnreadableError(f"cannot be read: {error.strerror}") from error
    finally:
        os.close(descriptor)
    return unpack(data, most)


def beginning(path: str, count: int) -> tuple[bytes, bool]:
    """The first ``count`` bytes of a file's content, and whether it is packed. Raises ``UnreadableError``."""
    with os.fdopen(open_regular(path), "rb") as file:
        head = file.peek(4)[:4]
        packed = head.startswith((GZIP_MAGIC, ZSTD_MAGIC))
        try:
            source = unpacking(file, zstd=head == ZSTD_MAGIC) if packed else file
            return source.read(count), packed
        except DAMAGE as error:
            raise UnreadableError(f"is damaged: {error}") from error


def stream_file(path: str, most: int) -> Iterator[bytes]:
    """The file in chunks, decompressed on the way."""
    with os.fdopen(open_regular(path), "rb") as file:
        yield from chunks(file, most)


def chunks(file: Peekable, most: int) -> Iterator[bytes]:
    """What is left in ``file`` in chunks, decompressed when its first bytes say that it is packed."""
    seen = 0
    try:
        head = file.peek(4)[:4]
        source = cast("IO[bytes]", file)
        if head.startswith((GZIP_MAGIC, ZSTD_MAGIC)):
            source = unpacking(source, zstd=head == ZSTD_MAGIC)
        while chunk := source.read(CHUNK_BYTES):
            seen += len(chunk)
            if seen > most:
                raise UnreadableError(f"holds more than {size_text(most)}")
            yield chunk
    except DAMAGE as error:
        raise UnreadableError(f"is damaged: {error}") from error


def unpack(data: bytes, most: int) -> bytes:
    """``data``, decompressed when its first bytes say that it is packed, whatever its name."""
    if not data.startswith((GZIP_MAGIC, ZSTD_MAGIC)):
        return data
    return bounded(unpacking(io.BytesIO(data), zstd=data.startswith(ZSTD_MAGIC)), most)


def unpacking(file: IO[bytes], *, zstd: bool) -> IO[bytes]:
    if zstd:
        return zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_MAX_BYTES).stream_reader(
            file, read_across_frames=True
        )
    return cast("IO[bytes]", gzip.GzipFile(fileobj=file))


def bounded(file: IO[bytes], most: int) -> bytes:
    try:
        data = file.read(most + 1)
    except DAMAGE as error:
        raise UnreadableError(f"is damaged: {error}") from error
    if len(data) > most:
        raise UnreadableError(f"holds more than {size_text(most)}")
    return data


class Metered(io.RawIOBase):
    """Counts what an archive unpacks to and stops at ``ARCHIVE_MAX_BYTES``."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._seen = 0

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size if size >= 0 else CHUNK_BYTES)
        self._seen += len(data)
        if self._seen > ARCHIVE_MAX_BYTES:
            raise UnreadableError(f"unpacks to more than {ARCHIVE_MAX_BYTES} bytes")
        return data
