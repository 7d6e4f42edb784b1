"""Values of GPUs as series of the node: one place per GPU, in the order that the hello tells.

In: samples of ``gpu/<uuid>`` from any source. Out: lists of one value per GPU under the names of the wire's
catalogue, for hot frames and blocks. A place belongs to its UUID while the agent runs: a GPU that is lost
leaves a hole, and the others keep theirs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from collectors.minute import MetricSpec
from collectors.sources.base import Reading, Sample
from collectors.sources.gpu_identity import expected_uuids, gpus
from collectors.sources.tree import Tree
from collectors.wire.metrics import METRICS
from collectors.wire.records import GpuIdentity

_MIB: Final = 1_048_576
SERIES: Final[dict[str, tuple[str, float]]] = {
    "power_w": ("gpu_power_w", 1),
    "temperature_c": ("gpu_temperature_c", 1),
    "memory_temperature_c": ("gpu_memory_temperature_c", 1),
    "sm_clock_mhz": ("gpu_sm_clock_mhz", 1),
    "util_ratio": ("gpu_util_ratio", 1),
    "sm_active_ratio": ("gpu_sm_activity_ratio", 1),
    "tensor_active_ratio": ("gpu_tensor_active_ratio", 1),
    "memory_used_bytes": ("gpu_memory_used_bytes", 1),
    "nvlink_tx_bytes_per_s": ("gpu_nvlink_tx_mib_per_s", _MIB),
    "nvlink_rx_bytes_per_s": ("gpu_nvlink_rx_mib_per_s", _MIB),
    "pcie_tx_bytes_per_s": ("gpu_pcie_tx_mib_per_s", _MIB),
    "pcie_rx_bytes_per_s": ("gpu_pcie_rx_mib_per_s", _MIB),
    "ecc_sbe_volatile_total": ("gpu_ecc_correctable_total", 1),
    "ecc_dbe_volatile_total": ("gpu_ecc_uncorrectable_total", 1),
    "throttle_reasons_mask": ("gpu_throttle_reasons", 1),
}
"""Metric of a source -> (series of the catalogue, divisor to its unit)."""
SPECS: Final = tuple(
    MetricSpec(name, METRICS[name].unit, METRICS[name].resolution) for name, _ in SERIES.values()
)


@dataclass(frozen=True, slots=True)
class GpuSeries:
    """The GPUs of the node, each with its place."""

    gpus: tuple[GpuIdentity, ...] = ()

    @classmethod
    def of(cls, tree: Tree) -> GpuSeries:
        """By the inventory's order, else by the driver's; empty where neither tells. May ask the driver."""
        places = {gpu.uuid: gpu for gpu in gpus(tree)}
        uuids = expected_uuids(tree) or tuple(places)
        bdfs = {uuid: place.bdf for uuid, place in places.items()}
        return cls(tuple(GpuIdentity(index=n, uuid=uuid, pci=bdfs.get(uuid)) for n, uuid in enumerate(uuids)))

    def add(self, values: dict[str, list[float | None]], reading: Reading) -> None:
        """Puts a reading's GPU values into ``values``; what is not known hides nothing that another told."""
        place = {f"gpu/{gpu.uuid}": gpu.index for gpu in self.gpus}
        for sample in reading.samples:
            if sample.metric in SERIES and sample.entity in place and not sample.labels:
                self._put(values, sample, place[sample.entity])

    def _put(self, values: dict[str, list[float | None]], sample: Sample, at: int) -> None:
        name, divisor = SERIES[sample.metric]
        value, highest = sample.value, METRICS[name].highest
        if value is None:
            return
        value /= divisor
        if highest is None or value <= highest:
            values.setdefault(name, [None] * len(self.gpus))[at] = value
