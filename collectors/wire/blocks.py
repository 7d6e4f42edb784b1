"""The minute block: values of one wall minute <-> the bytes of ``records.Block.data``.

In: per metric an ``array('q')`` of ``series * samples`` integers, multiples of the metric's resolution, one
series after the other. Out: one zstd frame with checksum. Per metric, in the order of the headers: delta
inside each series, zigzag, byte shuffle (all lowest bytes first), so that slow signals become runs of
zeros. Arithmetic is modulo 2**64, so every int64 is exact, ``MISSING`` included. Standard library and
zstandard only.
"""

from __future__ import annotations

import math
import sys
from array import array
from collections.abc import Iterable, Sequence
from typing import Final

import zstandard

from collectors.wire import limits
from collectors.wire.records import Block, BlockMetric

CODEC: Final = "cw1"
MISSING: Final = -(2**63)
"""The value of a second without a sample."""

SAMPLES_MAX: Final = 3_600
SERIES_MAX: Final = 65_536
_MASK: Final = 2**64 - 1
_SIGN: Final = 2**63
_LEVEL: Final = 3


class BlockError(ValueError):
    """A block that does not hold what its header says; the text names the fault."""


def quantise(value: float | None, resolution: float) -> int:
    """The nearest multiple of ``resolution``; ``MISSING`` for None, NaN, infinity, what no int64 holds."""
    if value is None or not math.isfinite(scaled := value / resolution):
        return MISSING
    multiple = round(scaled)
    return multiple if -_SIGN < multiple < _SIGN else MISSING


def rollup(values: Iterable[int], resolution: float) -> list[float | None]:
    """[min, mean, max, last] of the samples that are there; four None when there is none."""
    present = [value for value in values if value != MISSING]
    if not present:
        return [None, None, None, None]
    mean = sum(present) / len(present)
    return [number * resolution for number in (min(present), mean, max(present), present[-1])]


def encode(metrics: Sequence[BlockMetric], columns: Sequence[array[int]]) -> bytes:
    """Compresses one minute.

    Args:
        metrics: headers, one per column.
        columns: ``array('q')`` of length series * samples each.
    Raises:
        BlockError: a column has another length than its header says.
    """
    parts = []
    for metric, column in zip(metrics, columns, strict=True):
        if len(column) != metric.series * metric.samples:
            raise BlockError(f"{metric.name}: {len(column)} values, the header says another count")
        parts.append(_shuffle(_deltas(column, metric.samples)))
    return zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True).compress(b"".join(parts))


def decode(metrics: Sequence[BlockMetric], data: bytes) -> list[array[int]]:
    """The columns ``encode`` was given.

    Raises:
        BlockError: the header is absurd, or the data is damaged, too large or of another length.
    """
    expected_bytes = _expected_bytes(metrics)
    raw = _decompress(data, expected_bytes)
    columns = []
    start = 0
    for metric in metrics:
        end = start + metric.series * metric.samples * 8
        columns.append(_undo_deltas(_unshuffle(raw[start:end]), metric.samples))
        start = end
    return columns


def verify(block: Block) -> None:
    """Checks everything a receiver can check without decoding values: header, length, checksum, rollup shape.

    Raises:
        BlockError: with the first fault found.
    """
    if block.codec != CODEC:
        raise BlockError(f"unknown block codec {block.codec!r}")
    if block.minute_ns % 60_000_000_000:
        raise BlockError("minute_ns is not the start of a minute")
    _decompress(block.data, _expected_bytes(block.metrics))
    series_of = {metric.name: metric.series for metric in block.metrics}
    for name, rows in block.rollup.items():
        if len(rows) != series_of.get(name) or any(len(row) != 4 for row in rows):
            raise BlockError(f"the rollup of {name} does not fit its header")
        if any(not _is_sane(row) for row in rows):
            raise BlockError(f"the rollup of {name} holds impossible numbers")


def _is_sane(row: Sequence[float | None]) -> bool:
    present = [number for number in row if number is not None]
    if not present:
        return True
    if len(present) != 4 or not all(math.isfinite(number) for number in present):
        return False
    low, mean, high, last = present
    slack = 1e-9 * max(abs(low), abs(high))  # the mean of equal floats may round past them
    return low - slack <= mean <= high + slack and low <= last <= high


def _expected_bytes(metrics: Sequence[BlockMetric]) -> int:
    if len(metrics) > limits.METRICS_PER_FRAME_MAX:
        raise BlockError(f"{len(metrics)} metrics, the limit is {limits.METRICS_PER_FRAME_MAX}")
    names = {metric.name for metric in metrics}
    if len(names) != len(metrics):
        raise BlockError("a metric stands twice in the header")
    total = 0
    for metric in metrics:
        if not (0 < metric.series <= SERIES_MAX and 0 < metric.samples <= SAMPLES_MAX):
            raise BlockError(f"{metric.name}: {metric.series} series of {metric.samples} samples")
        if not (math.isfinite(metric.resolution) and metric.resolution > 0):
            raise BlockError(f"{metric.name}: a resolution of {metric.resolution}")
        total += metric.series * metric.samples * 8
    if total > limits.PART_MAX_DECOMPRESSED_BYTES:
        raise BlockError(f"a block of {total} bytes is over the limit")
    return total


def _decompress(data: bytes, expected_bytes: int) -> bytes:
    try:
        if zstandard.frame_content_size(data) != expected_bytes:
            raise BlockError("the data has another length than the header says")
        # One byte more than needed: zstandard reads 0 as "no bound".
        raw = zstandard.ZstdDecompressor().decompress(data, max_output_size=expected_bytes + 1)
    except zstandard.ZstdError as error:
        raise BlockError(f"damaged data: {error}") from error
    if len(raw) != expected_bytes:
        raise BlockError("the data has another length than the header says")
    return raw


def _deltas(column: array[int], samples: int) -> array[int]:
    """Zigzag of the differences inside each series, as ``array('Q')``."""
    out = array("Q", bytes(8 * len(column)))
    previous = 0
    for place, value in enumerate(column):
        if place % samples == 0:
            previous = 0
        delta = (value - previous) & _MASK
        out[place] = ((delta << 1) & _MASK) if delta < _SIGN else ((~delta << 1) & _MASK) | 1
        previous = value
    return out


def _undo_deltas(column: array[int], samples: int) -> array[int]:
    out = array("q", bytes(8 * len(column)))
    value = 0
    for place, coded in enumerate(column):
        if place % samples == 0:
            value = 0
        delta = coded >> 1 if not coded & 1 else ~(coded >> 1) & _MASK
        value = (value + delta) & _MASK
        out[place] = value if value < _SIGN else value - 2**64
    return out


def _shuffle(column: array[int]) -> bytes:
    if sys.byteorder == "big":
        column = array("Q", column)
        column.byteswap()
    raw = column.tobytes()
    return b"".join(raw[byte::8] for byte in range(8))


def _unshuffle(raw: bytes) -> array[int]:
    count = len(raw) // 8
    out = bytearray(len(raw))
    for byte in range(8):
        out[byte::8] = raw[byte * count : (byte + 1) * count]
    column = array("Q", bytes(out))
    if sys.byteorder == "big":
        column.byteswap()
    return column
