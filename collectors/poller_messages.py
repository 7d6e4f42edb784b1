"""What the process that polls devices hands to its agent over a pipe.

In: records, and words on how a poller fares. Out: messages of a 4-byte length and msgpack, and back.
"""

from __future__ import annotations

from typing import Final

import msgspec

from collectors.wire import limits, records
from collectors.wire.base import Name, Record, Text

_LENGTH_BYTES: Final = 4


class PollerWord(Record, tag="poller_word", frozen=True):
    """``state``: ``ok``, or what keeps a poller from its work; ``poller`` is empty for all of the file."""

    poller: Name
    state: Text


Message = records.DeviceReadings | records.Event | PollerWord
_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


class TooLarge(ValueError):
    """A length that no message has: what follows cannot be read either."""


def packed(message: Message) -> bytes:
    """Raises ``TooLarge`` for a message that the wire does not take."""
    data = _encoder.encode(message)
    if len(data) > limits.RECORD_MAX_BYTES:
        raise TooLarge(f"a message of {len(data)} bytes")
    return len(data).to_bytes(_LENGTH_BYTES, "big") + data


class Reader:
    """Bytes as they come -> messages."""

    def __init__(self) -> None:
        self.refused = 0
        """messages of a wrong shape or beyond a bound"""
        self._bytes = bytearray()

    def feed(self, chunk: bytes) -> list[Message]:
        """The messages that are whole now. Raises ``TooLarge``."""
        self._bytes += chunk
        found: list[Message] = []
        while len(self._bytes) >= _LENGTH_BYTES:
            end = _LENGTH_BYTES + int.from_bytes(self._bytes[:_LENGTH_BYTES], "big")
            if end - _LENGTH_BYTES > limits.RECORD_MAX_BYTES:
                raise TooLarge(f"a message of {end - _LENGTH_BYTES} bytes")
            if len(self._bytes) < end:
                break
            try:
                found.append(_decoder.decode(bytes(self._bytes[_LENGTH_BYTES:end])))
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                self.refused += 1
            del self._bytes[:end]
        return found
