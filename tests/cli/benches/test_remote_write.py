"""Remote write requests, read back by a reader of snappy and protobuf of its own."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np

from clusterwatch.cli.benches import remote_write


def varint(data: bytes, place: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[place]
        number |= (byte & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if byte < 0x80:
            return number, place


def unpacked(data: bytes) -> bytes:
    """Snappy's block format with literals only."""
    length, place = varint(data, 0)
    out = b""
    while place < len(data):
        tag = data[place]
        assert tag & 3 == 0
        size, place = tag >> 2, place + 1
        if size >= 60:
            extra = size - 59
            size = int.from_bytes(data[place : place + extra], "little")
            place += extra
        out += data[place : place + size + 1]
        place += size + 1
    assert len(out) == length
    return out


def fields(data: bytes) -> Iterator[tuple[int, bytes | int | float]]:
    place = 0
    while place < len(data):
        key, place = varint(data, place)
        if key & 7 == 2:
            size, place = varint(data, place)
            yield key >> 3, data[place : place + size]
            place += size
        elif key & 7 == 1:
            yield key >> 3, struct.unpack("<d", data[place : place + 8])[0]
            place += 8
        else:
            value, place = varint(data, place)
            yield key >> 3, value


def parts(data: object, number: int) -> list[bytes]:
    assert isinstance(data, bytes)
    return [part for key, part in fields(data) if key == number and isinstance(part, bytes)]


def test_every_sample_of_every_series_is_there_with_its_labels() -> None:
    count = remote_write.SERIES_PER_REQUEST + 3
    heads = [remote_write.labels({"slot": str(n), "__name__": "m" * 200}) for n in range(count)]
    values = np.arange(count * 2, dtype=np.float64).reshape(count, 2) / 3
    times = [1_796_000_000_000, 1_796_000_001_000]
    series = [one for body in remote_write.requests(heads, values, times) for one in parts(unpacked(body), 1)]
    assert len(series) == count
    for number in (0, 1, count - 1):
        labels = [dict(fields(label)) for label in parts(series[number], 1)]
        assert labels == [{1: b"__name__", 2: b"m" * 200}, {1: b"slot", 2: str(number).encode()}]
        samples = [dict(fields(sample)) for sample in parts(series[number], 2)]
        assert samples == [
            {1: value, 2: time} for value, time in zip(values[number].tolist(), times, strict=True)
        ]
