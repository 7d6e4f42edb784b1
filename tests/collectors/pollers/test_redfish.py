"""Redfish: what BMCs and power shelves measure, their parts, and which faults stand."""

from __future__ import annotations

from typing import Any

import pytest

from tests.collectors.pollers.http_peer import peer
from tests.collectors.pollers.redfish_looks import PSU, bmc, faults, look, looks, poller, qualities, values
from tests.collectors.pollers.redfish_trees import V1, bad, node, old_node, shelf


def test_a_healthy_node_tells_what_it_measures_and_no_fault() -> None:
    found = look(node(), node="gtn-0101")
    assert (found.device.kind, found.device.name, found.node, found.state) == ("bmc", "b1", "gtn-0101", "ok")
    assert faults(found) == set()
    said = values(found)
    assert said["psu/b1/chassis.PSU0", "input_power_w"] == 2600
    assert said["psu/b1/chassis.PSU1", "output_power_w"] == 2500
    assert said["psu/b1/chassis.PSU1", "input_voltage_v"] == 230
    assert said["psu/b1/chassis.PSU1", "healthy_count"] == 1
    assert said["fan/b1/chassis.FAN1", "speed_rpm"] == 9101
    assert said["fan/b1/chassis.FAN1", "speed_ratio"] == 0.43
    assert said["sensor/b1/chassis.inlet", "temperature_c"] == 24.5
    assert said["bmc/b1", "power_w"] == 5230
    assert said["bmc/b1", "energy_j_total"] == 5.4e6
    assert said["bmc/b1", "powered_on_count"] == 1
    assert said["bmc/b1", "unreadable_count"] == 0


def test_gpus_and_switches_of_an_hgx_board_are_chassis_with_sensors() -> None:
    said = values(look(node()))
    gpu = "sensor/b1/HGX_GPU_SXM_1.HGX_GPU_SXM_1_"
    assert said[f"{gpu}TEMP_0", "temperature_c"] == 61.5
    assert said[f"{gpu}Power_0", "power_w"] == 612
    assert said[f"{gpu}Energy_0", "energy_j_total"] == 2.5e9


def test_parts_are_known_by_serial_model_and_firmware() -> None:
    parts = [one for one in look(node()).reading.samples if one.metric == "part_count"]
    assert {one.value for one in parts} == {1}
    supply = next(one.labels for one in parts if one.entity == "psu/b1/chassis.PSU1")
    assert supply == {"name": "PSU1", "serial": "S1", "model": "PWR-3000", "firmware": "1.2"}
    of_bmc = {one.labels["part"]: one.labels for one in parts if one.entity == "bmc/b1"}
    assert of_bmc["system"]["firmware"] == "F0C" and of_bmc["bmc"]["firmware"] == "24.10"
    assert of_bmc["HGX_GPU_SXM_1"]["serial"] == "GPU1"
    assert of_bmc["HGX_FW_NVSwitch_0"]["firmware"] == "96.10.6D.00.01"


def test_the_old_schemas_tell_the_same_kinds_of_things() -> None:
    found = look(old_node())
    said, why = values(found), qualities(found)
    place = "b1/System.Embedded.1"
    assert said["bmc/b1", "power_w"] == 590 and said["bmc/b1", "power_limit_w"] == 1600
    assert said[f"psu/{place}.PSU.Slot.1", "input_power_w"] == 300
    assert said[f"psu/{place}.PSU.Slot.1", "output_power_w"] == 290
    assert said[f"psu/{place}.PSU.Slot.2", "input_power_w"] is None
    assert why[f"psu/{place}.PSU.Slot.2", "input_power_w"] == "lost"
    assert why[f"psu/{place}.PSU.Slot.3", "healthy_count"] == "absent"
    assert (f"psu/{place}.PSU.Slot.3", "input_power_w") not in said
    assert said[f"sensor/{place}.Inlet Temp", "temperature_c"] == 46
    assert why[f"sensor/{place}.CPU Temp", "temperature_c"] == "out_of_range"
    assert why[f"sensor/{place}.CPU Temp.2", "temperature_c"] == "off"
    assert said[f"fan/{place}.Fan 2", "speed_ratio"] == 0.3
    assert faults(found) == {
        (f"psu/{place}.PSU.Slot.2", "psu_failed", "critical"),
        (f"psu/{place}.PSU.Slot.2", "power_lost", "critical"),
        (f"sensor/{place}.Inlet Temp", "over_temperature", "warning"),
        (f"fan/{place}.Fan 1", "fan_failed", "critical"),
    }


@pytest.mark.parametrize(
    ("path", "changed", "fault"),
    [
        (f"{PSU}/PSU0", {"Status": bad()}, ("psu/b1/chassis.PSU0", "psu_failed", "critical")),
        (f"{PSU}/PSU0", {"Status": bad("Warning")}, ("psu/b1/chassis.PSU0", "psu_failed", "warning")),
        (
            f"{PSU}/PSU0/Metrics",
            {"InputVoltage": {"Reading": 0}},
            ("psu/b1/chassis.PSU0", "power_lost", "critical"),
        ),
        (
            f"{V1}/Chassis/chassis/ThermalSubsystem/Fans/FAN0",
            {"Status": bad()},
            ("fan/b1/chassis.FAN0", "fan_failed", "critical"),
        ),
        (
            f"{V1}/Chassis/HGX_GPU_SXM_1/Sensors/HGX_GPU_SXM_1_TEMP_0",
            {"Reading": 96.0},
            ("sensor/b1/HGX_GPU_SXM_1.HGX_GPU_SXM_1_TEMP_0", "over_temperature", "critical"),
        ),
        (
            f"{V1}/Chassis/HGX_GPU_SXM_1/Sensors/HGX_GPU_SXM_1_TEMP_0",
            {"Reading": 88.0},
            ("sensor/b1/HGX_GPU_SXM_1.HGX_GPU_SXM_1_TEMP_0", "over_temperature", "warning"),
        ),
    ],
)
def test_a_fault_of_a_part_stands(path: str, changed: dict[str, Any], fault: tuple[str, str, str]) -> None:
    tree = node()
    tree[path] |= changed
    found = look(tree)
    assert faults(found) == {fault}
    assert all(one.standing for one in found.reading.events)


def test_a_supply_that_was_there_and_is_not_is_a_fault_and_one_that_never_was_is_none() -> None:
    tree = node()
    tree[f"{PSU}/PSU0"] |= {"Status": {"State": "Absent"}}
    before, after = looks(tree, lambda: tree[f"{PSU}/PSU1"].update(Status={"State": "Absent"}))
    assert faults(before) == set()
    assert faults(after) == {("psu/b1/chassis.PSU1", "psu_failed", "warning")}


def test_a_host_that_went_off_lost_its_power_and_one_that_was_off_did_not() -> None:
    tree = node()
    system = tree[f"{V1}/Systems/system"]
    on, off = looks(tree, lambda: system.update(PowerState="Off"))
    assert faults(on) == set() and faults(off) == {("bmc/b1", "power_lost", "warning")}
    assert faults(look(tree)) == set()


def test_a_power_shelf_is_its_racks_power() -> None:
    found = look(shelf(), name="shelf-1", rack="a01")
    said = values(found)
    assert (found.device.kind, found.device.name, found.state) == ("rack", "a01", "ok")
    assert said["rack/a01", "power_w"] == 12_000
    assert said["rack/a01", "psu_healthy_count"] == 6 and said["rack/a01", "psu_failed_count"] == 0
    assert said["rack/a01", "bbu_charge_min_ratio"] == 0.88
    assert said["bbu/shelf-1/Shelf 1.BBU1", "charge_ratio"] == 0.88
    assert said["bbu/shelf-1/Shelf 1.BBU1", "state_of_health_ratio"] == 0.97
    assert said["psu/shelf-1/Shelf 1.PSU6", "output_voltage_v"] == 50.1
    assert said["bmc/shelf-1", "energy_j_total"] == pytest.approx(810.25 * 3.6e6)


def test_a_shelf_that_runs_on_battery_or_has_a_bad_one_says_so() -> None:
    tree = shelf()
    tree[f"{V1}/PowerEquipment/PowerShelves/1/Batteries/BBU1"] |= {
        "ChargeState": "Discharging",
        "Status": bad("Warning"),
    }
    unit = "bbu/b1/Shelf 1.BBU1"
    assert faults(look(tree)) == {(unit, "on_battery", "warning"), (unit, "bbu_failed", "warning")}


def test_the_power_of_a_rack_is_unknown_while_one_of_its_shelves_does_not_answer() -> None:
    with peer(shelf()) as good, peer({}) as broken:
        (found,) = poller(bmc(good.address, "s1", rack="a01"), bmc(broken.address, "s2", rack="a01")).poll(
            0.0
        )
    assert found.state == "ok"
    assert values(found)["rack/a01", "power_w"] is None
    assert qualities(found)["rack/a01", "power_w"] == "incomplete"
    assert faults(found) == {("bmc/s2", "bmc_unreachable", "warning")}
