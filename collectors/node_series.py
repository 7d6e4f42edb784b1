"""Values of a node as its series: those of the host, one place per GPU, and the port of each GPU beside it.

In: samples of ``host``, ``gpu/<uuid>``, ``port/<rdma device>/<n>`` and ``nic/<netdev>`` from any source. Out:
lists under the names of the wire's catalogue (the host's own under theirs), for frames and blocks. A place
belongs to its GPU's UUID while the agent runs: a GPU that is lost leaves a hole, and the others keep theirs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from collectors.minute import MetricSpec
from collectors.sources import gpu_amd
from collectors.sources.base import HOST, Reading, Sample
from collectors.sources.gpu_identity import expected_uuids, gpus
from collectors.sources.node_topology import nearest_rdma
from collectors.sources.pci_places import netdev_of_rdma
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
PORT_SERIES: Final[dict[str, tuple[str, float]]] = {
    "tx_bytes_per_s": ("nic_tx_mib_per_s", _MIB),
    "rx_bytes_per_s": ("nic_rx_mib_per_s", _MIB),
    "out_of_sequence_total": ("nic_out_of_sequence_total", 1),
}
"""The same of an RDMA port."""
PAUSE: Final = "nic_pfc_pause_us_total"
PAUSE_METRICS: Final = frozenset(f"rx_prio{number}_pause_duration_total" for number in range(8))
"""Of a network device; the series is their sum."""
_OF_PARTS: Final = frozenset({*SERIES, *PORT_SERIES, *PAUSE_METRICS})
"""Metrics of GPUs, ports and network devices that have a series."""
SPECS: Final = tuple(
    MetricSpec(name, METRICS[name].unit, METRICS[name].resolution)
    for name in (*(name for name, _ in (*SERIES.values(), *PORT_SERIES.values())), PAUSE)
)

Values = dict[str, list[float | None]]


@dataclass(frozen=True, slots=True)
class NodeSeries:
    """The GPUs of the node, each with its place, and the entities that belong to those places."""

    gpus: tuple[GpuIdentity, ...] = ()
    ports: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """entity of an RDMA port -> places of the GPUs nearest to it"""
    netdevs: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """entity of its network device -> the same"""
    _places: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_places", {f"gpu/{gpu.uuid}": gpu.index for gpu in self.gpus})

    @classmethod
    def of(cls, tree: Tree) -> NodeSeries:
        """By the inventory's order, else by the driver's; empty where neither tells. May ask the driver."""
        found = (*gpus(tree), *gpu_amd.listed(tree))
        bdfs = {gpu.uuid: gpu.bdf for gpu in found}
        uuids = (*expected_uuids(tree), *gpu_amd.expected(tree)) or tuple(bdfs)
        near = nearest_rdma(tree, found)
        devices = {place: near.get(uuid) for place, uuid in enumerate(uuids)}
        return cls(
            tuple(GpuIdentity(index=n, uuid=uuid, pci=bdfs.get(uuid)) for n, uuid in enumerate(uuids)),
            _by_entity((f"port/{device}/1", place) for place, device in devices.items() if device),
            _by_entity(
                (f"nic/{netdev}", place)
                for place, device in devices.items()
                if device and (netdev := netdev_of_rdma(tree, device))
            ),
        )

    def add(self, values: Values, reading: Reading) -> None:
        """Puts a reading into ``values``; what is not known hides nothing that another source told."""
        paused_us: dict[str, float] = {}
        of_parts = _OF_PARTS
        # Most of some thousands a second have no series.
        for sample in [one for one in reading.samples if one.metric in of_parts or one.entity == HOST]:
            metric, entity = sample.metric, sample.entity
            if sample.value is None or sample.labels:
                continue
            if entity == HOST:
                values[metric] = [sample.value]
            elif (place := self._places.get(entity)) is not None:
                self._put(values, SERIES.get(metric), sample, (place,))
            elif (places := self.ports.get(entity)) is not None:
                self._put(values, PORT_SERIES.get(metric), sample, places)
            elif entity in self.netdevs and metric in PAUSE_METRICS:
                paused_us[entity] = paused_us.get(entity, 0.0) + sample.value
        for entity, total_us in paused_us.items():
            for place in self.netdevs[entity]:
                self._row(values, PAUSE)[place] = total_us

    def _put(
        self, values: Values, series: tuple[str, float] | None, sample: Sample, places: tuple[int, ...]
    ) -> None:
        if series is None or sample.value is None:
            return
        name, divisor = series
        value, highest = sample.value / divisor, METRICS[name].highest
        if highest is None or value <= highest:
            row = self._row(values, name)
            for place in places:
                row[place] = value

    def _row(self, values: Values, name: str) -> list[float | None]:
        return values.setdefault(name, [None] * len(self.gpus))


def _by_entity(pairs: Iterable[tuple[str, int]]) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    for entity, place in pairs:
        found[entity] = (*found.get(entity, ()), place)
    return found
