"""Steps of a node's ranks <-> the bytes of ``steps.data``. Pure.

In: records of ranks of one job on one node. Out: one zstd frame: ranks and how many steps each has, then the
columns over all of them, byte shuffled. Ends are kept to the microsecond, durations as float32 (to 1 us below
10 s), no number as NaN. About 18 bytes a step where nine arrays of PostgreSQL took 90. Frames of version 1
have no ``wait_s`` and no ``late_launch``: both are unknown there.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import zstandard
from numpy.typing import NDArray

from clusterwatch.store.byte_planes import deltas, joined, shuffled
from collectors.wire.records import Steps

LEVEL: Final = 3
STEPS_MAX: Final = 100_000
"""In one row, but for a record that alone holds more."""
RAW_MAX_BYTES: Final = 64 * 1024 * 1024
_HEAD: Final = struct.Struct("<BII")
_VERSION: Final = 2
_NS_PER_US: Final = 1_000
_FLOATS_OF: Final = {
    1: ("duration_s", "data_wait_s", "checkpoint_s", "gc_s", "cpu_s"),
    2: ("duration_s", "data_wait_s", "checkpoint_s", "gc_s", "cpu_s", "wait_s", "late_launch"),
}
"""By version, in the order of the bytes."""
_FLOATS: Final = _FLOATS_OF[_VERSION]

Numbers = NDArray[np.int64]
Seconds = NDArray[np.float32]


class StepsDamaged(ValueError):
    """Bytes that are no steps."""


@dataclass(frozen=True, slots=True, eq=False)
class StepColumns:
    """Steps of several ranks, all of shape (N,); NaN where unknown."""

    rank: Numbers
    step: Numbers
    end_ns: Numbers
    duration_s: Seconds
    data_wait_s: Seconds
    checkpoint_s: Seconds
    gc_s: Seconds
    cpu_s: Seconds
    wait_s: Seconds
    late_launch: Seconds
    """share, 0 to 1"""


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
    parts = [ranks.tobytes(), counts.tobytes(), shuffled(deltas(steps)), shuffled(deltas(ends))]
    for name in _FLOATS:
        with np.errstate(over="ignore"):  # absurd seconds become infinite and are told by nobody
            column = [_column(record, name) for record in records]
        parts.append(shuffled(np.concatenate(column)))
    raw = _HEAD.pack(_VERSION, len(records), len(steps)) + b"".join(parts)
    return zstandard.ZstdCompressor(level=LEVEL).compress(raw)


def _column(record: Steps, name: str) -> Seconds:
    """None becomes NaN, and so does every row of a column that was left out."""
    values = getattr(record, name)
    return np.array(values, np.float32) if values else np.full(len(record.step), np.nan, np.float32)


def unpack(data: bytes) -> StepColumns:
    """What ``pack`` was given, with durations rounded. Raises ``StepsDamaged``."""
    return unpack_many([data])[0]


def unpack_many(frames: Sequence[bytes]) -> tuple[StepColumns, Numbers]:
    """(steps of all frames, index of its frame by step); frames of one shape are decoded together.

    The order is by frame inside each shape, and by shape else. Raises ``StepsDamaged``.
    Cost: O(steps) in numpy and about 5 us a frame.
    """
    alike: dict[tuple[int, int, int], list[tuple[int, bytes]]] = defaultdict(list)
    decompressor = zstandard.ZstdDecompressor()
    for number, data in enumerate(frames):
        raw = _raw(data, decompressor)
        alike[_HEAD.unpack_from(raw)].append((number, raw))
    parts = [_decoded(shape, [raw for _, raw in told]) for shape, told in alike.items()]
    numbers = [
        np.repeat(np.array([number for number, _ in told], np.int64), count)
        for (_, _, count), told in alike.items()
    ]
    names = StepColumns.__slots__
    columns: dict[str, Any] = {
        name: np.concatenate([np.zeros(0, _kind(name)), *(part[name] for part in parts)]) for name in names
    }
    return StepColumns(**columns), np.concatenate([np.zeros(0, np.int64), *numbers])


def _kind(name: str) -> type[np.generic]:
    return np.float32 if name in _FLOATS else np.int64


def _raw(data: bytes, decompressor: zstandard.ZstdDecompressor) -> bytes:
    """The bytes of a frame, of the length that its head tells."""
    try:
        if zstandard.frame_content_size(data) > RAW_MAX_BYTES:
            raise StepsDamaged("the frame tells of more bytes than any row holds")
        raw = decompressor.decompress(data, max_output_size=RAW_MAX_BYTES)
        version, records, count = _HEAD.unpack_from(raw)
    except (zstandard.ZstdError, struct.error) as fault:
        raise StepsDamaged(str(fault)) from fault
    expected = _HEAD.size + 8 * records + count * (16 + 4 * len(_FLOATS_OF.get(version, ())))
    if version not in _FLOATS_OF or len(raw) != expected:
        raise StepsDamaged(f"version {version}, {len(raw)} bytes for {count} steps of {records} ranks")
    return raw


def _decoded(shape: tuple[int, int, int], raws: list[bytes]) -> dict[str, NDArray[Any]]:
    """Columns of F frames that have one shape, one frame after the other."""
    version, records, count = shape
    grid = np.frombuffer(b"".join(raws), np.uint8).reshape(len(raws), -1)
    at = _HEAD.size

    def taken(width: int) -> NDArray[np.uint8]:
        nonlocal at
        at += width
        return np.ascontiguousarray(grid[:, at - width : at])

    ranks = taken(4 * records).view(np.int32).reshape(-1).astype(np.int64)
    counts = taken(4 * records).view(np.uint32).reshape(len(raws), -1)
    sums = counts.sum(axis=1, dtype=np.int64)
    if (sums != count).any():
        raise StepsDamaged(f"the ranks have {int(sums[sums != count][0])} steps, not {count}")
    found: dict[str, NDArray[Any]] = {"rank": np.repeat(ranks, counts.reshape(-1))}
    for name in ("step", "end_ns"):
        found[name] = np.cumsum(joined(taken(8 * count), 8).view(np.int64), axis=1).reshape(-1)
    found["end_ns"] *= _NS_PER_US
    for name in _FLOATS:
        if name in _FLOATS_OF[version]:
            found[name] = joined(taken(4 * count), 4).view(np.float32).reshape(-1)
        else:
            found[name] = np.full(len(raws) * count, np.nan, np.float32)
    return found
