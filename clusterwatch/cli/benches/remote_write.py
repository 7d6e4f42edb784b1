"""Prometheus remote write, version 1: a minute of many series as request bodies, made by numpy. Pure.

Each sample of one minute has the same number of bytes, so the samples of all series are one array. The body
is snappy's block format with literals only, which every reader takes; what compression would save is not
measured.
Source: Prometheus remote-write 1.0 specification; snappy format description, sections 1 and 2.1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

SERIES_PER_REQUEST: Final = 2_000
_LABEL, _SAMPLES, _SERIES = 0x0A, 0x12, 0x0A
_NAME, _TEXT = 0x0A, 0x12
_VALUE, _TIME = 0x09, 0x10
_LITERAL_4: Final = 0xFC
"""Snappy: a literal whose length less one follows in four bytes."""


def labels(names: Mapping[str, str]) -> bytes:
    """The labels of a series, in the order the protocol wants (by name)."""
    found = []
    for name, value in sorted(names.items()):
        pair = _field(_NAME, name.encode()) + _field(_TEXT, value.encode())
        found.append(_field(_LABEL, pair))
    return b"".join(found)


def requests(heads: Sequence[bytes], values: NDArray[np.float64], times_ms: Sequence[int]) -> Iterator[bytes]:
    """Bodies of POST requests.

    Args:
        heads: ``labels`` of each series.
        values: shape (series, samples).
        times_ms: of the samples; all of one length as a varint.
    """
    samples = _samples(values, times_ms)
    for first in range(0, len(heads), SERIES_PER_REQUEST):
        parts = []
        for row in range(first, min(len(heads), first + SERIES_PER_REQUEST)):
            body = heads[row] + samples[row].tobytes()
            parts.append(_field(_SERIES, body))
        yield _snappy(b"".join(parts))


def _samples(values: NDArray[np.float64], times_ms: Sequence[int]) -> NDArray[np.uint8]:
    """Every sample as bytes: shape (series, samples * bytes of one)."""
    times = np.array([list(_varint(time_ms)) for time_ms in times_ms], np.uint8)
    length = 1 + 8 + 1 + times.shape[1]
    packed = np.empty((*values.shape, 2 + length), np.uint8)
    packed[..., 0], packed[..., 1], packed[..., 2] = _SAMPLES, length, _VALUE
    packed[..., 3:11] = np.ascontiguousarray(values, "<f8").view(np.uint8).reshape(*values.shape, 8)
    packed[..., 11] = _TIME
    packed[..., 12:] = times
    return packed.reshape(len(values), -1)


def _field(tag: int, body: bytes) -> bytes:
    """A field of protobuf's length-delimited kind."""
    return bytes([tag]) + _varint(len(body)) + body


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


def _snappy(raw: bytes) -> bytes:
    return _varint(len(raw)) + bytes([_LITERAL_4]) + (len(raw) - 1).to_bytes(4, "little") + raw
