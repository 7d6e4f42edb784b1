"""Parts of the spool: a chain of segment files of one class of records, and how it is read and flushed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from collectors.segment import Segment
from collectors.wire.records import Lane


class Chain:
    """Segment files of one class in one lane, oldest first; the last may be open for appending."""

    def __init__(self, name: str, lane: Lane, folder: Path) -> None:
        self.name = name
        self.lane: Lane = lane
        self.folder = folder
        self.segments: list[Segment] = []

    def places_after(self, sequence: int) -> Iterator[tuple[int, Segment, int]]:
        for segment in self.segments:
            if segment.last_sequence > sequence:
                yield from segment.places_after(sequence)

    def holds(self, sequence: int) -> bool:
        return any(sequence in segment.sequences for segment in reversed(self.segments))

    def segment_for(self, sequence: int, segment_bytes: int) -> Segment:
        """The segment that takes the next record, a new one when the last is full or sealed."""
        if self.segments and self.segments[-1].fd is not None:
            if self.segments[-1].size_bytes < segment_bytes:
                return self.segments[-1]
            self.segments[-1].seal()
        self.segments.append(Segment.create(self.folder / f"{self.name}-{sequence:020d}.seg"))
        return self.segments[-1]

    def remove_empty_tail(self) -> None:
        """Takes back a segment whose first record could not be written."""
        if self.segments and not self.segments[-1].sequences:
            self.segments.pop().delete()


@dataclass(slots=True)
class SyncJob:
    """Descriptors to flush and what is on the disk afterwards; ``run`` may be called in a thread."""

    fds: list[int]
    marks: dict[Lane, int]

    def run(self) -> None:
        """Flushes. Raises ``OSError``; the descriptors are closed in any case."""
        try:
            for fd in self.fds:
                os.fsync(fd)
        finally:
            for fd in self.fds:
                os.close(fd)
            self.fds = []


class OpenFiles:
    """Descriptors for one pass of reading, closed at its end."""

    def __enter__(self) -> OpenFiles:
        self._stack = contextlib.ExitStack()
        self._fds: dict[Path, int] = {}
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def fd(self, segment: Segment) -> int:
        if segment.fd is not None:
            return segment.fd
        if segment.path not in self._fds:
            self._fds[segment.path] = os.open(segment.path, os.O_RDONLY | os.O_CLOEXEC)
            self._stack.callback(os.close, self._fds[segment.path])
        return self._fds[segment.path]
