"""Members of tar and zip archives. In: a path. Out: a ``Blob`` each, or (name, reason) for what is not taken.

Members of a plain tar and of a zip can be read in any order and by any process; those of a packed tar only as
they come. A name inside an archive, ``../../etc/passwd`` too, is a word for the report: nothing is written.
"""

from __future__ import annotations

import functools
import os
import stat
import tarfile
import zipfile
from collections.abc import Iterator
from typing import IO, Final, cast

from clusterwatch.readers import unpacking
from clusterwatch.readers.blobs import Blob, UnreadableError, label, size_text, unpacked_name
from clusterwatch.readers.unpacking import (
    DAMAGE,
    GZIP_MAGIC,
    ZSTD_MAGIC,
    Metered,
    Part,
    Peekable,
    bounded,
    chunks,
    open_regular,
    unpack,
)

MEMBERS_MAX: Final = 1_000_000
HEADER_MAX_BYTES: Final = 1024 * 1024
"""A tar header that carries a long name; real ones take some hundred bytes."""
ZIP_LISTING_MAX_BYTES: Final = 256 * 1024 * 1024
"""The list of members at the end of a zip file: 1,000,000 take about 100 MB."""
_ZIP_END_MAX_BYTES: Final = 22 + 65_535
"""The end record and its longest comment (APPNOTE.TXT 4.3.16)."""
TAR_SUFFIXES: Final = (".tar", ".tar.gz", ".tgz", ".tar.zst", ".tzst")
ARCHIVE_SUFFIXES: Final = (*TAR_SUFFIXES, ".zip")


class _Header(tarfile.TarInfo):
    """A header whose long name is bounded: ``tarfile`` reads as many bytes as the header asks for."""

    def _proc_member(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
        long_names = (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE, tarfile.XGLTYPE)
        if self.type in (*long_names, tarfile.SOLARIS_XHDTYPE) and self.size > HEADER_MAX_BYTES:
            raise UnreadableError(f"a header of {self.size} bytes")
        return cast("tarfile.TarInfo", super()._proc_member(archive))  # type: ignore[misc]


def plain_tar(path: str, name: str) -> Iterator[Blob | tuple[str, str]]:
    """Members by their place in the file, so that they can be read in any order and by any process."""
    try:
        with (
            os.fdopen(open_regular(path), "rb") as file,
            tarfile.open(fileobj=file, mode="r:", tarinfo=_Header) as archive,
        ):
            for member in _members(archive):
                inner = f"{name}:{label(member.name)}"
                if reason := _not_taken(member):
                    yield inner, reason
                elif not member.isdir():
                    read = functools.partial(_read_part, path, member.offset_data, member.size)
                    stream = functools.partial(_stream_part, path, member.offset_data, member.size)
                    yield Blob(unpacked_name(inner), read, member.size, stream)
    except (*DAMAGE, UnreadableError) as error:
        yield name, f"the archive is damaged: {error}"


def packed_tar(path: str, name: str) -> Iterator[Blob | tuple[str, str]]:
    """Members in the order they lie, decompressed on the way."""
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            head = file.peek(4)[:4]
            packed = head.startswith((GZIP_MAGIC, ZSTD_MAGIC))  # a plain one may be misnamed
            metered = Metered(unpacking.unpacking(file, zstd=head == ZSTD_MAGIC) if packed else file)
            with tarfile.open(fileobj=metered, mode="r|", tarinfo=_Header) as archive:
                for member in _members(archive):
                    inner = f"{name}:{label(member.name)}"
                    if reason := _not_taken(member):
                        yield inner, reason
                    elif (opened := archive.extractfile(member)) is not None:
                        read = functools.partial(_read_member, opened)
                        stream = functools.partial(chunks, cast("Peekable", opened))
                        yield Blob(unpacked_name(inner), read, member.size, stream)
    except (*DAMAGE, UnreadableError) as error:
        yield name, f"the archive is damaged: {error}"


def _members(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    for number, member in enumerate(archive):
        if number >= MEMBERS_MAX:
            raise UnreadableError(f"more than {MEMBERS_MAX} members")
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
    if member.name.lower().endswith(ARCHIVE_SUFFIXES):
        return "an archive inside an archive is not opened"
    return ""


def _read_member(file: IO[bytes], most: int) -> bytes:
    return unpack(bounded(file, most), most)


def _read_part(path: str, offset: int, size: int, most: int) -> bytes:
    if size > most:
        raise UnreadableError(f"holds more than {size_text(most)}")
    with os.fdopen(open_regular(path), "rb", buffering=0) as file:
        data = os.pread(file.fileno(), size, offset)
    if len(data) != size:
        raise UnreadableError("is damaged: the archive ends before it")
    return unpack(data, most)


def _stream_part(path: str, offset: int, size: int, most: int) -> Iterator[bytes]:
    with os.fdopen(open_regular(path), "rb", buffering=0) as file:
        yield from chunks(Part(file.fileno(), offset, size), most)


def zipped(path: str, name: str) -> Iterator[Blob | tuple[str, str]]:
    try:
        members = _zip_file(path, os.getpid()).infolist()
    except (*DAMAGE, UnreadableError, NotImplementedError, ValueError) as error:
        yield name, f"the archive is damaged: {error}"
        return
    unpacked = 0
    for number, member in enumerate(members):
        unpacked += member.file_size
        if number >= MEMBERS_MAX or unpacked > unpacking.ARCHIVE_MAX_BYTES:
            most = f"{MEMBERS_MAX} members or {unpacking.ARCHIVE_MAX_BYTES} bytes"
            yield name, f"more than {most}: the rest is not read"
            return
        inner = f"{name}:{label(member.filename)}"
        kind = stat.S_IFMT(member.external_attr >> 16)
        if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
            yield inner, "a link, pipe or device inside an archive is not opened"
        elif member.filename.lower().endswith(ARCHIVE_SUFFIXES):
            yield inner, "an archive inside an archive is not opened"
        elif not member.is_dir():
            read = functools.partial(_read_zipped, path, member)
            stream = functools.partial(_stream_zipped, path, member)
            yield Blob(unpacked_name(inner), read, member.compress_size, stream)


@functools.lru_cache(maxsize=4)
def _zip_file(path: str, process: int) -> zipfile.ZipFile:
    """The archive opened once per process: its list of members is long, and a file's place is not shared."""
    file = os.fdopen(open_regular(path), "rb")
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
    except RuntimeError as error:
        raise UnreadableError("is locked by a password") from error
    except (*DAMAGE, NotImplementedError, ValueError) as error:
        raise UnreadableError(f"is damaged: {error}") from error


def _stream_zipped(path: str, member: zipfile.ZipInfo, most: int) -> Iterator[bytes]:
    try:
        with _zip_file(path, os.getpid()).open(member) as file:
            yield from chunks(cast("Peekable", file), most)
    except RuntimeError as error:
        raise UnreadableError("is locked by a password") from error
    except (*DAMAGE, NotImplementedError, ValueError) as error:
        raise UnreadableError(f"is damaged: {error}") from error
