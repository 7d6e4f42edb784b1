"""Values of AMD's GPUs: the dialects of amd-smi, blanks, and why clocks are held down."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.sources.gpu_amd_fields import cell, entries, metric_rows
from collectors.sources.gpu_table import Row
from tests.collectors.sources.amd_node import NA, Json, metric, unit


def of(entry: Json, slowdown_c: float | None = None) -> dict[str, tuple[float | None, str]]:
    return {row.field.sample: row.read() for row in metric_rows("u", None, entry, slowdown_c)}


def test_the_bare_numbers_of_rocm_6_0_are_read() -> None:
    told = of(
        {
            "usage": {"gfx_activity": 50},
            "power": {"current_power": NA, "average_socket_power": 300},
            "clock": {"gfx": {"cur_clk": 1_700}, "mem": {"cur_clk": 1_600}},
            "temperature": {"edge": 44, "hotspot": NA, "mem": 50},
            "pcie": {"current_lanes": 8, "current_speed": 16},
        }
    )
    assert told["util_ratio"] == (0.5, "ok") and told["power_w"] == (300, "ok")
    assert told["sm_clock_mhz"] == (1_700, "ok") and told["memory_clock_mhz"] == (1_600, "ok")
    assert told["temperature_c"] == (44, "ok") and told["edge_temperature_c"] == (44, "ok")
    assert told["pcie_width_count"] == (8, "ok") and told["pcie_gen_count"] == (4, "ok")


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (unit(640, "W"), (640, "ok")),
        (unit(640_000, "mW"), (640, "ok")),
        (unit("300", "W"), (300, "ok")),
        (unit(2, "GB"), (2_048, "ok")),
        ("2100 MHz", (2_100, "ok")),
        ("2.5 GT/s", (2.5, "ok")),
        (7, (7, "ok")),
        (0, (0, "ok")),
        (NA, (None, "not_available")),
        (unit(NA, NA), (None, "not_available")),
        ("", (None, "not_available")),
        (None, (None, "not_available")),
        (True, (None, "unreadable")),
        ([1], (None, "unreadable")),
        ("many", (None, "unreadable")),
        (unit(5, "furlongs"), (None, "unreadable")),
        (unit(5, ["W"]), (None, "unreadable")),
        (unit(unit(5, "W"), "W"), (None, "unreadable")),
        (10**400, (None, "out_of_range")),
        (float("nan"), (None, "out_of_range")),
        (float("inf"), (None, "out_of_range")),
    ],
)
def test_values_in_any_dialect(value: object, wanted: tuple[float | None, str]) -> None:
    assert cell(value) == wanted


@pytest.mark.parametrize(
    ("blocks", "name"),
    [
        ({"power": {"socket_power": unit(65_535, "W")}}, "power_w"),
        ({"power": {"socket_power": unit(0, "W")}}, "power_w"),
        ({"temperature": {"hotspot": unit(65_535, "C")}}, "temperature_c"),
        ({"pcie": {"width": 65_535}}, "pcie_width_count"),
        ({"pcie": {"speed": unit(6_553.5, "GT/s")}}, "pcie_gen_count"),
        ({"pcie": {"replay_count": 2**64 - 1}}, "pcie_replay_total"),
        ({"energy": {"total_energy_consumption": unit(0.0, "J")}}, "energy_joules_total"),
    ],
)
def test_what_cannot_be_is_no_value(blocks: Json, name: str) -> None:
    assert of(metric(**blocks))[name] == (None, "out_of_range")


@pytest.mark.parametrize(
    ("word", "causes", "is_on", "mask"),
    [
        ("UNTHROTTLED", {}, (0, "ok"), (0, "ok")),
        ("THROTTLED", {}, (1, "ok"), (None, "reason_not_told")),
        (NA, {"ppt": "ACTIVE"}, (1, "ok"), (0x4, "ok")),
        (NA, {"hbm_thermal": "ACTIVE", "vr_thermal": "ACTIVE"}, (1, "ok"), (0x20, "ok")),
        (NA, {"prochot": True, "ppt": "NOT ACTIVE"}, (1, "ok"), (0x40, "ok")),
        (NA, {"ppt": "NOT ACTIVE"}, (0, "ok"), (0, "ok")),
        (NA, {"ppt": NA}, (None, "not_available"), (None, "not_available")),
    ],
)
def test_why_clocks_are_held_down(word: str, causes: Json, is_on: object, mask: object) -> None:
    throttle = {f"{cause}_violation_status": state for cause, state in causes.items()}
    told = of(metric(power={"throttle_status": word}, throttle=throttle))
    assert (told["throttled_count"], told["throttle_reasons_mask"]) == (is_on, mask)


def test_clocks_that_are_locked_are_a_reason() -> None:
    clocks = {"gfx_0": {"clk": unit(1_000, "MHz"), "clk_locked": "ENABLED"}}
    assert of(metric(clock=clocks))["throttle_reasons_mask"] == (0x2, "ok")


def test_warnings_before_the_answer_do_not_matter() -> None:
    said = f"WARNING: User is missing the following required groups\n[notice] x\n{json.dumps([metric(3)])}\n"
    assert list(entries(said.encode())) == [3]


TREES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from([NA, "5 W", "ACTIVE", "x"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["gpu", "value", "unit", "power", "socket_power", "clock", "gfx_0", "clk", "throttle", "ecc",
                 "ppt_violation_status", "throttle_status", "pcie", "speed", "width", "xgmi_err", "gpu_data"]
            ),  # fmt: skip
            inner,
            max_size=5,
        )
    ),
    max_leaves=25,
)  # fmt: skip


@given(TREES)
def test_any_json_is_values_in_range_or_a_reason(told: object) -> None:
    for entry in entries(json.dumps([told, {"gpu": 1, "power": told, "clock": told}]).encode()).values():
        for row in metric_rows("u", None, entry, 90.0):
            assert isinstance(row, Row)
            value, quality = row.read()
            assert (value is None) == (quality != "ok")


@given(st.binary(max_size=200))
def test_any_bytes_are_an_answer_or_none(said: bytes) -> None:
    assert isinstance(entries(said), dict)
