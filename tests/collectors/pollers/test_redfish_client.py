"""How BMCs are asked: few requests, bounded ones, and what the poller bears from those that misbehave."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from collectors.pollers.redfish import Bmc
from collectors.pollers.redfish_client import BODY_MAX_BYTES, Login
from tests.collectors.pollers.http_peer import Answer, peer
from tests.collectors.pollers.redfish_looks import PSU, bmc, faults, look, poller, told, values
from tests.collectors.pollers.redfish_trees import V1, log_entry, node, ref, root


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
