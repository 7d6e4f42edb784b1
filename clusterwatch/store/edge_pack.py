"""Transfers that a node's ranks told of <-> the bytes of ``edges.data``. Pure.

In: records of ranks of one job on one node. Out: one zstd frame: the words of operations, then per record its
rank, its time and how many rows it has, then the columns over all rows, byte shuffled. Seconds are float32.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import numpy as np
import zstandard
from numpy.typing import NDArray

from clusterwatch.store.byte_planes import deltas, joined, shuffled
from collectors.wire import limits
from collectors.wire.records import Edges

LEVEL: Final = 3
ROWS_MAX: Final = 200_000
"""In one row of the table, but for a record that alone holds more."""
RAW_MAX_BYTES: Final = 64 * 1024 * 1024
_VERSION: Final = 1
_HEAD: Final = struct.Struct("<BIII")
"""Version, records, rows, bytes of the words."""
_NUMBERS: Final = ("step", "group", "op", "size_bytes", "count")
"""int64 as differences to the row before."""
_SECONDS: Final = ("sum_s", "min_s", "p10_s", "p50_s")
_RECORD_BYTES: Final = 4 + 8 + 4
_ROW_BYTES: Final = 8 * len(_NUMBERS) + 4 * len(_SECONDS)

Numbers = NDArray[np.int64]
Seconds = NDArray[np.float32]


class EdgesDamaged(ValueError):
    """Bytes that are no transfers."""


@dataclass(frozen=True, slots=True, eq=False)
class EdgeColumns:
    """Rows of several ranks, all of shape (N,); as the wire's ``Edges`` has them.

    Attributes:
        group: index in the rank's own inventory of groups.
        op: index into ``ops``.
        t_ns: when the rank told it.
    """

    ops: tuple[str, ...]
    rank: Numbers
    t_ns: Numbers
    step: Numbers
    group: Numbers
    op: Numbers
    size_bytes: Numbers
    count: Numbers
    sum_s: Seconds
    min_s: Seconds
    p10_s: Seconds
    p50_s: Seconds


def portions(told: Sequence[tuple[int, Edges]]) -> Iterator[list[tuple[int, Edges]]]:
    """(sequence, record) pairs cut so that none holds more than ``ROWS_MAX`` rows or too many words."""
    part: list[tuple[int, Edges]] = []
    held, words = 0, set[str]()
    for sequence, record in told:
        too_many = held + len(record.step) > ROWS_MAX or len(words | {*record.ops}) > limits.EDGE_OPS_MAX
        if part and too_many:
            yield part
            part, held, words = [], 0, set()
        part.append((sequence, record))
        held += len(record.step)
        words |= {*record.ops}
    if part:
        yield part


def pack(records: Sequence[Edges]) -> bytes:
    """One frame of the records, in their order. Cost: O(rows) in numpy."""
    words = list(dict.fromkeys(op for record in records for op in record.ops))
    place = {word: number for number, word in enumerate(words)}
    ops = [np.array([place[op] for op in record.ops], np.int64)[record.op] for record in records]
    counts = [len(record.step) for record in records]
    spoken = msgspec.msgpack.encode(words)
    parts = [
        spoken,
        np.array([record.id.rank for record in records], np.int32).tobytes(),
        np.array([record.t_ns for record in records], np.int64).tobytes(),
        np.array(counts, np.uint32).tobytes(),
    ]
    for name in _NUMBERS:
        columns = ops if name == "op" else [np.array(getattr(record, name), np.int64) for record in records]
        parts.append(shuffled(deltas(np.concatenate(columns))))
    for name in _SECONDS:
        seconds = [np.array(getattr(record, name), np.float32) for record in records]
        parts.append(shuffled(np.concatenate(seconds)))
    raw = _HEAD.pack(_VERSION, len(records), sum(counts), len(spoken)) + b"".join(parts)
    return zstandard.ZstdCompressor(level=LEVEL).compress(raw)


def unpack(frames: Sequence[bytes]) -> EdgeColumns:
    """What ``pack`` was given, with seconds rounded; frames of one shape are decoded together.

    The order is by frame inside each shape and by shape else. Raises ``EdgesDamaged``.
    Cost: O(rows) in numpy and about 5 us a frame.
    """
    alike: dict[tuple[bytes, int, int], list[bytes]] = defaultdict(list)
    decompressor = zstandard.ZstdDecompressor()
    for data in frames:
        spoken, records, rows, rest = _raw(data, decompressor)
        alike[spoken, records, rows].append(rest)
    words: dict[str, int] = {}
    parts = [_decoded(shape, raws, words) for shape, raws in alike.items()]
    names = [name for name in EdgeColumns.__slots__ if name != "ops"]
    columns: dict[str, Any] = {
        name: np.concatenate([np.zeros(0, _kind(name)), *(part[name] for part in parts)]) for name in names
    }
    return EdgeColumns(ops=tuple(words), **columns)


def _kind(name: str) -> type[np.generic]:
    return np.float32 if name in _SECONDS else np.int64


def _raw(data: bytes, decompressor: zstandard.ZstdDecompressor) -> tuple[bytes, int, int, bytes]:
    """(words, records, rows, what follows) of a frame, of the length that its head tells."""
    try:
        if zstandard.frame_content_size(data) > RAW_MAX_BYTES:
            raise EdgesDamaged("the frame tells of more bytes than any row holds")
        raw = decompressor.decompress(data, max_output_size=RAW_MAX_BYTES)
        version, records, rows, spoken = _HEAD.unpack_from(raw)
    except (zstandard.ZstdError, struct.error) as fault:
        raise EdgesDamaged(str(fault)) from fault
    expected = _HEAD.size + spoken + _RECORD_BYTES * records + _ROW_BYTES * rows
    if version != _VERSION or len(raw) != expected:
        raise EdgesDamaged(f"version {version}, {len(raw)} bytes for {rows} rows of {records} records")
    begin = _HEAD.size + spoken
    return raw[_HEAD.size : begin], records, rows, raw[begin:]


def _decoded(
    shape: tuple[bytes, int, int], raws: list[bytes], words: dict[str, int]
) -> dict[str, NDArray[Any]]:
    """Columns of F frames that have one shape, one frame after the other; ``words`` grows."""
    spoken, records, rows = shape
    grid = np.frombuffer(b"".join(raws), np.uint8).reshape(len(raws), -1)
    at = 0

    def taken(width: int) -> NDArray[np.uint8]:
        nonlocal at
        at += width
        return np.ascontiguousarray(grid[:, at - width : at])

    ranks = taken(4 * records).view(np.int32).reshape(-1).astype(np.int64)
    times = taken(8 * records).view(np.int64).reshape(-1)
    counts = taken(4 * records).view(np.uint32).reshape(len(raws), -1)
    if (counts.sum(axis=1, dtype=np.int64) != rows).any():
        raise EdgesDamaged(f"the records do not have {rows} rows")
    found: dict[str, NDArray[Any]] = {
        "rank": np.repeat(ranks, counts.reshape(-1)),
        "t_ns": np.repeat(times, counts.reshape(-1)),
    }
    for name in _NUMBERS:
        found[name] = np.cumsum(joined(taken(8 * rows), 8).view(np.int64), axis=1).reshape(-1)
    for name in _SECONDS:
        found[name] = joined(taken(4 * rows), 4).view(np.float32).reshape(-1)
    found["op"] = _known(spoken, words)[found["op"]] if rows else found["op"]
    return found


def _known(spoken: bytes, words: dict[str, int]) -> Numbers:
    """Index in ``words`` of each of a frame's own words."""
    try:
        told = msgspec.msgpack.decode(spoken, type=list[str])
    except msgspec.MsgspecError as fault:
        raise EdgesDamaged(f"words of operations: {fault}") from fault
    return np.array([words.setdefault(word, len(words)) for word in told], np.int64)
