"""Redfish: what BMCs and power shelves tell, and what the poller bears from those that misbehave."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from collectors.pollers.device import DeviceReading
from collectors.pollers.redfish import MARKS_FILE, Bmc, RedfishPoller
from collectors.pollers.redfish_client import BODY_MAX_BYTES, Login
from collectors.sources.base import SourceEvent
from tests.collectors.pollers.http_peer import Answer, peer
from tests.collectors.pollers.redfish_trees import (
    V1,
    bad,
    log_entry,
    log_tree,
    node,
    old_node,
    ref,
    root,
    shelf,
)

CLOCK_S = 1_796_205_600.0
"""2026-12-02 10:00 as the trees' BMC has it"""
PSU = f"{V1}/Chassis/chassis/PowerSubsystem/PowerSupplies"


def bmc(address: str, name: str = "b1", **fields: Any) -> Bmc:
    return Bmc(name, Login(address, insecure=True), **fields)


def poller(*bmcs: Bmc, wall_s: float = CLOCK_S, **options: Any) -> RedfishPoller:
    return RedfishPoller(list(bmcs), wall=lambda: wall_s, **options)


def look(tree: dict[str, Any], **fields: Any) -> DeviceReading:
    """One look at a BMC that serves a tree."""
    with peer(tree) as running:
        (found,) = poller(bmc(running.address, **fields)).poll(0.0)
    return found


def looks(tree: dict[str, Any], *changes: Callable[[], None]) -> list[DeviceReading]:
    """A look, then one after each change, a minute apart."""
    with peer(tree) as running:
        asking = poller(bmc(running.address))
        found = list(asking.poll(0.0))
        for at, change in enumerate(changes, 1):
            change()
            found += asking.poll(at * 60.0)
    return found


def values(found: DeviceReading) -> dict[tuple[str, str], float | None]:
    return {
        (one.entity, one.metric): one.value for one in found.reading.samples if one.metric != "part_count"
    }


def qualities(found: DeviceReading) -> dict[tuple[str, str], str]:
    return {(one.entity, one.metric): one.quality for one in found.reading.samples}


def faults(found: DeviceReading) -> set[tuple[str, str, str]]:
    return {(one.entity, one.kind, one.severity) for one in found.reading.events}


def told(found: DeviceReading, kind: str) -> list[SourceEvent]:
    return [one for one in found.reading.events if one.kind == kind]


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


def test_the_first_look_at_a_log_is_history_and_what_comes_after_is_told_once() -> None:
    tree = node()
    entries = [log_entry(1), log_entry(2, "Critical", Message="old")]

    def grow() -> None:
        new = [log_entry(3, "Critical", Message="PSU0 lost AC"), log_entry(4), log_entry(5, "Warning")]
        tree.update(log_tree([*new, *entries]))  # newest first, as some BMCs have it

    first, second, third = looks(tree, grow, lambda: None)
    assert told(first, "sel_entry") == [] and told(third, "sel_entry") == []
    critical, warning = told(second, "sel_entry")
    assert (critical.severity, critical.message) == ("critical", "SEL: PSU0 lost AC")
    assert critical.attributes["entry"] == "3" and not critical.standing
    assert warning.severity == "warning"
    assert values(second)["bmc/b1", "log_entries_count"] == 5


def test_a_cleared_log_tells_its_new_entries_although_their_numbers_are_small() -> None:
    tree = node()
    _, found = looks(tree, lambda: tree.update(log_tree([log_entry(1, "Critical", Message="after")])))
    assert [one.message for one in told(found, "sel_entry")] == ["SEL: after"]


def test_the_time_of_an_entry_counts_only_if_it_lies_between_two_looks() -> None:
    tree = node()
    tree[f"{V1}/Managers/bmc"]["DateTime"] = "2019-01-01T00:01:00Z"  # a BMC that lost its clock
    new = [
        log_entry(3, "Critical", Created="2019-01-01T00:00:30Z"),
        log_entry(4, "Critical", Created="2018-01-01T00:00:00Z"),
    ]
    with peer(tree) as running:
        wall = [CLOCK_S]
        asking = RedfishPoller([bmc(running.address)], wall=lambda: wall[0])
        (first,) = asking.poll(0.0)
        tree.update(log_tree([log_entry(1), log_entry(2, "Critical", Message="old"), *new]))
        wall[0] += 60.0
        (second,) = asking.poll(60.0)
    assert (values(first)["bmc/b1", "clock_offset_s"] or 0) < -200_000_000
    fits, strange = told(second, "sel_entry")
    assert fits.t_ns == int((CLOCK_S + 30.0) * 1e9)
    assert strange.t_ns is None and strange.attributes["bmc_time"] == "2018-01-01T00:00:00Z"


def test_entries_written_while_no_poller_ran_are_told_by_the_next(tmp_path: Path) -> None:
    tree = node()
    with peer(tree) as running:
        first = poller(bmc(running.address))
        first.keep_in(tmp_path)
        list(first.poll(0.0))
        tree.update(
            log_tree([log_entry(1), log_entry(2, "Critical", Message="old"), log_entry(3, "Critical")])
        )
        second = poller(bmc(running.address))
        second.keep_in(tmp_path)
        (found,) = second.poll(0.0)
    assert [one.attributes["entry"] for one in told(found, "sel_entry")] == ["3"]


@pytest.mark.parametrize("kept", [b"", b"[]", b"\xff", b'{"b1": {"x": [1]}}', b'{"b1": 3}', b"[" * 100_000])
def test_a_broken_memory_of_logs_is_forgotten(kept: bytes, tmp_path: Path) -> None:
    (tmp_path / MARKS_FILE).write_bytes(kept)
    with peer(node()) as running:
        asking = poller(bmc(running.address))
        asking.keep_in(tmp_path)
        (found,) = asking.poll(0.0)
    assert found.state == "ok" and told(found, "sel_entry") == []


def test_a_flood_of_entries_is_told_as_a_number() -> None:
    tree = node()
    flood = [log_entry(n, "Critical") for n in range(3, 203)]
    old = [log_entry(1), log_entry(2, "Critical", Message="old")]
    _, found = looks(tree, lambda: tree.update(log_tree([*old, *flood])))
    events = told(found, "sel_entry")
    assert len(events) == 33 and events[-1].message == "SEL: 168 more new entries"
    assert events[0].attributes["entry"] == "171"


def test_pages_of_a_log_are_followed_and_not_asked_again_while_nothing_moved() -> None:
    tree = node()
    path = f"{V1}/Systems/system/LogServices/SEL/Entries"

    def pages(last: int) -> dict[str, Any]:
        entries = [log_entry(n, "Critical") for n in range(1, last + 1)]
        said: dict[str, Any] = {"Members@odata.count": last}
        return {
            path: said | {"Members": entries[:3], "Members@odata.nextLink": f"{path}?$skip=3"},
            f"{path}?$skip=3": said | {"Members": entries[3:]},
        }

    tree |= pages(5)
    with peer(tree) as running:
        asking = poller(bmc(running.address))
        list(asking.poll(0.0))
        list(asking.poll(60.0))
        assert running.paths().count(f"{path}?$skip=3") == 1
        tree |= pages(6)
        (found,) = asking.poll(120.0)
    assert [one.attributes["entry"] for one in told(found, "sel_entry")] == ["6"]


def test_entries_that_are_links_are_followed_only_behind_the_last_one() -> None:
    tree = node()
    path = f"{V1}/Systems/system/LogServices/SEL/Entries"

    def links(last: int) -> dict[str, Any]:
        found = {f"{path}/{n}": log_entry(n, "Critical") for n in range(1, last + 1)}
        return found | {path: {"Members@odata.count": last, "Members": [ref(name) for name in found]}}

    tree |= links(100)
    with peer(tree) as running:
        asking = poller(bmc(running.address))
        list(asking.poll(0.0))
        assert sum(f"{path}/" in one for one in running.paths()) == 1
        tree |= links(102)
        (found,) = asking.poll(60.0)
    assert [one.attributes["entry"] for one in told(found, "sel_entry")] == ["101", "102"]


def test_where_a_bmc_can_expand_one_request_gives_a_collection() -> None:
    tree = node()
    tree[V1] |= {"ProtocolFeaturesSupported": {"ExpandQuery": {"NoLinks": True}}}
    whole = f"{V1}/Chassis/HGX_GPU_SXM_1/Sensors"
    members = [tree[row["@odata.id"]] for row in tree[whole]["Members"]]
    tree[f"{whole}?$expand=.($levels=1)"] = tree[whole] | {"Members": members}
    with peer(tree) as running:
        (found,) = poller(bmc(running.address)).poll(0.0)
        assert not any(path.startswith(f"{whole}/") for path in running.paths())
    assert values(found)["sensor/b1/HGX_GPU_SXM_1.HGX_GPU_SXM_1_TEMP_0", "temperature_c"] == 61.5
    assert values(found)["psu/b1/chassis.PSU0", "input_power_w"] == 2600  # not expanded: one by one


def test_a_bmc_is_asked_once_a_minute_whatever_the_settings_say() -> None:
    with peer(node()) as running:
        asking = poller(bmc(running.address), period_s=1.0)
        assert asking.period_s == 60.0
        assert [len(list(asking.poll(at))) for at in (0.0, 1.0, 59.9, 60.0, 61.0)] == [1, 0, 0, 1, 0]
        assert running.paths().count(f"{V1}/") == 2


def test_one_that_fails_is_asked_ever_more_rarely_and_its_state_is_told_meanwhile() -> None:
    with peer({}) as running:
        asking = poller(bmc(running.address))
        states = [one.state for at in range(31) for one in asking.poll(at * 60.0)]
        assert states == ["http_404"] * 31
        assert len(running.asked) == 6  # at 0, 1, 3, 7, 15 and 30 minutes


@pytest.mark.parametrize(
    ("answer", "state"),
    [
        (Answer(500), "http_500"),
        (Answer(401), "auth_failed"),
        (b"<html>not here</html>", "not_redfish"),
        (b"[1, 2]", "not_redfish"),
        (b"\xff\xfe" * 99, "not_redfish"),
        (b"[" * 100_000, "not_redfish"),
        (b"{" + b" " * (BODY_MAX_BYTES + 1) + b"}", "too_large"),
        (Answer(302, headers={"Location": "http://127.0.0.1:1/redfish/v1"}), "redirect_refused"),
        (Answer(302, headers={"Location": "https://elsewhere.example/redfish/v1"}), "redirect_refused"),
        (Answer(308, headers={"Location": f"{V1}/"}), "redirect_refused"),
        (Answer(302, headers={"Location": "/etc/passwd"}), "redirect_refused"),
        (Answer(200, b"x" * 100, {"Content-Encoding": "gzip"}), "not_redfish"),
    ],
)
def test_a_root_that_is_none_is_a_state_of_that_bmc(answer: Any, state: str) -> None:
    assert look({V1: answer}).state == state


def test_a_bmc_that_is_not_there_is_unreachable() -> None:
    with peer({}) as running:
        address = running.address
    (found,) = poller(bmc(address)).poll(0.0)
    assert found.state == "unreachable" and not found.reading.samples


@pytest.mark.parametrize("answer", [Answer(hang_s=30.0), Answer(drip=True)])
def test_a_bmc_that_hangs_or_drips_costs_its_deadline_and_the_others_nothing(answer: Answer) -> None:
    with peer({V1: answer}) as hung, peer(node()) as good:
        asking = poller(bmc(hung.address, "hung"), bmc(good.address, "good"), look_s=0.6)
        states = {one.device.name: one.state for one in asking.poll(0.0)}
    assert states == {"hung": "timeout", "good": "ok"}


def test_what_was_read_before_a_resource_hung_is_kept() -> None:
    tree = node()
    tree[f"{V1}/Systems"] = Answer(hang_s=30.0)
    with peer(tree) as running:
        (found,) = poller(bmc(running.address), look_s=1.0).poll(0.0)
    assert found.state == "ok"
    assert values(found)["psu/b1/chassis.PSU0", "input_power_w"] == 2600
    assert values(found)["bmc/b1", "unreadable_count"] == 1


def test_a_broken_resource_costs_only_what_it_would_have_told() -> None:
    tree = node()
    tree[f"{PSU}/PSU0/Metrics"] = Answer(500)
    tree[f"{V1}/Chassis/chassis/ThermalSubsystem"] = b"garbage"
    found = look(tree)
    said = values(found)
    assert said["psu/b1/chassis.PSU0", "input_power_w"] is None
    assert said["psu/b1/chassis.PSU1", "input_power_w"] == 2601
    assert said["bmc/b1", "unreadable_count"] == 2 and faults(found) == set()


def test_links_that_point_out_of_the_bmc_are_not_followed() -> None:
    with peer(node()) as elsewhere:
        away = [
            f"{elsewhere.address}{V1}/Chassis", f"//127.0.0.1{V1}", "/redfish/../etc", "/admin", 7,
            "/redfish/v1/%2e%2e/x", "/redfish/v1/a b", "/redfish//127.0.0.1/x",
        ]  # fmt: skip
        for link in away:
            with peer(root(Chassis={"@odata.id": link})) as running:
                (found,) = poller(bmc(running.address)).poll(0.0)
                assert found.state == "ok" and running.paths() == [f"{V1}/"]
        assert elsewhere.asked == []


def test_a_tree_without_an_end_is_left_after_a_number_of_requests() -> None:
    tree = root(Chassis=ref(f"{V1}/Chassis"))
    tree[f"{V1}/Chassis"] = {
        "Members": [ref(f"{V1}/Chassis")] * 2_000,
        "Members@odata.nextLink": f"{V1}/Chassis",
    }
    with peer(tree) as running:
        (found,) = poller(bmc(running.address)).poll(0.0)
        assert len(running.asked) == 400
    assert found.state == "ok"


def test_a_session_is_begun_used_and_ended() -> None:
    sessions = f"{V1}/SessionService/Sessions"
    tree = node()
    tree[f"POST {sessions}"] = Answer(201, b"{}", {"X-Auth-Token": "t0", "Location": f"{sessions}/7"})
    tree[f"DELETE {sessions}/7"] = Answer(204)
    with peer(tree) as running:
        login = Login(running.address, "session", "reader", "secret", insecure=True)
        (found,) = poller(Bmc("b1", login)).poll(0.0)
        assert found.state == "ok"
        assert running.asked[0][:2] == ("POST", sessions)
        assert {headers["X-Auth-Token"] for method, _, headers in running.asked[1:]} == {"t0"}
        assert running.asked[-1][:2] == ("DELETE", f"{sessions}/7")


def test_a_session_is_ended_also_when_the_look_runs_out_of_time() -> None:
    sessions = f"{V1}/SessionService/Sessions"
    tree = {
        f"POST {sessions}": Answer(201, b"{}", {"X-Auth-Token": "t0", "Location": f"{sessions}/7"}),
        f"DELETE {sessions}/7": Answer(204),
        V1: Answer(hang_s=30.0),
    }
    with peer(tree) as running:
        login = Login(running.address, "session", "reader", "secret", insecure=True)
        (found,) = poller(Bmc("b1", login), look_s=0.6).poll(0.0)
        assert found.state == "timeout"
        assert running.paths("DELETE") == [f"{sessions}/7"]


def test_no_more_bmcs_are_asked_at_once_than_allowed() -> None:
    at_once: list[int] = []
    busy: list[int] = []

    def answer(headers: dict[str, str]) -> Answer:
        busy.append(1)
        at_once.append(len(busy))
        time.sleep(0.02)
        busy.pop()
        return Answer(body=json.dumps({"RedfishVersion": "1.17.0"}).encode())

    with peer({V1: answer}) as running:
        bmcs = [bmc(running.address, f"b{n}") for n in range(12)]
        assert len(list(poller(*bmcs, concurrency=3).poll(0.0))) == 12
    assert max(at_once) <= 3


def test_who_stops_reading_leaves_nothing_running() -> None:
    with peer(node()) as quick, peer({V1: Answer(hang_s=30.0)}) as hung:
        asking = poller(bmc(quick.address, "a"), bmc(hung.address, "b"))
        reading = asking.poll(0.0)
        assert next(reading).device.name == "a"
        reading.close()
