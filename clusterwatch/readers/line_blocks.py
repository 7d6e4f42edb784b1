"""Chunks of a text as blocks of whole lines, so that a log of any length takes the memory of one block."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from clusterwatch.readers.blobs import UnreadableError

LINE_MAX_BYTES: Final = 65_536
_BLOCK_BYTES: Final = 8 * 1024**2


def whole_lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Whole lines, some MiB at a time; what was read before a fault comes before the fault."""
    held, broken = bytearray(), None
    parts = iter(chunks)
    while True:
        try:
            chunk = next(parts, None)
        except UnreadableError as error:
            chunk, broken = None, error
        if chunk is None:
            break
        held += chunk
        if len(held) >= _BLOCK_BYTES:
            yield _taken(held)
    if broken is None:
        yield bytes(held)
    else:
        yield _taken(held)
        raise broken


def _taken(held: bytearray) -> bytes:
    """Takes what ends with a line; of an endless line, which is no record, only the end stays."""
    cut = held.rfind(b"\n") + 1
    lines = bytes(held[:cut])
    del held[: cut or len(held) - LINE_MAX_BYTES]
    return lines
