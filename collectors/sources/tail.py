"""Whole lines of a file that grows, each once, over rotation, truncation and restarts of the agent.

In: a ``Reader`` of one name: its file now, and what became of the file before. Out: ``Piece``: the new lines
and how many bytes were skipped. A file is known by device and inode and by its first bytes; where a look
stopped is a ``Mark``, which can be kept. All state is the mark: a line that is not ended yet is read again.

One rotation between two looks loses nothing that can still be read: after a rename the rest is read under the
new name; after copytruncate in the copy, once ``HEAD_MIN_BYTES`` of the file were read.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

LINE_MAX_BYTES: Final = 4_096
"""What is longer is cut here, unless who tails wants longer ones."""
CONTEXT_BYTES: Final = 64 * 1024
"""Read of the end of a file that is seen for the first time."""
HEAD_BYTES: Final = 256
HEAD_MIN_BYTES: Final = 32
"""Fewer first bytes do not tell one file from another."""
_BLOCK_BYTES: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class FileId:
    device: int
    inode: int


class File(Protocol):
    """One file as it was when it was looked at."""

    @property
    def id(self) -> FileId: ...

    @property
    def size(self) -> int: ...

    def read(self, offset: int, max_bytes: int) -> bytes:
        """Fewer bytes than asked: it ends there. Raises ``OSError``."""
        ...


class Reader(Protocol):
    """One name, under which one file follows another."""

    def current(self) -> File | None:
        """The file that has the name now."""
        ...

    def earlier(self) -> Sequence[File]:
        """Files that may have had the name before."""
        ...


@dataclass(frozen=True, slots=True)
class Mark:
    """Where a look stopped.

    Attributes:
        in_line: the bytes from ``offset`` to the next line feed belong to a line that was cut.
        head_bytes, head_crc: the file's first bytes, and their CRC-32.
    """

    id: FileId
    offset: int = 0
    in_line: bool = False
    head_bytes: int = 0
    head_crc: int = 0


@dataclass(frozen=True, slots=True)
class Piece:
    """What one look gave. ``is_first``: of a file whose start was not seen."""

    lines: tuple[bytes, ...] = ()
    skipped_bytes: int = 0
    is_first: bool = False


class Tail:
    """One name."""

    def __init__(self, mark: Mark | None = None, line_max_bytes: int = LINE_MAX_BYTES) -> None:
        """``mark``: where an agent before stopped; a line longer than ``line_max_bytes`` is cut there."""
        self.mark = mark
        self._line_max_bytes = line_max_bytes

    def unread_bytes(self, file: File) -> int:
        """About how much a look would read."""
        if self.mark is None:
            return min(file.size, CONTEXT_BYTES)
        same = self.mark.id == file.id and self.mark.offset <= file.size
        return file.size - self.mark.offset if same else file.size

    def look(self, reader: Reader, max_bytes: int, is_last: bool = False) -> Piece:
        """The lines that are new. Of more than ``max_bytes`` the first and the last half are read.

        Args:
            is_last: nothing will be written any more, so a line without an end is whole.

        Raises:
            OSError: the file cannot be read now; nothing is lost by that.
        """
        file = reader.current()
        if self.mark is None:
            return Piece() if file is None else self._first(file, max_bytes, is_last)
        if file is not None and self._is_same(file):
            self.mark, piece = self._read(file, self.mark, max_bytes, is_last)
            return piece
        mark, rest, new = self.mark, Piece(), Piece()
        before = self._found(reader.earlier())
        if before is not None:
            mark, rest = self._read(before, replace(mark, id=before.id), max_bytes // 2, True)
        if file is not None:
            mark, new = self._read(file, Mark(file.id), max_bytes // 2, is_last)
        self.mark = mark
        return Piece(rest.lines + new.lines, rest.skipped_bytes + new.skipped_bytes)

    def _first(self, file: File, max_bytes: int, is_last: bool) -> Piece:
        offset = max(0, file.size - CONTEXT_BYTES)
        self.mark, piece = self._read(file, Mark(file.id, offset, offset > 0), max_bytes, is_last)
        return replace(piece, is_first=True)

    def _read(self, file: File, mark: Mark, max_bytes: int, is_last: bool) -> tuple[Mark, Piece]:
        """The lines from the mark on, and the mark after them."""
        end = max(mark.offset, file.size)
        if end - mark.offset <= max_bytes:
            mark, lines = _lines(file, mark, end, is_last, self._line_max_bytes)
            return _with_head(file, mark), Piece(lines)
        half = max(max_bytes // 2, 1)
        mark, first = _lines(file, mark, mark.offset + half, False, self._line_max_bytes)
        resume = max(mark.offset, end - half)
        skipped = resume - mark.offset
        mark = replace(mark, offset=resume, in_line=mark.in_line or skipped > 0)
        mark, last = _lines(file, mark, end, is_last, self._line_max_bytes)
        return _with_head(file, mark), Piece(first + last, skipped)

    def _is_same(self, file: File) -> bool:
        """Whether the file was only written to. One that was cut off may have grown past the mark since."""
        mark = self.mark
        assert mark is not None
        if mark.id != file.id or file.size < mark.offset:
            return False
        return file.size == mark.offset or _begins_alike(file, mark)

    def _found(self, files: Sequence[File]) -> File | None:
        """The file of the mark under another name, or its copy."""
        mark = self.mark
        assert mark is not None
        whole = [file for file in files if file.size >= mark.offset]
        renamed = [file for file in whole if file.id == mark.id and _begins_alike(file, mark)]
        if renamed or mark.head_bytes < HEAD_MIN_BYTES:
            return renamed[0] if renamed else None
        return next((file for file in whole if file.id != mark.id and _begins_alike(file, mark)), None)


def _begins_alike(file: File, mark: Mark) -> bool:
    return zlib.crc32(file.read(0, mark.head_bytes)) == mark.head_crc


def _lines(
    file: File, mark: Mark, end: int, is_last: bool, line_max_bytes: int
) -> tuple[Mark, tuple[bytes, ...]]:
    """Lines that end before ``end``; a cut one as soon as it is too long.

    A writer that does not append leaves a hole at the start of a file that was cut off: zeros.
    """
    found: list[bytes] = []
    offset, in_line, rest = mark.offset, mark.in_line, b""
    at = offset
    while at < end and (block := file.read(at, min(_BLOCK_BYTES, end - at))):
        at += len(block)
        data = rest + block
        lines = data.split(b"\n")
        rest = lines.pop().lstrip(b"\0")
        if lines and in_line:
            del lines[0]
            in_line = False
        found += [line.lstrip(b"\0")[:line_max_bytes] for line in lines]
        if in_line:
            rest = b""
        elif len(rest) > line_max_bytes:
            found.append(rest[:line_max_bytes])
            in_line, rest = True, b""
        offset = at - len(rest)
    if is_last and rest:
        found.append(rest)
        offset, in_line = at, True
    return replace(mark, offset=offset, in_line=in_line), tuple(found)


def _with_head(file: File, mark: Mark) -> Mark:
    """The mark with as many first bytes as were read."""
    wanted = min(HEAD_BYTES, mark.offset)
    if wanted <= mark.head_bytes:
        return mark
    head = file.read(0, wanted)
    return replace(mark, head_bytes=len(head), head_crc=zlib.crc32(head))
