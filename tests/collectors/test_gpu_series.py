"""Series of GPUs: each keeps its place, and a source that does not know hides nothing."""

from __future__ import annotations

from pathlib import Path

from collectors.gpu_series import SERIES, SPECS, GpuSeries
from collectors.sources.base import Reading, Sample
from collectors.sources.tree import Tree
from collectors.wire.metrics import METRICS
from tests.collectors.sources.trees import full_node, write

A, B = "GPU-00000000-0000-0000-0000-00000000000a", "GPU-00000000-0000-0000-0000-00000000000b"


def node(root: Path) -> GpuSeries:
    return GpuSeries.of(
        Tree(write(root, {"etc/clusterwatch/agent.toml": f'[gpu]\nuuids = ["{A}", "{B}"]\n'}))
    )


def told(*samples: Sample) -> Reading:
    return Reading(samples)


def test_a_lost_gpu_leaves_a_hole(tmp_path: Path) -> None:
    values: dict[str, list[float | None]] = {}
    node(tmp_path).add(
        values, told(Sample(f"gpu/{B}", "power_w", 500.0), Sample(f"gpu/{A}", "power_w", None, "lost"))
    )
    assert values == {"gpu_power_w": [None, 500.0]}


def test_a_source_that_does_not_know_hides_nothing(tmp_path: Path) -> None:
    values: dict[str, list[float | None]] = {}
    series = node(tmp_path)
    series.add(values, told(Sample(f"gpu/{A}", "temperature_c", 50)))
    series.add(values, told(Sample(f"gpu/{A}", "temperature_c", None, "not_available")))
    assert values == {"gpu_temperature_c": [50, None]}


def test_units_and_bounds_are_those_of_the_catalogue(tmp_path: Path) -> None:
    values: dict[str, list[float | None]] = {}
    node(tmp_path).add(
        values,
        told(
            Sample(f"gpu/{A}", "pcie_tx_bytes_per_s", 2 * 1_048_576),
            Sample(f"gpu/{A}", "power_w", 2_000.0),
            Sample(f"gpu/{A}", "util_ratio", 0.5, labels={"gpu_instance": "1"}),
            Sample("gpu/GPU-not-of-this-node", "power_w", 5.0),
        ),
    )
    assert values == {"gpu_pcie_tx_mib_per_s": [2.0, None]}
    assert {name for name, _ in SERIES.values()} <= set(METRICS) and len(SPECS) == len(SERIES)


def test_without_an_inventory_the_drivers_order_counts(tmp_path: Path) -> None:
    root = full_node(tmp_path)
    (root / "etc/clusterwatch/agent.toml").unlink()
    found = GpuSeries.of(Tree(root)).gpus
    assert [(gpu.index, gpu.pci) for gpu in found] == [(0, "0000:40:00.0"), (1, "0000:41:00.0")]
    assert GpuSeries.of(Tree(tmp_path / "nothing")).gpus == ()
