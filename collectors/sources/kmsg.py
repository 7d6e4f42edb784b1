"""Records of the kernel's log, as /dev/kmsg gives them or as a recorded file holds them.

``prio,seq,usec,flags;text``, then lines that begin with a space (a dictionary). What is not printable is
escaped as ``\\xNN``. Bytes first: a record may hold any of them. Source: Documentation/ABI/testing/dev-kmsg.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from collectors.sources.tree import printable

RECORD_MAX_BYTES: Final = 8_192
"""The kernel's own limit of one record with its dictionary."""
RECORDS_MAX: Final = 100_000
LIVE_RECORDS_MAX: Final = 10_000
"""Records of one look at the live log; the others wait for the next."""
TEXT_MAX_CHARS: Final = 2_000

_HEAD: Final = re.compile(rb"(\d{1,5}),(\d{1,20}),(\d{1,20}),[^;\n]*;")
_ESCAPE: Final = re.compile(rb"\\x([0-9a-fA-F]{2})")
_KERNEL: Final = 0
"""Facility of the kernel itself; processes that write to /dev/kmsg have another."""


@dataclass(frozen=True, slots=True)
class Record:
    """One record.

    Attributes:
        sequence: its number since boot; None where the reader does not tell it (journald).
        usec: microseconds since boot, as the kernel's clock counts them.
        text: without its dictionary, what is not UTF-8 replaced.
        from_kernel: False for what a process has written to the log: it counts, but is not believed.
    """

    sequence: int | None
    usec: int
    text: str
    from_kernel: bool = True


@dataclass(frozen=True, slots=True)
class Lost:
    """Records that were overwritten before they were read, or that the file lacks."""

    count: int
    usec: int


def parse(data: bytes) -> list[Record]:
    """Records of a recorded file. Damaged lines are left out; of too many the newest stay.

    The driver prints some messages as several lines in one record; a file that was written by hand may have
    them as lines without a head.
    """
    found: deque[Record] = deque(maxlen=RECORDS_MAX)
    for line in data.split(b"\n"):
        if line.startswith(b" "):
            continue
        if record := _record(line):
            found.append(record)
        elif found and line.startswith(b"NVRM: "):
            found[-1] = replace(found[-1], text=f"{found[-1].text} {_text(line)}"[:TEXT_MAX_CHARS])
    return list(found)


def parse_journal(data: bytes) -> list[Record]:
    """Kernel records of ``journalctl -k -o json``: a message that is no UTF-8 is a list of bytes there."""
    found: list[Record] = []
    for line in data.split(b"\n")[-RECORDS_MAX:]:
        with contextlib.suppress(ValueError, RecursionError, TypeError, KeyError):
            told = json.loads(line)
            message = told["MESSAGE"]
            text = bytes(message).decode("utf-8", "replace") if isinstance(message, list) else str(message)
            if str(told.get("SYSLOG_FACILITY", "0")) == "0" and told.get("_TRANSPORT", "kernel") == "kernel":
                found.append(Record(None, _journal_usec(told), _clean(text)))
    return found


def _journal_usec(told: dict[str, Any]) -> int:
    """The kernel's own time of a message, else when the journal took it in. Raises ``KeyError``."""
    names = ("_SOURCE_MONOTONIC_TIMESTAMP", "__MONOTONIC_TIMESTAMP")
    return int(told[names[0]] if names[0] in told else told[names[1]])


def _record(line: bytes) -> Record | None:
    match = _HEAD.match(line[:RECORD_MAX_BYTES])
    if match is None:
        return None
    from_kernel = int(match[1]) >> 3 == _KERNEL
    return Record(int(match[2]), int(match[3]), _text(line[match.end() : RECORD_MAX_BYTES]), from_kernel)


def _text(escaped: bytes) -> str:
    """What was printed, line breaks as spaces."""
    plain = _ESCAPE.sub(lambda one: bytes([int(one[1], 16)]), escaped)
    return _clean(plain.decode("utf-8", "replace").strip("\r\n").replace("\n", " "))


def _clean(text: str) -> str:
    return printable(text[:TEXT_MAX_CHARS])


class KmsgReader:
    """The live log: each call gives what came since the last; the first all that the kernel kept."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._fd: int | None = None

    def read(self) -> list[Record]:
        """What is new. Records that were overwritten meanwhile show as a gap in the numbers.

        Raises:
            OSError: the log may not be read.
        """
        if self._fd is None:
            self._fd = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        found: list[Record] = []
        for _ in range(LIVE_RECORDS_MAX):
            try:
                data = os.read(self._fd, RECORD_MAX_BYTES)
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno in (errno.EPIPE, errno.EINVAL):  # overwritten; larger than the kernel's limit
                    continue
                self.close()
                raise
            if not data:
                break
            if record := _record(data.split(b"\n", 1)[0]):
                found.append(record)
        return found

    def close(self) -> None:
        """Safe to call twice."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def fresh(records: Iterable[Record], after: Record | None) -> Iterator[Record | Lost]:
    """Records newer than ``after``, and what is missing between them.

    What is missing before the first of all is no loss: the kernel keeps only so much.
    """
    last = None if after is None else after.sequence
    for record in records:
        if record.sequence is None or (after is not None and after.sequence is None):
            if after is not None and record.usec <= after.usec:
                continue
        elif last is not None and record.sequence <= last:
            continue
        if record.sequence is not None:
            if last is not None and record.sequence > last + 1:
                yield Lost(record.sequence - last - 1, record.usec)
            last = record.sequence
        yield record
