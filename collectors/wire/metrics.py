"""The catalogue of metrics a node sends: name, unit, resolution, kind, and what a value belongs to.

Sources use these names, so that a page, a query and a rule mean one thing. ``resolution`` is what a block
keeps of a value: rates in MiB/s, power in 0.1 W, counters as read. Counters only grow until their device is
reset; flags are bit masks, so neither has a mean that says anything. Standard library only.
Source of units and ranges: DCGM field list, NVML API reference, ethtool and RDMA counters of mlx5.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntFlag
from typing import Final, Literal

Kind = Literal["gauge", "counter", "flags"]
Part = Literal["gpu", "nic", "host"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric; ``highest`` is the largest value that makes sense, None where nothing bounds it."""

    name: str
    unit: str
    resolution: float
    kind: Kind
    part: Part
    highest: float | None
    text: str


class Throttle(IntFlag):
    """Bits of ``gpu_throttle_reasons``. Source: NVML, nvmlClocksEventReasons."""

    IDLE = 0x1
    APPLICATION_CLOCKS = 0x2
    SW_POWER_CAP = 0x4
    HW_SLOWDOWN = 0x8
    SYNC_BOOST = 0x10
    SW_THERMAL = 0x20
    HW_THERMAL = 0x40
    HW_POWER_BRAKE = 0x80
    DISPLAY_CLOCKS = 0x100


GPU_METRICS: Final = (
    Metric("gpu_power_w", "w", 0.1, "gauge", "gpu", 1_400.0, "power drawn by the board"),
    Metric("gpu_temperature_c", "c", 1.0, "gauge", "gpu", 110.0, "temperature of the die"),
    Metric("gpu_memory_temperature_c", "c", 1.0, "gauge", "gpu", 120.0, "temperature of the HBM"),
    Metric("gpu_sm_clock_mhz", "mhz", 15.0, "gauge", "gpu", 3_000.0, "clock of the SMs"),
    Metric("gpu_util_ratio", "ratio", 0.01, "gauge", "gpu", 1.0, "time with a kernel resident"),
    Metric("gpu_sm_activity_ratio", "ratio", 0.001, "gauge", "gpu", 1.0, "SMs with a warp resident"),
    Metric("gpu_tensor_active_ratio", "ratio", 0.001, "gauge", "gpu", 1.0, "cycles the tensor cores worked"),
    Metric("gpu_memory_used_bytes", "bytes", 1_048_576.0, "gauge", "gpu", None, "HBM in use"),
    Metric("gpu_nvlink_tx_mib_per_s", "mib_per_s", 1.0, "gauge", "gpu", 1_000_000.0, "sent over NVLink"),
    Metric("gpu_nvlink_rx_mib_per_s", "mib_per_s", 1.0, "gauge", "gpu", 1_000_000.0, "received over NVLink"),
    Metric("gpu_pcie_tx_mib_per_s", "mib_per_s", 1.0, "gauge", "gpu", 130_000.0, "sent over PCIe"),
    Metric("gpu_pcie_rx_mib_per_s", "mib_per_s", 1.0, "gauge", "gpu", 130_000.0, "received over PCIe"),
    Metric("gpu_ecc_correctable_total", "errors", 1.0, "counter", "gpu", None, "memory errors corrected"),
    Metric("gpu_ecc_uncorrectable_total", "errors", 1.0, "counter", "gpu", None, "memory errors left"),
    Metric("gpu_throttle_reasons", "bits", 1.0, "flags", "gpu", 511.0, "why the clock is held down"),
    Metric("nic_tx_mib_per_s", "mib_per_s", 1.0, "gauge", "nic", 200_000.0, "sent by the GPU's port"),
    Metric("nic_rx_mib_per_s", "mib_per_s", 1.0, "gauge", "nic", 200_000.0, "received by the GPU's port"),
    Metric("nic_out_of_sequence_total", "packets", 1.0, "counter", "nic", None, "packets after a gap"),
    Metric("nic_pfc_pause_us_total", "us", 1.0, "counter", "nic", None, "time the port was paused"),
    Metric("nic_fec_corrected_total", "symbols", 1.0, "counter", "nic", None, "symbols that FEC repaired"),
)  # fmt: skip
"""One value per GPU; ``nic`` ones are those of the RDMA port that serves the GPU."""

HOST_METRICS: Final = (
    Metric("host_cpu_ratio", "ratio", 0.0001, "gauge", "host", 1.0, "share of CPU time not idle"),
    Metric("host_cpu_iowait_ratio", "ratio", 0.0001, "gauge", "host", 1.0, "share of time waiting for I/O"),
    Metric("host_memory_used_ratio", "ratio", 0.0001, "gauge", "host", 1.0, "share of memory in use"),
    Metric("host_processes_blocked_count", "count", 1.0, "gauge", "host", None, "processes in state D"),
    Metric("storage_read_mib_per_s", "mib_per_s", 1.0, "gauge", "host", None, "read from mounts"),
    Metric("storage_write_mib_per_s", "mib_per_s", 1.0, "gauge", "host", None, "written to mounts"),
    Metric("storage_requests_waiting_count", "count", 1.0, "gauge", "host", None, "requests not answered"),
    Metric("host_power_w", "w", 1.0, "gauge", "host", None, "power into the chassis"),
    Metric("host_power_supplies_ok_count", "count", 1.0, "gauge", "host", None, "supplies that deliver"),
)  # fmt: skip
"""One value per node."""

METRICS: Final = {metric.name: metric for metric in (*GPU_METRICS, *HOST_METRICS)}
