"""Minute blocks as ready-made rows of PostgreSQL's binary COPY format.

In: blocks with their header's row number. Out: bytes per row for ``raw_block`` and ``node_minute``; the
rollups of all blocks of one size are turned into arrays by one numpy operation, never number by number.
Source: PostgreSQL manual, COPY, "Binary Format"; ``array_recv`` for the layout of an array.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from collectors.wire import blocks

_FLOAT4_OID: Final = 700
_ARRAY_HEAD_WORDS: Final = 6
"""length of the field, dimensions, has nulls, element type, size, lower bound"""
_FIXED: Final = struct.Struct(">iqiqiq")
_ONE: Final = struct.Struct(">iq")
_LENGTH: Final = struct.Struct(">i")
_RAW_FIELDS: Final = struct.pack(">h", 8)
_MINUTE_FIELDS: Final = struct.pack(">h", 10)


@dataclass(frozen=True, slots=True)
class BlockRow:
    """One block as it will be stored."""

    cluster_id: int
    node_id: int
    t_ns: int
    epoch: str
    sequence: int
    shape_id: int
    codec: str
    data: bytes
    rollup: bytes
    """``records.Block.rollup``, already checked"""


def raw_rows(rows: Sequence[BlockRow]) -> Iterator[bytes]:
    """One COPY row of ``raw_block`` each."""
    for row in rows:
        yield b"".join((_RAW_FIELDS, _head(row), _sized(row.codec.encode()), _sized(row.data)))


def minute_rows(rows: Sequence[BlockRow]) -> Iterator[bytes]:
    """One COPY row of ``node_minute`` each, grouped by the number of series."""
    by_size: dict[int, list[BlockRow]] = defaultdict(list)
    for row in rows:
        by_size[len(row.rollup)].append(row)
    for group in by_size.values():
        planes = _arrays([row.rollup for row in group])
        for row, four in zip(group, planes, strict=True):
            yield b"".join((_MINUTE_FIELDS, _head(row), four.tobytes()))


def _head(row: BlockRow) -> bytes:
    return b"".join(
        (
            _FIXED.pack(8, row.cluster_id, 8, row.node_id, 8, row.t_ns),
            _sized(row.epoch.encode()),
            _ONE.pack(8, row.sequence),
            _ONE.pack(8, row.shape_id),
        )
    )


def _sized(value: bytes) -> bytes:
    return _LENGTH.pack(len(value)) + value


def _arrays(rollups: Sequence[bytes]) -> NDArray[np.uint32]:
    """The four array fields of each row, big-endian words of shape (rows, 4, words)."""
    planes = np.frombuffer(b"".join(rollups), "<u4").reshape(len(rollups), blocks.ROLLUP_PARTS, -1)
    series = planes.shape[2]
    words = np.empty((len(rollups), blocks.ROLLUP_PARTS, _ARRAY_HEAD_WORDS + 2 * series), ">u4")
    words[..., :_ARRAY_HEAD_WORDS] = (20 + 8 * series, 1, 0, _FLOAT4_OID, series, 1)
    words[..., _ARRAY_HEAD_WORDS::2] = 4
    words[..., _ARRAY_HEAD_WORDS + 1 :: 2] = planes
    return words
