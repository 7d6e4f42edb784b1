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
import threading
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
LEVEL: Final = 3
"""of zstd"""
ROLLUP_PARTS: Final = 4
"""min, mean, max, last"""
FLOAT32_MAX: Final = 3.4028234663852886e38
FLOAT32_SLACK: Final = 2.0**-22
"""Relative: the mean of equal numbers may round one float32 past them."""
_MASK: Final = 2**64 - 1
_SIGN: Final = 2**63
_NO_ROLLUP: Final = (math.nan, math.nan, math.nan, math.nan)
_local = threading.local()

Rollup = tuple[float, float, float, float]
"""min, mean, max, last of one series, in the metric's unit"""


class BlockError(ValueError):
    """A block that does not hold what its header says; the text names the fault."""


def quantise(value: float | None, resolution: float) -> int:
    """The nearest multiple of ``resolution``; ``MISSING`` for None, NaN, infinity, what no int64 holds."""
    if value is None or not math.isfinite(scaled := value / resolution):
        return MISSING
    multiple = round(scaled)
    return multiple if -_SIGN < multiple < _SIGN else MISSING


def rollup(values: Iterable[int], resolution: float) -> Rollup:
    """(min, mean, max, last) of the samples that are there; four NaN when there is none."""
    present = [value for value in values if value != MISSING]
    if not present:
        return _NO_ROLLUP
    mean = sum(present) / len(present)
    return min(present) * resolution, mean * resolution, max(present) * resolution, present[-1] * resolution


def pack_rollups(rollups: Sequence[Rollup]) -> bytes:
    """The planes of ``records.Block.rollup``; a series with a number beyond float32 counts as unknown."""
    kept = [row if max(map(abs, row)) <= FLOAT32_MAX else _NO_ROLLUP for row in rollups]
    planes = array("f", [row[part] for part in range(ROLLUP_PARTS) for row in kept])
    if sys.byteorder == "big":
        planes.byteswap()
    return planes.tobytes()


def unpack_rollups(packed: bytes) -> list[Rollup]:
    """What ``pack_rollups`` was given, as float32 keeps it.

    Raises:
        BlockError: the length is none that four planes can have.
    """
    if len(packed) % (ROLLUP_PARTS * 4):
        raise BlockError(f"a rollup of {len(packed)} bytes")
    planes = array("f", packed)
    if sys.byteorder == "big":
        planes.byteswap()
    series = len(planes) // ROLLUP_PARTS
    low, mean, high, last = (planes[part * series : (part + 1) * series] for part in range(ROLLUP_PARTS))
    return list(zip(low, mean, high, last, strict=True))


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
    return zstandard.ZstdCompressor(level=LEVEL, write_checksum=True).compress(b"".join(parts))


def decode(metrics: Sequence[BlockMetric], data: bytes) -> list[array[int]]:
    """The columns ``encode`` was given.

    Raises:
        BlockError: the header is absurd, or the data is damaged, too large or of another length.
    """
    raw = decompress(data, expected_bytes(metrics))
    columns = []
    start = 0
    for metric in metrics:
        end = start + metric.series * metric.samples * 8
        columns.append(_undo_deltas(_unshuffle(raw[start:end]), metric.samples))
        start = end
    return columns


def verify(block: Block) -> None:
    """Checks everything a receiver can check without decoding values: header, length, checksum, rollup.

    Raises:
        BlockError: with the first fault found.
    """
    verify_frame(block)
    decompress(block.data, expected_bytes(block.metrics))
    series = sum(metric.series for metric in block.metrics)
    if len(block.rollup) != 4 * ROLLUP_PARTS * series:
        raise BlockError("the rollup does not fit the header")
    if not all(map(_is_sane, unpack_rollups(block.rollup))):
        raise BlockError("the rollup holds impossible numbers")


def verify_frame(block: Block) -> None:
    """Checks what stands beside header, data and rollup.

    Raises:
        BlockError: an unknown codec, or a time that begins no minute.
    """
    if block.codec != CODEC:
        raise BlockError(f"unknown block codec {block.codec!r}")
    if block.minute_ns % 60_000_000_000:
        raise BlockError("minute_ns is not the start of a minute")


def expected_bytes(metrics: Sequence[BlockMetric]) -> int:
    """Length of the decompressed data of a block with this header.

    Raises:
        BlockError: no block can have it.
    """
    if len(metrics) > limits.METRICS_PER_FRAME_MAX:
        raise BlockError(f"{len(metrics)} metrics, the limit is {limits.METRICS_PER_FRAME_MAX}")
    names = {metric.name for metric in metrics}
    if len(names) != len(metrics):
        raise BlockError("a metric stands twice in the header")
    total = 0
    for metric in metrics:
        if not (0 < metric.series <= SERIES_MAX and 0 < metric.samples <= SAMPLES_MAX):
            raise BlockError(f"{metric.name}: {metric.series} series of {metric.samples} samples")
        if not limits.RESOLUTION_MIN <= metric.resolution <= limits.RESOLUTION_MAX:
            allowed = f"{limits.RESOLUTION_MIN:g} to {limits.RESOLUTION_MAX:g}"
            raise BlockError(f"{metric.name}: a resolution of {metric.resolution:g}, allowed is {allowed}")
        total += metric.series * metric.samples * 8
    if total > limits.PART_MAX_DECOMPRESSED_BYTES:
        raise BlockError(f"a block of {total} bytes is over the limit")
    return total


def decompress(data: bytes, expected: int) -> bytes:
    """The bytes of one frame, which must have a checksum and exactly ``expected`` bytes inside.

    Raises:
        BlockError: it has not, or is damaged.
    """
    try:
        parameters = zstandard.get_frame_parameters(data)
        if parameters.content_size != expected:
            raise BlockError("the data has another length than the header says")
        if not parameters.has_checksum:
            raise BlockError("the data has no checksum")
        # One byte more than needed: zstandard reads 0 as "no bound".
        raw = _decompressor().decompress(data, max_output_size=expected + 1, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise BlockError(f"damaged data: {error}") from error
    if len(raw) != expected:
        raise BlockError("the data has another length than the header says")
    return raw


def _decompressor() -> zstandard.ZstdDecompressor:
    """One per thread: it is not safe to share, and making one for each block costs more than its work."""
    found: zstandard.ZstdDecompressor | None = getattr(_local, "decompressor", None)
    if found is None:
        found = _local.decompressor = zstandard.ZstdDecompressor()
    return found


def _is_sane(row: Rollup) -> bool:
    low, mean, high, last = row
    unknown = [number != number for number in row]
    if any(unknown):
        return all(unknown)
    if not all(map(math.isfinite, row)):
        return False
    slack = FLOAT32_SLACK * max(abs(low), abs(high))
    return low - slack <= mean <= high + slack and low <= last <= high


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
