"""The driver's own table: every cell for itself, and a driver that gives no answer."""

# ruff: noqa: E501  (output of tools stays as it is printed)

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.sources.gpu_nvml import GpuNvmlSource, cell_value, parse
from collectors.sources.nvlink import NvlinkSource
from collectors.sources.nvlink import parse as links_of
from tests.collectors.sources.trees import Found, given_lines, look, write

A = "GPU-00000000-0000-0000-0000-00000000000a"
CSV = "commands/nvidia-smi_query-gpu.csv"


def table(
    root: Path, *rows: str, head: str = "index, uuid, pci.bus_id, power.draw [W], temperature.gpu"
) -> Found:
    return look(GpuNvmlSource(), write(root, {CSV: "\n".join([head, *rows]) + "\n"}))[0]


@pytest.mark.parametrize(
    ("cell", "wanted"),
    [
        ("535.00 W", (535.0, "ok")),
        ("535000 mW", (535.0, "ok")),
        ("55", (55, "ok")),
        ("0x0000000000000004", (4, "ok")),
        ("Yes", (1, "ok")),
        ("No", (0, "ok")),
        ("[N/A]", (None, "not_available")),
        ("N/A", (None, "not_available")),
        ("[Not Supported]", (None, "not_supported")),
        ("[Unknown Error]", (None, "unknown_error")),
        ("[GPU is lost]", (None, "lost")),
        ("ERR!", (None, "unknown_error")),
        ("", (None, "empty")),
        ("many", (None, "unreadable")),
    ],
)
def test_cells(cell: str, wanted: tuple[float | None, str]) -> None:
    assert cell_value(cell) == wanted


def test_a_cell_that_is_not_known_costs_itself(tmp_path: Path) -> None:
    found = table(tmp_path, f"0, {A}, 00000000:0A:00.0, [N/A], 55")
    assert found[f"gpu/{A}", "power_w"] == (None, "not_available")
    assert found[f"gpu/{A}", "temperature_c"] == (55, "ok")


def test_milliwatts_are_not_taken_for_watts(tmp_path: Path) -> None:
    assert table(tmp_path, f"0, {A}, 00000000:0A:00.0, 535000 W, 5")[f"gpu/{A}", "power_w"] == (
        None,
        "out_of_range",
    )


def test_a_gpu_that_does_not_answer_costs_its_row(tmp_path: Path) -> None:
    found = table(
        tmp_path,
        "Unable to determine the device handle for GPU0000:0B:00.0: Unknown Error",
        f"0, {A}, 00000000:0A:00.0, 100 W, 55",
    )
    assert {entity for entity, _ in found} == {f"gpu/{A}"}


def test_columns_that_a_driver_does_not_have_cost_nothing_else(tmp_path: Path) -> None:
    found = table(tmp_path, f"{A}, 97 %, N/A", head="uuid, utilization.gpu [%], fan.speed [%]")
    assert found == {(f"gpu/{A}", "util_ratio"): (0.97, "ok")}


def test_a_gpu_that_the_driver_lost_is_lost_in_its_own_row(tmp_path: Path) -> None:
    b = A[:-1] + "b"
    write(tmp_path, {"etc/clusterwatch/agent.toml": f'[gpu]\nuuids = ["{A}", "{b}"]\n'})
    found = table(
        tmp_path,
        f"0, {A}, 00000000:0A:00.0, [GPU is lost], [GPU is lost]",
        f"1, {b}, 00000000:0B:00.0, 100 W, 55",
    )
    assert found[f"gpu/{A}", "power_w"] == (None, "lost")
    assert found[f"gpu/{b}", "power_w"] == (100, "ok")


def test_a_uuid_that_the_exporter_has_twice_is_not_believed_of_the_driver(tmp_path: Path) -> None:
    line = f'DCGM_FI_DEV_GPU_TEMP{{UUID="{A}",pci_bus_id="00000000:0%d:00.0"}} 40\n'
    write(tmp_path, {"commands/dcgm_metrics.prom": line % 1 + line % 2})
    assert table(tmp_path, f"0, {A}, 00000000:01:00.0, 100 W, 55")[f"gpu/{A}", "power_w"] == (
        None,
        "duplicate_uuid",
    )


def test_no_driver_is_no_finding(tmp_path: Path) -> None:
    assert look(GpuNvmlSource(), tmp_path) == ({}, [])


def links(root: Path, recovery: str) -> Path:
    text = f"GPU 0: NVIDIA H100 (UUID: {A})\n\t Link 0: Replay Errors: 0\n\t Link 0: Recovery Errors: {recovery}\n\t Link 0: CRC Errors: N/A\n"
    return write(root, {"commands/nvidia-smi_nvlink_-e.txt": text})


def test_recoveries_of_a_link_grow(tmp_path: Path) -> None:
    """A public case: recoveries on one link told its death five days ahead, and DCGM did not list them."""
    source = NvlinkSource()
    look(source, links(tmp_path, "500"))
    found, _ = look(source, links(tmp_path, "505"), 10.0)
    assert found[f"nvlink/{A}/0", "recovery_errors_total"] == (505, "ok")
    assert found[f"nvlink/{A}/0", "recovery_errors_delta_count"] == (5, "ok")
    assert found[f"nvlink/{A}/0", "crc_errors_total"] == (None, "not_available")


def test_links_that_are_all_down_are_a_fault_and_not_an_empty_answer(tmp_path: Path) -> None:
    text = (
        f"GPU 0: NVIDIA H100 (UUID: {A})\nUnable to retrieve NVLink information as all links are inActive\n"
    )
    source = NvlinkSource()
    look(source, links(tmp_path, "0"))
    found, (event,) = look(source, write(tmp_path, {"commands/nvidia-smi_nvlink_-e.txt": text}), 10.0)
    assert (event.kind, event.entity, event.severity) == ("link_down", f"gpu/{A}", "critical")
    assert found[f"nvlink/{A}/0", "recovery_errors_total"] == (None, "link_down")
    assert found[f"nvlink/{A}/0", "recovery_errors_delta_count"] == (None, "link_down")
    found, _ = look(source, links(tmp_path, "3"), 20.0)
    assert found[f"nvlink/{A}/0", "recovery_errors_total"] == (3, "ok")


def test_a_gpu_whose_links_were_never_seen_has_those_of_the_others(tmp_path: Path) -> None:
    b = A[:-1] + "b"
    text = f"GPU 0: x (UUID: {A})\nUnable to retrieve NVLink information as all links are inActive\nGPU 1: x (UUID: {b})\n Link 3: CRC Errors: 0\n"
    found, _ = look(NvlinkSource(), write(tmp_path, {"commands/nvidia-smi_nvlink_-e.txt": text}))
    assert found[f"nvlink/{A}/3", "recovery_errors_total"] == (None, "link_down")
    assert found[f"nvlink/{b}/3", "crc_errors_total"] == (0, "ok")


@pytest.mark.parametrize(
    ("said", "quality", "kinds"), [("N/A", "not_available", []), ("<inactive>", "link_down", ["link_down"])]
)
def test_one_link_without_counters(tmp_path: Path, said: str, quality: str, kinds: list[str]) -> None:
    text = f"GPU 0: x (UUID: {A})\n\t Link 0: CRC Errors: 2\n\t Link 1: {said}\n"
    found, events = look(NvlinkSource(), write(tmp_path, {"commands/nvidia-smi_nvlink_-e.txt": text}))
    assert found[f"nvlink/{A}/0", "crc_errors_total"] == (2, "ok")
    assert found[f"nvlink/{A}/1", "crc_errors_total"] == (None, quality)
    assert [event.kind for event in events] == kinds
    assert all(event.attributes == {"link": 1} for event in events)


def test_links_of_a_gpu_that_is_listed_twice_are_nobodys(tmp_path: Path) -> None:
    text = f"GPU 0: x (UUID: {A})\n\t Link 0: CRC Errors: 2\nGPU 1: x (UUID: {A})\n\t Link 0: CRC Errors: 9\n"
    found, _ = look(NvlinkSource(), write(tmp_path, {"commands/nvidia-smi_nvlink_-e.txt": text}))
    assert found[f"nvlink/{A}/0", "crc_errors_total"] == (None, "duplicate_uuid")


def test_links_before_any_gpu_belong_to_nobody(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "commands/nvidia-smi_nvlink_-e.txt": "Link 0: Replay Errors: 3\nGPU 0: x (UUID: bad)\nLink 0: Replay Errors: 3\n"
        },
    )
    assert look(NvlinkSource(), tmp_path) == ({}, [])


def test_the_given_node_has_quiet_links() -> None:
    assert given_lines(NvlinkSource(), "nvlink/") == []


@given(st.text(max_size=300))
def test_any_text_parses(text: str) -> None:
    list(parse(text))
    list(parse("index, uuid, power.draw [W]\n" + text))
    links_of(f"GPU 0: x (UUID: {A})\nLink 0: {text}")
