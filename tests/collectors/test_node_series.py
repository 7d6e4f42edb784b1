"""Series of GPUs: each keeps its place, and a source that does not know hides nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from collectors.node_series import PAUSE, PORT_SERIES, SERIES, SPECS, NodeSeries
from collectors.sources.base import Reading, Sample
from collectors.sources.gpu_amd import GpuAmdSource
from collectors.sources.tree import Tree
from collectors.wire.metrics import METRICS
from collectors.wire.records import GpuIdentity
from tests.collectors.sources import amd_node
from tests.collectors.sources.trees import full_node, write

A, B = "GPU-00000000-0000-0000-0000-00000000000a", "GPU-00000000-0000-0000-0000-00000000000b"


def node(root: Path) -> NodeSeries:
    return NodeSeries.of(
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
    told_of = {name for name, _ in (*SERIES.values(), *PORT_SERIES.values())} | {PAUSE}
    assert told_of == {spec.name for spec in SPECS} and told_of <= set(METRICS)


def test_the_hosts_own_values_keep_their_names(tmp_path: Path) -> None:
    values: dict[str, list[float | None]] = {}
    reading = told(Sample("host", "load_count", 3.5), Sample("host", "cpu_busy_ratio", None, "first_sample"))
    NodeSeries().add(values, reading)
    assert values == {"load_count": [3.5]}


def test_a_port_is_told_at_the_place_of_the_gpu_that_is_nearest_to_it() -> None:
    values: dict[str, list[float | None]] = {}
    gpus = tuple(GpuIdentity(index=n, uuid=uuid) for n, uuid in enumerate((A, B)))
    series = NodeSeries(gpus, {"port/mlx5_7/1": (1,)}, {"nic/eth7": (1,)})
    series.add(
        values,
        told(
            Sample("port/mlx5_7/1", "tx_bytes_per_s", 3 * 1_048_576),
            Sample("port/mlx5_7/1", "rx_bytes_per_s", None, "first_sample"),
            Sample("port/mlx5_7/1", "out_of_sequence_total", 12),
            Sample("port/mlx5_9/1", "tx_bytes_per_s", 5.0),
            Sample("nic/eth7", "rx_prio3_pause_duration_total", 40),
            Sample("nic/eth7", "rx_prio4_pause_duration_total", 2),
            Sample("nic/eth7", "tx_prio3_pause_duration_total", 9),
        ),
    )
    assert values == {
        "nic_tx_mib_per_s": [None, 3.0],
        "nic_out_of_sequence_total": [None, 12.0],
        "nic_pfc_pause_us_total": [None, 42.0],
    }


def test_without_an_inventory_the_drivers_order_counts(tmp_path: Path) -> None:
    root = full_node(tmp_path)
    (root / "etc/clusterwatch/agent.toml").unlink()
    found = NodeSeries.of(Tree(root)).gpus
    assert [(gpu.index, gpu.pci) for gpu in found] == [(0, "0000:40:00.0"), (1, "0000:41:00.0")]
    assert NodeSeries.of(Tree(tmp_path / "nothing")).gpus == ()


def test_the_ports_of_a_recorded_node_find_their_gpus() -> None:
    root = Path(__file__).parents[3] / "shared/cases/telemetry/node-a/t1"
    if not root.is_dir():
        pytest.skip("the shared cases are not here")
    series = NodeSeries.of(Tree(root))
    assert len(series.gpus) == 8
    assert series.ports and series.netdevs
    assert all(
        0 <= place < 8 for places in (*series.ports.values(), *series.netdevs.values()) for place in places
    )


def amd(root: Path, *gpus: int, inventory: tuple[str, ...] = ()) -> Tree:
    """A node whose amd-smi lists these GPUs."""
    values = [amd_node.metric(index) for index, _ in enumerate(gpus)]
    files = amd_node.files(values, amd_node.listed(*gpus), [amd_node.static(n) for n, _ in enumerate(gpus)])
    if inventory:
        files["etc/clusterwatch/agent.toml"] = f"[gpu]\nuuids = {list(inventory)}\n"
    return Tree(write(root, files))


def test_amds_gpus_have_the_series_of_nvidias_where_the_meaning_is_equal(tmp_path: Path) -> None:
    tree, values = amd(tmp_path, 0, 1), dict[str, list[float | None]]()
    series = NodeSeries.of(tree)
    assert [(gpu.index, gpu.uuid, gpu.pci) for gpu in series.gpus] == [
        (0, amd_node.UUIDS[0], "0000:05:00.0"), (1, amd_node.UUIDS[1], "0000:06:00.0"),
    ]  # fmt: skip
    reading = GpuAmdSource().read(tree, 0.0)
    series.add(values, reading)
    gpus = {name: row for name, row in values.items() if name.startswith("gpu_")}
    assert gpus == {
        "gpu_power_w": [640, 640],
        "gpu_temperature_c": [72, 72],
        "gpu_memory_temperature_c": [61, 61],
        "gpu_util_ratio": [0.97, 0.97],
        "gpu_memory_used_bytes": [1_048_576_000, 1_048_576_000],
        "gpu_sm_clock_mhz": [1_980, 1_980],
        "gpu_ecc_correctable_total": [5, 5],
        "gpu_ecc_uncorrectable_total": [0, 0],
        "gpu_throttle_reasons": [0, 0],
    }
    untold = {one.metric: one.quality for one in reading.samples if one.metric == "tensor_active_ratio"}
    assert untold == {"tensor_active_ratio": "not_supported"}


def test_an_amd_gpu_that_is_lost_leaves_a_hole_where_the_inventory_has_it(tmp_path: Path) -> None:
    tree, values = amd(tmp_path, 2, 0, inventory=amd_node.UUIDS), dict[str, list[float | None]]()
    series = NodeSeries.of(tree)
    assert [gpu.uuid for gpu in series.gpus] == list(amd_node.UUIDS)
    series.add(values, GpuAmdSource().read(tree, 0.0))
    assert values["gpu_power_w"] == [640, None, 640]


def test_a_node_whose_amd_smi_says_nonsense_has_no_places(tmp_path: Path) -> None:
    for text in ("", "[]", "{}", "[[]]", '[{"gpu": 0, "uuid": 5, "bdf": []}]', "[" * 2_000):
        tree = Tree(write(tmp_path, {"commands/amd-smi_list.json": text}))
        assert NodeSeries.of(tree).gpus == ()
