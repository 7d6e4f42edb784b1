"""Many minute blocks of one shape <-> numpy arrays: the format of ``collectors.wire.blocks``, all at once.

In: the header of the blocks (metrics in their order) and their bytes. Out: values of the metrics and series
asked for; of the others nothing is done beyond the decompression. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

import numpy as np
import zstandard
from numpy.typing import NDArray

from collectors.wire import blocks
from collectors.wire.blocks import BlockError
from collectors.wire.records import BlockMetric

WORD: Final = 8
"""Bytes of one int64."""


@dataclass(frozen=True, slots=True)
class _Run:
    """Neighbouring metrics with the same number of series and samples: one array, one operation."""

    start: int
    """first byte"""
    series: int
    samples: int
    places: tuple[int, ...]
    """of the metrics in the header"""

    @property
    def metric_bytes(self) -> int:
        return self.series * self.samples * WORD


@dataclass(frozen=True, slots=True)
class Layout:
    """Where each metric lies in a decompressed block."""

    metrics: tuple[BlockMetric, ...]
    total_bytes: int
    runs: tuple[_Run, ...]

    @classmethod
    def of(cls, metrics: Sequence[BlockMetric]) -> Layout:
        """Raises ``BlockError`` on a header no block can have."""
        total = blocks.expected_bytes(metrics)
        runs, start = [], 0
        for (series, samples), members in groupby(
            range(len(metrics)), lambda place: (metrics[place].series, metrics[place].samples)
        ):
            run = _Run(start, series, samples, tuple(members))
            runs.append(run)
            start += run.metric_bytes * len(run.places)
        return cls(tuple(metrics), total, tuple(runs))

    def named(self, names: Sequence[str] | None) -> list[int]:
        """Places of the metrics called so; all of them for None."""
        wanted = None if names is None else frozenset(names)
        return [place for place, one in enumerate(self.metrics) if wanted is None or one.name in wanted]


def decompress(layout: Layout, data: Sequence[bytes]) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """Decompressed blocks as rows of one array, and which of them were sound.

    Returns: (uint8 of shape (blocks, total_bytes), bool of length blocks); a damaged block's row is zero.
    """
    stack = np.zeros((len(data), layout.total_bytes), np.uint8)
    sound = np.ones(len(data), np.bool_)
    decompressor = zstandard.ZstdDecompressor()
    for row, one in enumerate(data):
        try:
            if zstandard.frame_content_size(one) != layout.total_bytes:
                raise BlockError("another length than the header says")
            # One byte more than needed: zstandard reads 0 as "no bound".
            raw = decompressor.decompress(one, max_output_size=layout.total_bytes + 1)
            stack[row] = np.frombuffer(raw, np.uint8)
        except (zstandard.ZstdError, ValueError):
            sound[row] = False
    return stack, sound


def values(
    layout: Layout, stack: NDArray[np.uint8], sound: NDArray[np.bool_], places: Sequence[int], series: Any
) -> dict[str, NDArray[np.float64]]:
    """Values of some metrics in the declared unit.

    Args:
        stack, sound: what ``decompress`` gave.
        places: of the metrics in the header.
        series: which series of each metric: a slice, or one number, which is clipped to the metric's last
            series (a host's single number stands for each of its GPUs).

    Returns: name -> float64 of shape (blocks, series, samples), NaN where no sample was taken.
    """
    found: dict[str, NDArray[np.float64]] = {}
    wanted = frozenset(places)
    for run in layout.runs:
        chosen = [place for place in run.places if place in wanted]
        if not chosen:
            continue
        multiples = _multiples(run, stack, [place - run.places[0] for place in chosen], series)
        missing = (multiples == blocks.MISSING) | ~sound[:, None, None, None]
        resolution = np.array([layout.metrics[place].resolution for place in chosen])
        numbers = np.where(missing, np.nan, multiples * resolution[:, None, None])
        found.update((layout.metrics[place].name, numbers[:, row]) for row, place in enumerate(chosen))
    return found


def _multiples(run: _Run, stack: NDArray[np.uint8], rows: list[int], series: Any) -> NDArray[np.int64]:
    """int64 of shape (blocks, metrics, series, samples)."""
    end = run.start + run.metric_bytes * len(run.places)
    shuffled = stack[:, run.start : end].reshape(-1, len(run.places), WORD, run.series, run.samples)
    if isinstance(series, int):
        first = min(series, run.series - 1)
        series = slice(first, first + 1)
    chosen = shuffled[:, rows][:, :, :, series, :]
    words = np.ascontiguousarray(np.moveaxis(chosen, 2, -1)).view("<u8")[..., 0]
    deltas = (words >> np.uint64(1)) ^ (np.uint64(0) - (words & np.uint64(1)))
    summed: NDArray[np.int64] = np.cumsum(deltas.view(np.int64), axis=-1, dtype=np.int64)
    return summed


def shuffled_bytes(multiples: NDArray[np.int64]) -> NDArray[np.uint8]:
    """The bytes before compression of many blocks whose metrics all have the same series and samples.

    Args:
        multiples: int64 of shape (blocks, metrics, series, samples).

    Returns: uint8 of shape (blocks, bytes), each row what ``collectors.wire.blocks.encode`` compresses.
    """
    deltas = np.diff(multiples, axis=-1, prepend=np.int64(0))
    zigzag = ((deltas << 1) ^ (deltas >> 63)).astype("<i8", copy=False)
    count, metrics = multiples.shape[:2]
    planes = zigzag.view(np.uint8).reshape(count, metrics, -1, WORD).transpose(0, 1, 3, 2)
    return np.ascontiguousarray(planes).reshape(count, -1)


def compress(stack: NDArray[np.uint8], level: int = blocks.LEVEL) -> list[bytes]:
    """One frame with checksum per row."""
    compressor = zstandard.ZstdCompressor(level=level, write_checksum=True)
    return [compressor.compress(row.tobytes()) for row in stack]


def join_minutes(
    minutes_ns: Sequence[int], found: Mapping[str, NDArray[np.float64]]
) -> tuple[list[int], dict[str, NDArray[np.float64]]]:
    """Two blocks of one minute (an agent that restarted) become one: a later one fills what the first lacks.

    Args:
        minutes_ns: start of each block's minute, rising, with repeats.
        found: arrays whose first axis is the block.
    """
    kept = [0, *(i for i in range(1, len(minutes_ns)) if minutes_ns[i] != minutes_ns[i - 1])]
    if len(kept) == len(minutes_ns):
        return list(minutes_ns), dict(found)
    joined = {name: array[kept].copy() for name, array in found.items()}
    for row, start in enumerate(kept):
        end = kept[row + 1] if row + 1 < len(kept) else len(minutes_ns)
        for later in range(start + 1, end):
            for name, array in found.items():
                np.copyto(joined[name][row], array[later], where=np.isnan(joined[name][row]))
    return [minutes_ns[i] for i in kept], joined
