"""Steps of a node's ranks <-> the bytes of ``steps.data``. Pure.

In: records of ranks of one job on one node. Out: one zstd frame: ranks and how many steps each has, then the
columns over all of them, byte shuffled. Ends are kept to the microsecond, durations as float32 (to 1 us below
10 s), no number as NaN. About 14 bytes a step where seven arrays of PostgreSQL took 70.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import zstandard
from numpy.typing import NDArray

from collectors.wire.records import Steps

LEVEL: Final = 3
STEPS_MAX: Final = 100_000
"""In one row, but for a record that alone holds more."""
RAW_MAX_BYTES: Final = 64 * 1024 * 1024
_HEAD: Final = struct.Struct("<BII")
_VERSION: Final = 1
_NS_PER_US: Final = 1_000
_FLOATS: Final = ("duration_s", "data_wait_s", "checkpoint_s", "gc_s", "cpu_s")

Numbers = NDArray[np.int64]
Seconds = NDArray[np.float32]


class StepsDamaged(ValueError):
    """Bytes that are no steps."""


@dataclass(frozen=True, slots=True, eq=False)
class StepColumns:
    """Steps of several ranks, all of shape (N,)."""

    rank: Numbers
    step: Numbers
    end_ns: Numbers
    duration_s: Seconds
    data_wait_s: Seconds
    checkpoint_s: Seconds
    gc_s: Seconds
    cpu_s: Seconds


def portions(told: Sequence[tuple[int, Steps]]) -> Iterator[list[tuple[int, Steps]]]:
    """(sequence, record) pairs cut so that no row holds more than ``STEPS_MAX`` steps."""
    part: list[tuple[int, Steps]] = []
    held = 0
    for sequence, record in told:
        if part and held + len(record.step) > STEPS_MAX:
            yield part
            part, held = [], 0
        part.append((sequence, record))
        held += len(record.step)
    if part:
        yield part


def pack(records: Sequence[Steps]) -> bytes:
    """One frame of the records, in their order. Cost: O(steps) in numpy."""
    counts = np.array([len(record.step) for record in records], np.uint32)
    ranks = np.array([record.id.rank for record in records], np.int32)
    steps = np.concatenate([np.array(record.step, np.int64) for record in records])
    ends = np.concatenate([np.array(record.end_ns, np.int64) for record in records]) // _NS_PER_US
    parts = [ranks.tobytes(), counts.tobytes(), _shuffled(_deltas(steps)), _shuffled(_deltas(ends))]
    for name in _FLOATS:
        with np.errstate(over="ignore"):  # absurd seconds become infinite and are told by nobody
            column = [np.array(getattr(record, name), np.float32) for record in records]  # None becomes NaN
        parts.append(_shuffled(np.concatenate(column)))
    raw = _HEAD.pack(_VERSION, len(records), len(steps)) + b"".join(parts)
    return zstandard.ZstdCompressor(level=LEVEL).compress(raw)


def unpack(data: bytes) -> StepColumns:
    """What ``pack`` was given, with durations rounded. Raises ``StepsDamaged``."""
    try:
        if zstandard.frame_content_size(data) > RAW_MAX_BYTES:
            raise StepsDamaged("the frame tells of more bytes than any row holds")
        raw = zstandard.ZstdDecompressor().decompress(data, max_output_size=RAW_MAX_BYTES)
        version, records, count = _HEAD.unpack_from(raw)
    except (zstandard.ZstdError, struct.error) as fault:
        raise StepsDamaged(str(fault)) from fault
    expected = _HEAD.size + 8 * records + count * (16 + 4 * len(_FLOATS))
    if version != _VERSION or len(raw) != expected:
        raise StepsDamaged(f"version {version}, {len(raw)} bytes for {count} steps of {records} ranks")
    at = _HEAD.size
    ranks = np.frombuffer(raw, np.int32, records, at)
    counts = np.frombuffer(raw, np.uint32, records, at + 4 * records)
    at += 8 * records
    if int(counts.sum()) != count:
        raise StepsDamaged(f"the ranks have {int(counts.sum())} steps, not {count}")
    step, end_us = (np.cumsum(_joined(raw, at + 8 * count * n, count, 8).view(np.int64)) for n in range(2))
    at += 16 * count
    floats = {
        name: _joined(raw, at + 4 * count * n, count, 4).view(np.float32) for n, name in enumerate(_FLOATS)
    }
    return StepColumns(np.repeat(ranks.astype(np.int64), counts), step, end_us * _NS_PER_US, **floats)


def _deltas(numbers: Numbers) -> Numbers:
    """Differences to the number before; the first one as it is. Overflow wraps and is undone by the sum."""
    return np.diff(numbers, prepend=np.zeros(1, np.int64))


def _shuffled(numbers: NDArray[np.generic]) -> bytes:
    """All lowest bytes first."""
    size = numbers.dtype.itemsize
    return np.ascontiguousarray(numbers).view(np.uint8).reshape(-1, size).T.tobytes()


def _joined(raw: bytes, at: int, count: int, size: int) -> NDArray[np.uint8]:
    """Bytes of ``count`` numbers of ``size`` bytes each, one after the other."""
    planes = np.frombuffer(raw, np.uint8, count * size, at).reshape(size, count)
    return np.ascontiguousarray(planes.T).reshape(-1)
