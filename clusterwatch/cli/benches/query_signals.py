"""Numbers for ``bench query``: telemetry of any size that can be made again, minute by minute. Pure.

What a GPU shows differs from GPU to GPU for ever and from second to second; noise decides what a byte of
storage costs, so it is that of sensors: a few steps of the declared resolution.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from collectors.wire.metrics import GPU_METRICS

GPUS: Final = 8
SAMPLES: Final = 60
CHUNK_NODES: Final = 256
RACK_NODES: Final = 2
"""A published rack of the cluster: two chassis."""
_SHOWN: Final[dict[str, tuple[float, float, float]]] = {
    "gpu_power_w": (612, 14, 11),
    "gpu_temperature_c": (58, 2.6, 0.5),
    "gpu_memory_temperature_c": (71, 3, 0.5),
    "gpu_sm_clock_mhz": (1_755, 9, 8),
    "gpu_util_ratio": (0.99, 0, 0.004),
    "gpu_sm_activity_ratio": (0.71, 0.008, 0.012),
    "gpu_tensor_active_ratio": (0.46, 0.006, 0.011),
    "gpu_memory_used_bytes": (7.3e10, 3e8, 0),
    "gpu_nvlink_tx_mib_per_s": (248_000, 2_800, 7_600),
    "gpu_nvlink_rx_mib_per_s": (248_000, 2_800, 7_600),
    "gpu_pcie_tx_mib_per_s": (2_900, 70, 160),
    "gpu_pcie_rx_mib_per_s": (2_900, 70, 160),
    "nic_tx_mib_per_s": (21_000, 500, 1_300),
    "nic_rx_mib_per_s": (21_000, 500, 1_300),
}
"""Gauges: level, standard deviation between GPUs, and from second to second, in the metric's unit."""
_COUNTED: Final[dict[str, int]] = {
    "gpu_ecc_correctable_total": 40,
    "nic_out_of_sequence_total": 25,
    "nic_pfc_pause_us_total": 12,
    "nic_fec_corrected_total": 3,
}
"""Counters: one step every so many GPUs and seconds; the others stand still."""

Ints = NDArray[np.int64]
Floats32 = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Chunk:
    """Neighbouring nodes whose numbers are made together."""

    number: int
    nodes: slice

    @property
    def count(self) -> int:
        return int(self.nodes.stop - self.nodes.start)

    @property
    def slots(self) -> slice:
        return slice(self.nodes.start * GPUS, self.nodes.stop * GPUS)


class Signals:
    """All GPUs of a cluster, in multiples of each metric's resolution."""

    def __init__(self, node_count: int, origin_minute: int, seed: int = 1) -> None:
        """``origin_minute``: when the counters stood at 0, minutes since 1970."""
        self.node_count = node_count
        self._origin = origin_minute
        self._seed = seed
        self._resolution = np.array([metric.resolution for metric in GPU_METRICS])
        shown = np.array([_SHOWN.get(metric.name, (0.0, 0.0, 0.0)) for metric in GPU_METRICS])
        own = np.random.default_rng([seed, 0]).standard_normal((len(GPU_METRICS), node_count * GPUS))
        unit = self._resolution[:, None]
        self._level = ((shown[:, :1] + own * shown[:, 1:2]) / unit).astype(np.float32)
        self._swing = (shown[:, 2:] / unit).astype(np.float32)
        every = np.array([_COUNTED.get(metric.name, 0) for metric in GPU_METRICS])
        self._counters = [(place, step) for place, step in enumerate(every.tolist()) if step]

    @property
    def slot_count(self) -> int:
        return self.node_count * GPUS

    def chunks(self) -> Iterator[Chunk]:
        """All nodes; the first chunk is one rack."""
        edges = [0, *range(RACK_NODES, self.node_count, CHUNK_NODES), self.node_count]
        for number, (start, stop) in enumerate(zip(edges[:-1], edges[1:], strict=True)):
            yield Chunk(number, slice(start, stop))

    def minute(self, minute: int, chunk: Chunk) -> Ints:
        """Every sample of a minute: int64 of shape (nodes, metrics, GPUs, seconds)."""
        random = np.random.default_rng([self._seed, 1, minute, chunk.number])
        shape = (len(GPU_METRICS), chunk.count * GPUS, SAMPLES)
        noise = random.standard_normal(shape, np.float32)
        noise *= self._swing[:, :, None]
        noise += self._level[:, chunk.slots, None]
        np.maximum(np.rint(noise, out=noise), 0, out=noise)
        multiples = noise.astype(np.int64)
        seconds = (minute - self._origin) * SAMPLES + np.arange(SAMPLES)
        slots = np.arange(chunk.slots.start, chunk.slots.stop)
        for place, every in self._counters:
            multiples[place] = (seconds[None, :] + slots[:, None]) // (every * (1 + slots[:, None] % 7))
        by_node = multiples.reshape(len(GPU_METRICS), chunk.count, GPUS, SAMPLES)
        return np.ascontiguousarray(by_node.transpose(1, 0, 2, 3))

    def values(self, multiples: Ints) -> NDArray[np.float64]:
        """In the metrics' units; shape as given, metrics on the second axis."""
        found: NDArray[np.float64] = multiples * self._resolution[None, :, None, None]
        return found

    def rollup(self, multiples: Ints) -> Floats32:
        """(nodes, 4 planes, metrics, GPUs): low, mean, high and last of each series."""
        values = self.values(multiples)
        planes = [values.min(axis=3), values.mean(axis=3), values.max(axis=3), values[..., -1]]
        return np.stack(planes, axis=1).astype(np.float32)

    def minute_rollup(self, minute: int) -> Floats32:
        """(4 planes, metrics, slots) of a minute whose seconds are not made: the same spread, new noise."""
        random = np.random.default_rng([self._seed, 2, minute])
        noise = random.standard_normal((3, len(GPU_METRICS), self.slot_count), np.float32) * self._swing
        planes = np.empty((4, len(GPU_METRICS), self.slot_count), np.float32)
        planes[1] = self._level + noise[0] / np.float32(SAMPLES**0.5)
        planes[0] = np.minimum(np.rint(planes[1] - 2.3 * self._swing - np.abs(noise[1]) / 3), planes[1])
        planes[2] = np.maximum(np.rint(planes[1] + 2.3 * self._swing + np.abs(noise[2]) / 3), planes[1])
        planes[3] = np.clip(np.rint(self._level + noise[1]), planes[0], planes[2])
        for place, every in self._counters:
            slots = np.arange(self.slot_count)
            last = ((minute - self._origin) * SAMPLES + SAMPLES - 1 + slots) // (every * (1 + slots % 7))
            planes[:, place] = last
        planes *= self._resolution[None, :, None].astype(np.float32)
        return planes
