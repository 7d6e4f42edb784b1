"""One append-only file of records: the unit the spool fills, reads, drops and deletes.

A record is 20 bytes of header (magic, CRC-32 of all that follows, payload length, sequence) and the
payload. A torn tail is ignored, a damaged stretch in the middle is skipped up to the next whole record;
both are counted.
"""

from __future__ import annotations

import os
import struct
import zlib
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from collectors.wire import limits

MAGIC: Final = b"CWs1"
HEADER: Final = struct.Struct("<4sIIQ")
_CHECKED: Final = struct.Struct("<IQ")


def frame(sequence: int, payload: bytes) -> bytes:
    """One record as it lies in a file."""
    checked = _CHECKED.pack(len(payload), sequence)
    crc = zlib.crc32(payload, zlib.crc32(checked))
    return HEADER.pack(MAGIC, crc, len(payload), sequence) + payload


def parse(data: bytes | memoryview, offset: int) -> tuple[int, int, int] | None:
    """The whole record at ``offset`` as (sequence, payload start, end), or None if there is none."""
    if offset + HEADER.size > len(data):
        return None
    magic, crc, length, sequence = HEADER.unpack_from(data, offset)
    start = offset + HEADER.size
    end = start + length
    if magic != MAGIC or length > limits.RECORD_MAX_BYTES or end > len(data):
        return None
    if zlib.crc32(data[start:end], zlib.crc32(_CHECKED.pack(length, sequence))) != crc:
        return None
    return sequence, start, end


@dataclass(slots=True)
class Scan:
    """What a file holds. ``unreadable_sequences_max``: how many records its bad bytes may have been."""

    sequences: array[int] = field(default_factory=lambda: array("Q"))
    offsets: array[int] = field(default_factory=lambda: array("Q"))
    bad_stretches: int = 0
    torn: bool = False
    unreadable_sequences_max: int = 0


def scan(data: bytes) -> Scan:
    """Finds every whole record with a rising sequence. Cost: linear in the bytes."""
    found = Scan()
    offset = 0
    while offset < len(data):
        record = parse(data, offset)
        if record is not None and (not found.sequences or record[0] > found.sequences[-1]):
            found.sequences.append(record[0])
            found.offsets.append(offset)
            offset = record[2]
            continue
        resume = _next_record(data, offset + 1)
        found.unreadable_sequences_max += (resume - offset) // HEADER.size + 1
        found.torn = resume == len(data)
        found.bad_stretches += not found.torn
        offset = resume
    return found


def _next_record(data: bytes, offset: int) -> int:
    """Where the next whole record begins; the length of ``data`` if there is none."""
    while (offset := data.find(MAGIC, offset)) >= 0:
        if parse(data, offset) is not None:
            return offset
        offset += 1
    return len(data)


class Segment:
    """A file with its index in memory: 16 bytes per record."""

    def __init__(self, path: Path, found: Scan, size_bytes: int, fd: int | None = None) -> None:
        self.path = path
        self.sequences = found.sequences
        self.offsets = found.offsets
        self.size_bytes = size_bytes
        self.fd = fd
        """open for appending, None once sealed"""

    @classmethod
    def create(cls, path: Path) -> Segment:
        """A new empty file. Raises ``OSError``."""
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
        return cls(path, Scan(), 0, fd)

    @property
    def last_sequence(self) -> int:
        return self.sequences[-1]

    def append(self, sequence: int, payload: bytes) -> None:
        """Adds one record, or raises ``OSError`` and leaves the file as it was."""
        assert self.fd is not None
        data = frame(sequence, payload)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(self.fd, view) :]
        except OSError:
            os.ftruncate(self.fd, self.size_bytes)
            raise
        self.sequences.append(sequence)
        self.offsets.append(self.size_bytes)
        self.size_bytes += len(data)

    def seal(self) -> None:
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None

    def delete(self) -> None:
        self.seal()
        self.path.unlink(missing_ok=True)

    def count_after(self, sequence: int) -> int:
        """Records with a higher number."""
        return len(self.sequences) - bisect_right(self.sequences, sequence)

    def places_after(self, sequence: int) -> Iterator[tuple[int, Segment, int]]:
        """(sequence, self, place) of the records with a higher number."""
        for place in range(bisect_right(self.sequences, sequence), len(self.sequences)):
            yield self.sequences[place], self, place

    def read(self, fd: int, place: int) -> bytes | None:
        """The payload of a record, None if the bytes on disk have changed since they were indexed."""
        start = self.offsets[place]
        end = self.offsets[place + 1] if place + 1 < len(self.offsets) else self.size_bytes
        data = os.pread(fd, end - start, start)
        record = parse(data, 0)
        if record is None or record[0] != self.sequences[place]:
            return None
        return data[record[1] : record[2]]
