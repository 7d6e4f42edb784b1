"""The nearest RDMA device: tables as nvidia-smi prints them, and PCI paths where there is no table."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.sources.gpu_identity import GpuPlace
from collectors.sources.node_topology import bridges, level, nearest, nearest_rdma, parse
from collectors.sources.tree import Tree
from tests.collectors.sources.trees import write

TABLE = (
    "\x1b[4m\tGPU0\tGPU1\tNIC0\tNIC1\tNIC2\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
    "GPU0\t X \tNV18\tPXB\tPIX\tSYS\t0-31\t0\t\tN/A\n"
    "GPU1\tNV18\t X \tNODE\tNODE\tSYS\t0-31\t0\t\tN/A\n"
    "NIC0\tPXB\tNODE\t X \tPXB\tSYS\n\n"
    "Legend:\n\n  X    = Self\n\n"
)
LEGEND = "NIC Legend:\n\n  NIC0: mlx5_0\n  NIC1: mlx5_bond_0\n  NIC2: mlx5_4\n"


def test_the_levels_of_a_table_by_the_names_of_its_legend() -> None:
    assert parse(TABLE + LEGEND) == {
        0: {"mlx5_0": "PXB", "mlx5_bond_0": "PIX", "mlx5_4": "SYS"},
        1: {"mlx5_0": "NODE", "mlx5_bond_0": "NODE", "mlx5_4": "SYS"},
    }


def test_blanks_in_place_of_tabs_change_nothing() -> None:
    assert parse((TABLE + LEGEND).replace("\t", "      ")) == parse(TABLE + LEGEND)


def test_an_empty_cell_does_not_move_the_others() -> None:
    assert parse(TABLE.replace("NV18\tPXB\tPIX", "NV18\t\tPIX") + LEGEND)[0]["mlx5_bond_0"] == "PIX"


def test_older_tools_head_columns_with_the_devices_names() -> None:
    text = "\tGPU0\tmlx5_0\tmlx5_1\tCPU Affinity\nGPU0\t X \tSYS\tPHB\t0-19\nmlx5_0\tSYS\t X \tSYS\n"
    assert parse(text) == {0: {"mlx5_0": "SYS", "mlx5_1": "PHB"}}


@pytest.mark.parametrize(
    ("levels", "device"),
    [
        ({"a": "PXB", "b": "PIX"}, "b"),
        ({"a": "PXB", "b": "PXB"}, "a"),
        ({"a": "SYS", "b": "PHB"}, "b"),
        ({"a": "NODE", "b": "SYS"}, None),
        ({"a": "N/A"}, None),
        ({}, None),
    ],
)
def test_local_is_below_the_same_host_bridge(levels: dict[str, str], device: str | None) -> None:
    assert nearest(levels) == device


GPU = GpuPlace("GPU-00000000-0000-0000-0000-000000000000", "0000:05:00.0", 0)


def found(root: Path, table: str | None, **devices: str) -> str | None:
    """The device nearest to GPU 0; ``devices``: PCI path of each RDMA device below sys/devices."""
    files = {"commands/nvidia-smi_topo_-m.txt": table} if table else {}
    write(root, files)
    paths = {
        "gpu": "pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:00.0/0000:03:00.0/0000:04:02.0/0000:05:00.0"
    }
    for name, path in (paths | devices).items():
        link = root / "sys/bus/pci/devices" / path.rpartition("/")[2]
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(f"../../../devices/{path}")
        if name != "gpu":
            write(root, {f"sys/class/infiniband/{name}/device": f"../../../{link.name}"})
    return nearest_rdma(Tree(root), [GPU])[GPU.uuid]


SWITCH = "pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:00.0/0000:03:00.0"
PLACES = {
    "mlx5_0": "pci0000:80/0000:80:01.0/0000:81:00.0",
    "mlx5_1": "pci0000:00/0000:00:02.0/0000:0a:00.0",
    "mlx5_2": "pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:01.0/0000:07:00.0",
    "mlx5_3": f"{SWITCH}/0000:04:03.0/0000:06:00.0",
}


@pytest.mark.parametrize(
    "table", [None, TABLE, "\tGPU0\tGPU1\nGPU0\t X \tNV18\nGPU1\tNV18\t X \n", "no table"]
)
@pytest.mark.parametrize(("removed", "device"), [(0, "mlx5_3"), (1, "mlx5_2"), (2, "mlx5_1"), (3, None)])
def test_without_a_table_that_names_devices_pci_paths_tell(
    tmp_path: Path, table: str | None, removed: int, device: str | None
) -> None:
    places = dict(list(PLACES.items())[: len(PLACES) - removed])
    assert found(tmp_path, table, **places) == device


def test_a_device_that_the_kernel_lost_is_not_near(tmp_path: Path) -> None:
    assert found(tmp_path, TABLE + LEGEND, mlx5_0=PLACES["mlx5_0"]) == "mlx5_0"


def test_without_anything_nothing_is_near(tmp_path: Path) -> None:
    assert nearest_rdma(Tree(tmp_path), [GPU, GpuPlace("GPU-x")]) == {GPU.uuid: None, "GPU-x": None}


def test_levels_of_paths() -> None:
    gpu = bridges(f"../../../devices/{SWITCH}/0000:04:02.0/0000:05:00.0")
    assert gpu[0] == "pci0000:00"
    assert level(gpu, bridges(PLACES["mlx5_3"])) == "PIX"
    assert level(gpu, bridges(PLACES["mlx5_2"])) == "PXB"
    assert level(gpu, bridges(PLACES["mlx5_1"])) == "PHB"
    assert level(gpu, bridges(PLACES["mlx5_0"])) == "SYS"
    assert bridges("../../0000:05:00.0") == []


@given(st.text(alphabet="GPUNIC0123XVSY \t\n:_mlxPB", max_size=300))
def test_garbage_gives_no_error(text: str) -> None:
    parse("\tGPU0\tNIC0\n" + text)
