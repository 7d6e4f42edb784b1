"""Telemetry of a whole simulated cluster: what every GPU, port and host shows in one second.

In: what drives them (``Drivers``: how busy, how much traffic) and what faults change (``Shift``). Out: values
as multiples of each metric's resolution. A second's values follow from the seed and the second alone, except
for counters, which grow. All of it is numpy over the nodes of a slice; nothing is per node or per GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from collectors.wire.metrics import GPU_METRICS, HOST_METRICS, Throttle

Reals = NDArray[np.float32]
Ints = NDArray[np.int64]

MISSING: Final = -(2**31)
"""In ``Values``: no value this second."""
GPU_PLACE: Final = {metric.name: place for place, metric in enumerate(GPU_METRICS)}
HOST_PLACE: Final = {metric.name: place for place, metric in enumerate(HOST_METRICS)}
COUNTERS: Final = tuple(place for place, metric in enumerate(GPU_METRICS) if metric.kind == "counter")
_NOISES: Final = 1 << 21

# name -> idle level, by activity, by traffic, by a resident kernel, deviation between GPUs, between seconds
_LEVELS: Final = {
    "gpu_power_w": (71.0, 500.0, 0.0, 45.0, 13.0, 8.0),
    "gpu_temperature_c": (29.0, 2.0, 0.0, 27.0, 2.4, 0.4),
    "gpu_memory_temperature_c": (38.0, 2.0, 0.0, 31.0, 2.8, 0.4),
    "gpu_sm_clock_mhz": (345.0, 0.0, 0.0, 1_410.0, 18.0, 6.0),
    "gpu_util_ratio": (0.0, 0.0, 0.0, 0.995, 0.0, 0.004),
    "gpu_sm_activity_ratio": (0.0, 0.71, 0.0, 0.0, 0.007, 0.011),
    "gpu_tensor_active_ratio": (0.0, 0.46, 0.0, 0.0, 0.005, 0.010),
    "gpu_memory_used_bytes": (5.2e8, 0.0, 0.0, 7.2e10, 2.5e8, 0.0),
    "gpu_nvlink_tx_mib_per_s": (0.0, 118_000.0, 0.0, 0.0, 900.0, 2_400.0),
    "gpu_nvlink_rx_mib_per_s": (0.0, 118_000.0, 0.0, 0.0, 900.0, 2_400.0),
    "gpu_pcie_tx_mib_per_s": (1.0, 240.0, 800.0, 0.0, 10.0, 25.0),
    "gpu_pcie_rx_mib_per_s": (1.0, 310.0, 800.0, 0.0, 10.0, 25.0),
    "nic_tx_mib_per_s": (0.0, 0.0, 30_500.0, 0.0, 160.0, 700.0),
    "nic_rx_mib_per_s": (0.0, 0.0, 30_500.0, 0.0, 160.0, 700.0),
}
_CLOCK_BY_SILICON: Final = 0.011
"""Clock, relative, for one standard deviation of silicon: GPUs differ for ever by 1-2 %."""
_POWER_CAP_W: Final = 640.0
_FEC_PER_S: Final = 0.4
_PAUSE_US_PER_S: Final = 3.0
_OUT_OF_SEQUENCE_PER_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class Drivers:
    """What the GPUs of K nodes do, arrays of shape (K, GPUs): 0 idle .. 1 at full work."""

    activity: Reals
    traffic: Reals
    resident: Reals
    """1 where a kernel is resident, waiting ones too"""
    reading: Reals
    """K: data read from storage"""
    writing: Reals
    """K: a checkpoint is being written"""


@dataclass(frozen=True, slots=True)
class Shift:
    """What a fault does to one metric of some places from ``start_ns`` to ``end_ns``.

    ``set``, ``add``, ``scale`` work on values, ``grow`` adds so much a second to a counter, ``bits`` sets
    bits of a mask, ``blank`` takes the value away.
    """

    nodes: tuple[int, ...]
    metric: str
    how: Literal["set", "add", "scale", "grow", "bits", "blank"]
    value: float
    start_ns: int
    end_ns: int | None = None
    gpus: tuple[int, ...] | None = None
    """None: all of them; without meaning for a host's metric"""
    ramp_s: float = 0.0
    """``add`` comes in over so long, as heat does"""

    def is_on(self, t_ns: int) -> bool:
        return t_ns >= self.start_ns and (self.end_ns is None or t_ns < self.end_ns)


@dataclass(frozen=True, slots=True)
class Values:
    """One second of K nodes as multiples of the resolutions; counters count from ``Telemetry.origin``."""

    gpu: NDArray[np.int32]
    """(K, metrics, GPUs)"""
    host: NDArray[np.int32]
    """(K, metrics)"""


class Telemetry:
    """All GPUs, ports and hosts of a cluster."""

    def __init__(self, node_count: int, gpus_per_node: int, seed: int) -> None:
        random = np.random.default_rng([seed, 1])
        self._seed = seed
        self._noise = random.standard_normal(_NOISES, dtype=np.float32)
        shape = (node_count, len(GPU_METRICS), gpus_per_node)
        self.silicon = random.standard_normal((node_count, gpus_per_node), dtype=np.float32)
        levels = np.array([_LEVELS.get(metric.name, (0.0,) * 6) for metric in GPU_METRICS], np.float32)
        self._idle, self._by_activity, self._by_traffic, self._by_kernel = levels.T[:4, None, :, None]
        self._swing = levels.T[5, None, :, None]
        self._own = random.standard_normal(shape, dtype=np.float32) * levels.T[4, None, :, None]
        clock = GPU_PLACE["gpu_sm_clock_mhz"]
        self._own[:, clock] = self.silicon * np.float32(_CLOCK_BY_SILICON * 1_755.0)
        self._own[:, [place for place, level in enumerate(levels) if not level.any()]] = 0.0
        self.totals = np.zeros((node_count, len(COUNTERS), gpus_per_node), np.int64)
        """counters as read"""
        self._origin = np.zeros_like(self.totals)
        self._fec_rate = random.lognormal(np.log(_FEC_PER_S), 0.8, (node_count, gpus_per_node))
        self._per_unit = np.array([1.0 / m.resolution for m in GPU_METRICS], np.float32)[None, :, None]
        self._host_per_unit = np.array([1.0 / m.resolution for m in HOST_METRICS], np.float32)
        self._ceiling = _ceilings()

    def sample(self, nodes: slice, t_ns: int, drivers: Drivers, shifts: tuple[Shift, ...]) -> Values:
        """One second of some nodes; counters grow by it."""
        second = t_ns // 1_000_000_000
        active = [s for s in shifts if s.is_on(t_ns) and any(nodes.start <= n < nodes.stop for n in s.nodes)]
        gauges = self._gauges(nodes, second, drivers)
        host = self._host(nodes, second, drivers, gauges)
        for shift in active:
            _apply(shift, nodes, t_ns, gauges, host)
        self._count(nodes, second, drivers, [s for s in active if s.how == "grow"], t_ns)
        np.clip(gauges, 0.0, self._ceiling, out=gauges)
        multiples = np.rint(gauges * self._per_unit).astype(np.int32)
        multiples[:, COUNTERS, :] = self.totals[nodes] - self.origin(nodes)
        hosts = np.rint(np.maximum(host, 0.0) * self._host_per_unit).astype(np.int32)
        for shift in active:
            if shift.how == "blank":
                _blank(shift, nodes, multiples, hosts)
        return Values(multiples, hosts)

    def origin(self, nodes: slice) -> Ints:
        """Counters count from here in ``Values``: 32 bits hold what a counter gains, not all it may be."""
        return self._origin[nodes]

    def begin_minute(self, nodes: slice) -> Ints:
        """Counters count from what they are now; returns that."""
        self._origin[nodes] = self.totals[nodes]
        return self._origin[nodes].copy()

    # --- parts --------------------------------------------------------------------------------------------

    def _some_noise(self, count: int, *key: int) -> Reals:
        """``count`` normal numbers that follow from the key: part of a pool, to make them costs more."""
        mixed = self._seed
        for part in key:
            mixed = (mixed * 6_364_136_223_846_793_005 + part + 1_442_695_040_888_963_407) % 2**64
        start = (mixed >> 20) % max(1, _NOISES - count)
        return np.resize(self._noise[start : start + count], count)

    def _gauges(self, nodes: slice, second: int, drivers: Drivers) -> Reals:
        own = self._own[nodes]
        activity, kernel = drivers.activity[:, None, :], drivers.resident[:, None, :]
        noise = self._some_noise(own.size, second, nodes.start).reshape(own.shape)
        found: Reals = own + self._idle
        found += self._by_activity * activity
        found += self._by_traffic * drivers.traffic[:, None, :]
        found += self._by_kernel * kernel
        noise = noise * self._swing
        noise *= np.maximum(activity, 0.3 * kernel)
        found += noise
        power = found[:, GPU_PLACE["gpu_power_w"]]
        reasons = np.where(power > _POWER_CAP_W, float(Throttle.SW_POWER_CAP), 0.0)
        found[:, GPU_PLACE["gpu_throttle_reasons"]] = np.where(
            drivers.resident > 0.0, reasons, float(Throttle.IDLE)
        )
        for name in ("gpu_nvlink_tx_mib_per_s", "gpu_nvlink_rx_mib_per_s"):
            found[:, GPU_PLACE[name]] *= drivers.activity > 0.02
        for name in ("nic_tx_mib_per_s", "nic_rx_mib_per_s"):
            found[:, GPU_PLACE[name]] *= drivers.traffic > 0.02
        return found

    def _host(self, nodes: slice, second: int, drivers: Drivers, gauges: Reals) -> Reals:
        count = nodes.stop - nodes.start
        noise = self._some_noise(3 * count, second, nodes.start, 1).reshape(3, count)
        busy, resident = drivers.activity.mean(axis=1), drivers.resident.mean(axis=1)
        found = np.zeros((count, len(HOST_METRICS)), np.float32)
        columns = {
            "host_cpu_ratio": 0.02 + 0.16 * busy + 0.05 * drivers.reading + 0.004 * np.abs(noise[0]),
            "host_cpu_iowait_ratio": 0.001 + 0.02 * drivers.writing,
            "host_memory_used_ratio": 0.07 + 0.21 * resident,
            "storage_read_mib_per_s": drivers.reading * (140.0 + 12.0 * noise[1]),
            "storage_write_mib_per_s": drivers.writing * (2_300.0 + 90.0 * noise[2]),
            "storage_requests_waiting_count": np.rint(2.0 * drivers.reading + 24.0 * drivers.writing),
            "host_power_w": 1_850.0 + 1.06 * gauges[:, GPU_PLACE["gpu_power_w"]].sum(axis=1),
            "host_power_supplies_ok_count": np.full(count, 6.0),
        }
        for name, column in columns.items():
            found[:, HOST_PLACE[name]] = column
        return found

    def _count(self, nodes: slice, second: int, drivers: Drivers, grows: list[Shift], t_ns: int) -> None:
        shape = drivers.activity.shape
        random = np.random.default_rng([self._seed, 2, second, nodes.start])
        gained = np.zeros((shape[0], len(COUNTERS), shape[1]))
        lively = drivers.traffic > 0.02
        rates = {
            "nic_fec_corrected_total": self._fec_rate[nodes],
            "nic_pfc_pause_us_total": _PAUSE_US_PER_S * lively,
            "nic_out_of_sequence_total": _OUT_OF_SEQUENCE_PER_S * lively,
        }
        for name, rate in rates.items():
            gained[:, COUNTERS.index(GPU_PLACE[name])] = random.poisson(rate, shape)
        for shift in grows:
            rows = [node - nodes.start for node in shift.nodes if nodes.start <= node < nodes.stop]
            gpus = list(shift.gpus) if shift.gpus is not None else list(range(shape[1]))
            gained[np.ix_(rows, [COUNTERS.index(GPU_PLACE[shift.metric])], gpus)] += shift.value
        self.totals[nodes] += np.rint(gained).astype(np.int64)


def _ceilings() -> Reals:
    highest = [metric.highest if metric.highest is not None else np.inf for metric in GPU_METRICS]
    highest[GPU_PLACE["gpu_power_w"]] = 700.0
    highest[GPU_PLACE["gpu_sm_clock_mhz"]] = 1_980.0
    return np.array(highest, np.float32)[None, :, None]


def _apply(shift: Shift, nodes: slice, t_ns: int, gauges: Reals, host: Reals) -> None:
    """Changes the values in place; growth and blanks are for others."""
    if shift.how in ("grow", "blank"):
        return
    rows = [node - nodes.start for node in shift.nodes if nodes.start <= node < nodes.stop]
    value = shift.value
    if shift.ramp_s:
        value *= min(1.0, (t_ns - shift.start_ns) / 1e9 / shift.ramp_s)
    if shift.metric in HOST_PLACE:
        place = HOST_PLACE[shift.metric]
        host[rows, place] = _changed(shift.how, host[rows, place], value)
        return
    place = GPU_PLACE[shift.metric]
    gpus = list(shift.gpus) if shift.gpus is not None else list(range(gauges.shape[2]))
    where = np.ix_(rows, [place], gpus)
    gauges[where] = _changed(shift.how, gauges[where], value)


def _changed(how: str, values: Reals, value: float) -> Reals:
    if how == "scale":
        return values * np.float32(value)
    if how == "add":
        return values + np.float32(value)
    if how == "bits":
        kept = values.astype(np.int64) & ~int(Throttle.IDLE)
        return (kept | int(value)).astype(np.float32)
    return np.full_like(values, value)


def _blank(shift: Shift, nodes: slice, gpu: NDArray[np.int32], host: NDArray[np.int32]) -> None:
    rows = [node - nodes.start for node in shift.nodes if nodes.start <= node < nodes.stop]
    if shift.metric in HOST_PLACE:
        host[rows, HOST_PLACE[shift.metric]] = MISSING
        return
    gpus = list(shift.gpus) if shift.gpus is not None else list(range(gpu.shape[2]))
    gpu[np.ix_(rows, [GPU_PLACE[shift.metric]], gpus)] = MISSING
