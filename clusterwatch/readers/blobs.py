"""What the readers pass on of a file: its name as safe text, and ways to its bytes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

LABEL_MAX_CHARS: Final = 1_000
_PACKED: Final = (".gz", ".zst")


class UnreadableError(Exception):
    """A file whose bytes cannot be had; the text says why."""


@dataclass(frozen=True, slots=True)
class Blob:
    """One file. ``name`` is its path below the input as text that is safe to print, without .gz or .zst."""

    name: str
    read: Callable[[int], bytes]
    """bytes of the file, at most so many; raises ``UnreadableError`` beyond it or when it is damaged"""
    size_bytes: int
    """as it lies, packed or not; for progress and for sharing out work"""
    stream: Callable[[int], Iterator[bytes]]
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


def size_text(size_bytes: int) -> str:
    """``64 MiB``; what is no whole number of them in bytes."""
    return f"{size_bytes} bytes" if size_bytes % (1 << 20) else f"{size_bytes >> 20} MiB"


def unpacked_name(name: str) -> str:
    """A name without .gz or .zst."""
    packed = next((suffix for suffix in _PACKED if name.lower().endswith(suffix)), "")
    return name[: len(name) - len(packed)]
