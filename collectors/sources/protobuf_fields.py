"""Fields of a Protocol Buffers message, by their number, without a library.

In: bytes of somebody else. Out: numbers and bytes. Strict: a number is at most ten bytes and 64 bits, a
length never leads out of the message, and groups, which are no longer in use, are an error. Source:
"Encoding" in the documents of Protocol Buffers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

NUMBER_MAX_BYTES: Final = 10
FIELDS_MAX: Final = 100_000
"""of one message"""
_VARINT, _FIXED_64, _BYTES, _FIXED_32 = 0, 1, 2, 5
_FIXED: Final = {_FIXED_64: 8, _FIXED_32: 4}


def varint(data: bytes, at: int) -> tuple[int, int]:
    """(number, place behind it). Raises ``ValueError`` for one that is cut or has more than 64 bits."""
    value = 0
    for place, byte in enumerate(data[at : at + NUMBER_MAX_BYTES]):
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            if value >= 2**64:
                raise ValueError("a number of more than 64 bits")
            return value, at + place + 1
    raise ValueError("a number without an end")


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(field's number, value) of each field, in order; fixed ones as their bytes.

    Raises:
        ValueError: it is no message, or has more than ``FIELDS_MAX`` fields.
    """
    at = 0
    for _ in range(FIELDS_MAX):
        if at >= len(data):
            return
        key, at = varint(data, at)
        number, form = key >> 3, key & 0x7
        if not 0 < number < 2**29:
            raise ValueError("a field of no number")
        if form == _VARINT:
            value, at = varint(data, at)
            yield number, value
            continue
        if form == _BYTES:
            size, at = varint(data, at)
        elif form in _FIXED:
            size = _FIXED[form]
        else:
            raise ValueError("a field of an unknown form")
        if size > len(data) - at:
            raise ValueError("a field that leads out of its message")
        yield number, data[at : at + size]
        at += size
    if at < len(data):
        raise ValueError("too many fields")


def parts(data: bytes, number: int) -> Iterator[bytes]:
    """Each value of a field of texts or messages. Raises ``ValueError``."""
    for field, value in fields(data):
        if field == number and isinstance(value, bytes):
            yield value


def text(data: bytes, number: int, max_chars: int) -> str:
    """A field's text, the last of several, cut; empty where it is not there. Raises ``ValueError``."""
    found = b""
    for value in parts(data, number):
        found = value
    return found[: max_chars * 4].decode("utf-8", "replace")[:max_chars]
