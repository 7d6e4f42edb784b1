"""Text as it was saved elsewhere: byte order marks, UTF-16 as Windows shells write it, zeros before the text.

In: bytes. Out: the same text in UTF-8. Bytes that are no such text stay as they are.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator
from typing import Final

_UTF_16: Final = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}


def as_utf8(data: bytes) -> bytes:
    """A whole text. JSON without a mark is told by the zero beside its first brace."""
    coding = _UTF_16.get(data[:2]) or {b"{\0": "utf-16-le", b"\0{": "utf-16-be"}.get(data[:2])
    if coding is not None:
        return data.decode(coding, "replace").removeprefix("\ufeff").encode("utf-8", "replace")
    return data.removeprefix(codecs.BOM_UTF8)


def chunks_as_utf8(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """A text in chunks. Zeros before it, as a log has that was cut while it was written, are left out."""
    decoder: codecs.IncrementalDecoder | None = None
    begun = False
    for chunk in chunks:
        if not begun:
            if chunk == bytes(len(chunk)):  # a comparison costs a fortieth of stripping
                continue
            chunk = chunk.lstrip(b"\0")
            begun = True
            if (coding := _UTF_16.get(chunk[:2])) is not None:
                decoder = codecs.getincrementaldecoder(coding)("replace")
                chunk = chunk[2:]
            chunk = chunk.removeprefix(codecs.BOM_UTF8)
        yield chunk if decoder is None else decoder.decode(chunk).encode("utf-8", "replace")
