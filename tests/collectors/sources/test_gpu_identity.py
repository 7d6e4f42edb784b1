"""UUID, PCI address and index of GPUs, by any spelling and from any of the files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.sources.gpu_identity import (
    expected_uuids,
    gpus,
    lost_uuids,
    normal_bdf,
    smi_rows,
    uuid_of,
)
from collectors.sources.tree import Tree
from tests.collectors.sources.trees import write

A, B = "GPU-00000000-0000-0000-0000-00000000000a", "GPU-00000000-0000-0000-0000-00000000000b"


@pytest.mark.parametrize(
    "text", ["0000:4e:00", "00000000:4E:00.0", "0000:4e:00.0", "PCI:0000:4E:00", "4e:00.0", " 0000:4e:00.0 "]
)
def test_one_address_has_one_spelling(text: str) -> None:
    assert normal_bdf(text) == "0000:4e:00.0"


@pytest.mark.parametrize("text", ["", "4e", "0000:4e:00.9", "gggg:4e:00.0", "0000:4e:00.0 x"])
def test_what_is_no_address_has_none(text: str) -> None:
    assert normal_bdf(text) is None


def test_files_complete_each_other(tmp_path: Path) -> None:
    line = f'DCGM_FI_DEV_GPU_TEMP{{gpu="1",UUID="{B}",pci_bus_id="00000000:5E:00.0"}} 40\n'
    write(
        tmp_path,
        {
            "commands/dcgm_metrics.prom": line * 2 + "garbage\n",
            "commands/nvidia-smi_query-gpu.csv": f"index, uuid, pci.bus_id\n0, {A}, 00000000:4E:00.0\n",
            "commands/gpu_processes.json": json.dumps({"nvml_index": {"0": A, "1": B, "x": 3}}),
        },
    )
    found = gpus(Tree(tmp_path))
    assert [(gpu.uuid, gpu.bdf, gpu.index) for gpu in found] == [
        (A, "0000:4e:00.0", 0),
        (B, "0000:5e:00.0", 1),
    ]
    assert uuid_of(Tree(tmp_path), "PCI:0000:5e:00") == B


def test_nothing_is_there(tmp_path: Path) -> None:
    assert gpus(Tree(tmp_path)) == () and expected_uuids(Tree(tmp_path)) == ()


def test_the_inventory_keeps_its_order_and_only_names(tmp_path: Path) -> None:
    write(tmp_path, {"etc/clusterwatch/agent.toml": f'[gpu]\nuuids = ["{B}", "{A}", "x", 3]\n'})
    assert expected_uuids(Tree(tmp_path)) == (B, A)


def test_a_damaged_row_costs_itself() -> None:
    rows = smi_rows("index, uuid, power.draw [W]\n0, a, 5 W\n1, b\n2, c, [N/A]\n")
    assert rows == [
        {"index": "0", "uuid": "a", "power.draw": "5 W"},
        {"index": "2", "uuid": "c", "power.draw": "[N/A]"},
    ]


def test_the_drivers_own_files_tell_addresses_of_gpus_that_were_used(tmp_path: Path) -> None:
    folder = "proc/driver/nvidia/gpus"
    write(
        tmp_path,
        {
            f"{folder}/0000:4e:00.0/information": f"Model: x\nGPU UUID: \t {A}\nDevice Minor: 0\n",
            f"{folder}/0000:5e:00.0/information": "Model: x\nGPU UUID: \t GPU-????????-????\n",
        },
    )
    assert [(gpu.uuid, gpu.bdf) for gpu in gpus(Tree(tmp_path))] == [(A, "0000:4e:00.0")]


@pytest.mark.parametrize(
    ("smi", "is_lost"),
    [
        (f"0, {A}, 00000000:4E:00.0, 50, 5 W", False),
        (f"0, {A}, 00000000:4E:00.0, [Unknown Error], 5 W", False),
        (f"0, {A}, 00000000:4E:00.0, 50", False),  # a damaged row still names its GPU
        (f"0, {A}, 00000000:4E:00.0, [GPU is lost], [GPU is lost]", True),
        (f"0, {A}, 00000000:4E:00.0, [Unknown Error], [Unknown Error]", True),
        ("0, [Unknown Error], 00000000:4E:00.0, [Unknown Error], [Unknown Error]", True),
        ("Unable to determine the device handle for GPU0000:4E:00.0: Unknown Error", True),
    ],
)
def test_a_gpu_that_the_driver_only_has_errors_of_is_lost(tmp_path: Path, smi: str, is_lost: bool) -> None:
    head = "index, uuid, pci.bus_id, temperature.gpu, power.draw [W]"
    write(
        tmp_path,
        {
            "etc/clusterwatch/agent.toml": f'[gpu]\nuuids = ["{A}", "{B}"]\n',
            "commands/nvidia-smi_query-gpu.csv": f"{head}\n{smi}\n1, {B}, 00000000:5E:00.0, 50, 5 W\n",
            "commands/dcgm_metrics.prom": f'DCGM_FI_DEV_GPU_TEMP{{UUID="{A}"}} 40\n',
        },
    )
    assert lost_uuids(Tree(tmp_path)) == ({A} if is_lost else set())


@pytest.mark.parametrize("smi", ["", "Failed to initialize NVML: Driver/library version mismatch\n"])
def test_where_the_driver_lists_nothing_the_exporter_tells_what_is_there(tmp_path: Path, smi: str) -> None:
    write(
        tmp_path,
        {
            "etc/clusterwatch/agent.toml": f'[gpu]\nuuids = ["{A}", "{B}"]\n',
            "commands/nvidia-smi_query-gpu.csv": smi,
            "commands/dcgm_metrics.prom": f'DCGM_FI_DEV_GPU_TEMP{{UUID="{B}"}} 40\n',
        },
    )
    assert lost_uuids(Tree(tmp_path)) == {A}


@given(st.text())
def test_garbage_is_no_table_and_no_address(text: str) -> None:
    smi_rows(text)
    normal_bdf(text)
