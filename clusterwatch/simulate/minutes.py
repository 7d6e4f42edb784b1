"""Minutes of a whole simulated cluster, second by second, and the blocks they become.

In: ``telemetry.Values`` of each second. Out: ``records.Block`` with the bytes that ``collectors.minute``
would make of the same values, by numpy. Two minutes are kept: the running one and
the one whose blocks are leaving.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import zstandard
from numpy.typing import NDArray

from clusterwatch.simulate.telemetry import COUNTERS, MISSING, Telemetry, Values
from collectors.wire import blocks
from collectors.wire.metrics import GPU_METRICS, HOST_METRICS
from collectors.wire.records import Block, BlockMetric

SECONDS: Final = 60
MINUTE_NS: Final = 60_000_000_000

Ints = NDArray[np.int64]


class Minutes:
    """Values of two minutes of all nodes, as multiples of the resolutions."""

    def __init__(self, node_count: int, gpus_per_node: int, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        gpu = (2, SECONDS, node_count, len(GPU_METRICS), gpus_per_node)
        self._gpu = np.full(gpu, MISSING, np.int32)
        self._host = np.full((2, SECONDS, node_count, len(HOST_METRICS)), MISSING, np.int32)
        self._origin = np.zeros((2, node_count, len(COUNTERS), gpus_per_node), np.int64)
        self._minute = np.full((2, node_count), -1, np.int64)
        self._headers = [
            BlockMetric(m.name, m.unit, m.resolution, series, SECONDS)
            for metrics, series in ((GPU_METRICS, gpus_per_node), (HOST_METRICS, 1))
            for m in metrics
        ]
        self._resolutions = np.repeat(
            [h.resolution for h in self._headers], [h.series for h in self._headers]
        )
        self._compressor = zstandard.ZstdCompressor(level=3, write_checksum=True)

    def begin(self, nodes: slice, t_ns: int) -> None:
        """To be called before the values of a second are made: a new minute begins empty."""
        minute = t_ns // MINUTE_NS
        half = minute % 2
        if (self._minute[half, nodes] == minute).all():
            return
        self._gpu[half, :, nodes] = MISSING
        self._host[half, :, nodes] = MISSING
        self._minute[half, nodes] = minute
        self._origin[half, nodes] = self._telemetry.begin_minute(nodes)

    def add(self, nodes: slice, t_ns: int, values: Values) -> None:
        """Keeps a second."""
        minute, second = divmod(t_ns // 1_000_000_000, SECONDS)
        self._gpu[minute % 2, second, nodes] = values.gpu
        self._host[minute % 2, second, nodes] = values.host

    def forget(self, node: int, t_ns: int) -> None:
        """A second of a node is lost: its agent was not there to keep it."""
        minute, second = divmod(t_ns // 1_000_000_000, SECONDS)
        self._gpu[minute % 2, second, node] = MISSING
        self._host[minute % 2, second, node] = MISSING

    def block(self, node: int, minute_ns: int, told_ns: int | None = None) -> Block | None:
        """The finished minute of a node; None when nothing was sampled in it.

        Args:
            told_ns: what the node's own clock calls that minute.
        """
        half = minute_ns // MINUTE_NS % 2
        if self._minute[half, node] != minute_ns // MINUTE_NS:
            return None
        gpu, host = self._of_node(half, node)
        series = np.concatenate([gpu.reshape(-1, SECONDS), host])
        if (series == blocks.MISSING).all():
            return None
        data = self._compressor.compress(shuffled(gpu) + shuffled(host[:, None]))
        return Block(
            minute_ns=minute_ns if told_ns is None else told_ns,
            codec=blocks.CODEC,
            metrics=self._headers,
            data=data,
            rollup=rollup(series, self._resolutions),
        )

    def _of_node(self, half: int, node: int) -> tuple[Ints, Ints]:
        """(metrics, GPUs, seconds) and (metrics, seconds) as the block has them."""
        kept = self._gpu[half, :, node]
        gpu = kept.transpose(1, 2, 0).astype(np.int64)
        gpu[list(COUNTERS)] += self._origin[half, node][:, :, None]
        gpu[kept.transpose(1, 2, 0) == MISSING] = blocks.MISSING
        host = self._host[half, :, node].T.astype(np.int64)
        host[host == MISSING] = blocks.MISSING
        return gpu, host


def shuffled(values: Ints) -> bytes:
    """What ``collectors.wire.blocks.encode`` compresses, of an array of shape (metrics, series, samples)."""
    deltas = values.copy()
    deltas[:, :, 1:] -= values[:, :, :-1]
    zigzag = (deltas << 1) ^ (deltas >> 63)
    return zigzag.astype("<i8").view(np.uint8).reshape(len(values), -1, 8).transpose(0, 2, 1).tobytes()


def rollup(series: Ints, resolutions: NDArray[np.float64]) -> bytes:
    """The four planes of ``records.Block.rollup`` of series of shape (series, samples)."""
    there = series != blocks.MISSING
    count = there.sum(axis=1)
    values = np.where(there, series, 0)
    low = np.where(there, series, np.iinfo(np.int64).max).min(axis=1)
    high = np.where(there, series, np.iinfo(np.int64).min).max(axis=1)
    newest = series.shape[1] - 1 - there[:, ::-1].argmax(axis=1)
    last = values[np.arange(len(series)), newest]
    mean = values.sum(axis=1) / np.maximum(count, 1)
    planes = np.stack([low, mean, high, last]) * resolutions
    planes[:, count == 0] = np.nan
    return planes.astype("<f4").tobytes()
