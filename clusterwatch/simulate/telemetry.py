"""GPU telemetry of a whole simulated cluster: values per second, and the minute kept for the blocks.

In: which GPUs work. Out: per node the newest values, and the finished minute as a ``Block`` (the same bytes
as ``collectors.wire.blocks`` gives, made by numpy: a thousand nodes finish their minute in one process).
"""

from __future__ import annotations

from typing import Final

import numpy as np
import zstandard
from numpy.typing import NDArray

from clusterwatch.simulate.topology import GPUS_PER_NODE
from collectors.minute import MetricSpec
from collectors.wire import blocks
from collectors.wire.records import Block, BlockMetric

SECONDS: Final = 60
MINUTE_NS: Final = 60_000_000_000
METRICS: Final = (
    MetricSpec("gpu_power_w", "w", 0.1),
    MetricSpec("gpu_temperature_c", "c", 1.0),
    MetricSpec("gpu_memory_temperature_c", "c", 1.0),
    MetricSpec("gpu_sm_clock_mhz", "mhz", 15.0),
    MetricSpec("gpu_util_ratio", "ratio", 0.01),
    MetricSpec("gpu_sm_activity_ratio", "ratio", 0.001),
    MetricSpec("gpu_tensor_active_ratio", "ratio", 0.001),
    MetricSpec("gpu_memory_used_bytes", "bytes", 1048576.0),
    MetricSpec("gpu_nvlink_throughput_bytes_per_s", "bytes_per_s", 1e6),
)
_IDLE: Final = np.array([71.0, 29.0, 38.0, 345.0, 0.0, 0.0, 0.0, 4.9e8, 0.0])
_BUSY: Final = np.array([612.0, 58.0, 71.0, 1755.0, 0.99, 0.71, 0.46, 7.3e10, 2.6e11])
_SPREAD_OF_GPUS: Final = np.array([14.0, 2.6, 3.0, 9.0, 0.0, 0.008, 0.006, 3e8, 3e9])
"""Standard deviation between GPUs: silicon and place in the chassis differ for ever."""
_SPREAD_OF_SECONDS: Final = np.array([11.0, 0.5, 0.5, 8.0, 0.004, 0.012, 0.011, 0.0, 8e9])
"""Standard deviation of one GPU from second to second while it works."""
_CEILING: Final = np.array([700.0, 95.0, 105.0, 1980.0, 1.0, 1.0, 1.0, 8.5e10, 9e11])
_RESOLUTION: Final = np.array([metric.resolution for metric in METRICS])
_HEADERS: Final = [
    BlockMetric(metric.name, metric.unit, metric.resolution, GPUS_PER_NODE, SECONDS) for metric in METRICS
]

Int = NDArray[np.int64]


class Telemetry:
    """All GPUs of a cluster. Values are kept as multiples of each metric's resolution."""

    def __init__(self, node_count: int, busy: NDArray[np.bool_], seed: int) -> None:
        """``busy``: per node, whether a job works there."""
        self._random = np.random.default_rng([seed, 1])
        own = self._random.normal(size=(node_count, len(METRICS), GPUS_PER_NODE))
        works = busy[:, None, None]
        level = np.where(works, _BUSY[:, None], _IDLE[:, None])
        self._level = level + own * np.where(works, _SPREAD_OF_GPUS[:, None], 0.02 * level)
        self._swing = np.where(works, _SPREAD_OF_SECONDS[:, None], 0.0)
        shape = (node_count, len(METRICS), GPUS_PER_NODE, SECONDS)
        self._minutes = {parity: np.full(shape, blocks.MISSING, np.int64) for parity in (0, 1)}
        self._minute_of = {parity: np.zeros(node_count, np.int64) for parity in (0, 1)}

    def sample(self, nodes: slice, now_ns: int) -> dict[str, list[list[float]]]:
        """One second of some nodes, also written into their open minute.

        Returns:
            metric -> per node of ``nodes`` the values of its GPUs.
        """
        level = self._level[nodes]
        noise = self._random.normal(size=level.shape)
        values = np.clip(level + noise * self._swing[nodes], 0.0, _CEILING[:, None])
        multiples = np.rint(values / _RESOLUTION[:, None]).astype(np.int64)
        minute, second = divmod(now_ns // 1_000_000_000, SECONDS)
        kept, minute_of = self._minutes[minute % 2], self._minute_of[minute % 2]
        for node in np.flatnonzero(minute_of[nodes] != minute) + nodes.start:
            kept[node], minute_of[node] = blocks.MISSING, minute
        kept[nodes, :, :, second] = multiples
        rounded = np.round(multiples * _RESOLUTION[:, None], 6)
        return {metric.name: rounded[:, place].tolist() for place, metric in enumerate(METRICS)}

    def block(self, node: int, minute_ns: int) -> Block | None:
        """The finished minute of a node; None when nothing was sampled in it."""
        minute = minute_ns // MINUTE_NS
        if self._minute_of[minute % 2][node] != minute:
            return None
        values = self._minutes[minute % 2][node]
        return Block(
            minute_ns=minute_ns,
            codec=blocks.CODEC,
            metrics=_HEADERS,
            data=encode(values),
            rollup=rollups(values),
        )


def encode(values: Int) -> bytes:
    """``collectors.wire.blocks.encode`` of an array of shape (metrics, series, samples)."""
    deltas = np.diff(values, axis=2, prepend=0)
    zigzag = (deltas << 1) ^ (deltas >> 63)
    shuffled = zigzag.astype("<i8").view(np.uint8).reshape(len(values), -1, 8).transpose(0, 2, 1)
    return zstandard.ZstdCompressor(level=3, write_checksum=True).compress(shuffled.tobytes())


def rollups(values: Int) -> bytes:
    """``collectors.wire.blocks.pack_rollups`` of an array of shape (metrics, series, samples)."""
    there = values != blocks.MISSING
    count = there.sum(axis=2)
    newest = values.shape[2] - 1 - there[:, :, ::-1].argmax(axis=2)
    parts = (
        np.where(there, values, np.iinfo(np.int64).max).min(axis=2),
        np.where(there, values, 0).sum(axis=2) / np.maximum(count, 1),
        values.max(axis=2),
        np.take_along_axis(values, newest[:, :, None], axis=2)[:, :, 0],
    )
    planes = np.stack(parts).astype(np.float64) * _RESOLUTION[:, None]
    return np.where(count > 0, planes, np.nan).astype("<f4").tobytes()
