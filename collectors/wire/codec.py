"""Wire v1 records <-> bytes. The only place that encodes or decodes messages.

Raises ``WireError`` with a sentence that names the fault; nothing else escapes.
"""

from __future__ import annotations

from functools import cache
from typing import Any, TypeVar

import msgspec

from collectors.wire import limits, records

T = TypeVar("T")


class WireError(ValueError):
    """Bytes that are no valid message; ``code`` is stable, the text is for people."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


@cache
def _decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(kind)


_encoder = msgspec.msgpack.Encoder()


def encode(message: records.Record) -> bytes:
    """Encodes one message. Raises ``WireError`` when it is larger than a frame may be."""
    data = _encoder.encode(message)
    if len(data) > limits.FRAME_MAX_BYTES:
        raise WireError(
            "too_large", f"a {type(message).__name__} of {len(data)} bytes is over the frame limit"
        )
    return data


def decode_from_node(data: bytes) -> records.FromNode:
    """Decodes what a gateway receives."""
    message: records.FromNode = _decode(data, records.FromNode, limits.FRAME_MAX_BYTES)
    return message


def decode_from_gateway(data: bytes) -> records.FromGateway:
    """Decodes what an agent receives."""
    message: records.FromGateway = _decode(data, records.FromGateway, limits.FRAME_MAX_BYTES)
    return message


def decode_record(data: bytes) -> records.Spooled:
    """Decodes the payload of one ``PutItem``."""
    record: records.Spooled = _decode(data, records.Spooled, limits.RECORD_MAX_BYTES)
    return record


def _decode(data: bytes, kind: Any, max_bytes: int) -> Any:
    if len(data) > max_bytes:
        raise WireError("too_large", f"{len(data)} bytes, the limit is {max_bytes}")
    try:
        return _decoder(kind).decode(data)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise WireError("bad_message", f"not a valid message: {error}") from error


def check_version(version: str) -> None:
    """Refuses another major version with words; a newer minor one is fine.

    Raises: ``WireError`` with code ``bad_version``.
    """
    try:
        major = int(version.split(".", 1)[0])
    except ValueError:
        raise WireError("bad_version", f"{version!r} is no protocol version") from None
    if major != limits.PROTOCOL_MAJOR:
        raise WireError(
            "bad_version",
            f"this side speaks wire {limits.PROTOCOL_MAJOR}.x, the other {version}: upgrade the older one",
        )


VERSION = f"{limits.PROTOCOL_MAJOR}.{limits.PROTOCOL_MINOR}"
