"""UFM: the same fabric as the fabric's own tools tell it, from a server that answers, refuses or lies."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.pollers import ib_topology, ufm_model
from collectors.pollers.command import CommandError
from collectors.pollers.device import ConfigError, DeviceReading
from collectors.pollers.ib_cluster import IbClusterPoller
from collectors.pollers.ufm import from_config
from collectors.sources.base import Sample
from tests.collectors.pollers import fabric_texts
from tests.collectors.pollers.fabric_texts import Model
from tests.collectors.pollers.http_peer import Answer, Peer, peer

TOKEN = "c3VwZXItc2VjcmV0"
LEAF = "ib-leaf-00"
ALARM = {
    "id": 41, "name": "Link is Down", "severity": "Critical",
    "object_path": "default / Switch: ib-leaf-00 / 3", "type": "329",
    "description": "Link went down: 3 -> ib-spine-00:1",
}  # fmt: skip


def port(model: Model, switch: int, number: int) -> dict[str, Any]:
    """A row of /resources/ports as UFM Enterprise 6 writes it, without what is not read."""
    linked = {at: (far, far_port) for at, far, far_port in model.linked(switch)}
    guid = f"{model.guid(switch):016x}"
    row: dict[str, Any] = {
        "description": "Switch IB Port", "number": number, "dname": str(number), "name": f"{guid}_{number}",
        "systemID": guid, "guid": guid, "physical_state": "Polling", "logical_state": "Down", "peer": "N/A",
        "active_width": "None", "active_speed": "None", "enabled_width": ["1x", "2x", "4x"],
        "peer_node_guid": "N/A", "peer_guid": "N/A", "peer_node_description": "N/A", "peer_port_dname": "N/A",
    }  # fmt: skip
    if number not in linked:
        return row
    far, far_port = linked[number]
    far_guid = f"{model.guid(far) if far >= 0 else model.adapter(-1 - far):016x}"
    words = f"ib-{far}:{far_port}" if far >= 0 else model.adapter_words(-1 - far)
    return row | {
        "physical_state": "Link Up", "logical_state": "Active", "peer": f"{far_guid}_{far_port}",
        "active_width": f"{model.width.get((switch, number), 4)}x", "active_speed": "NDR",
        "peer_node_guid": far_guid, "peer_guid": far_guid, "peer_node_description": words,
    }  # fmt: skip


def csv(model: Model, words: int) -> str:
    head = (
        "timestamp,source_id,node_guid,port_guid,port_num,PortXmitDataExtended,SymbolErrorCounterExtended,x,"
    )
    lines = [head + "LinkDownedCounter"]
    for switch in model.switches():
        for number in range(1, model.ports + 1):
            guid = f"0x{model.guid(switch):x}"
            lines.append(f"1796277202000000,0x1,{guid},{guid},{number},{words},70000,a b,255")
    lines.append("1796277202000000,0x1,0xe8ebd30300700000,0xe8ebd30300700000,1,5,5,,0")
    return "\n".join(lines) + "\n"


def tree(model: Model, base: str = "/ufmRestV3", words: int = 0) -> dict[str, Any]:
    systems = [
        {
            "guid": f"{model.guid(one):016x}",
            "type": "switch",
            "system_name": model.words(one).split(":")[0][4:],
        }
        for one in model.switches()
    ]
    found: dict[str, Any] = {
        f"{base}/resources/systems": [
            *systems,
            {"guid": "e8ebd30300700000", "type": "host", "system_name": "h"},
        ],
        f"{base}/app/alarms": [ALARM],
        "/csv/metrics": Answer(body=csv(model, words).encode()),
    }
    for one in model.switches():
        rows = [port(model, one, number) for number in range(1, model.ports + 1)]
        found[f"{base}/resources/ports?system={model.guid(one):016x}"] = rows
    return found


@contextlib.contextmanager
def site(folder: Path, served: dict[str, Any], **config: Any) -> Iterator[tuple[IbClusterPoller, Peer]]:
    (folder / "token").write_text(TOKEN)
    (folder / "token").chmod(0o600)
    with peer(served) as running:
        keys = {"address": running.address, "insecure": True, "telemetry_address": running.address}
        yield from_config(keys | {"token_file": "token"} | config, folder), running


def look(poller: IbClusterPoller) -> dict[str, DeviceReading]:
    return {f"{told.device.kind}/{told.device.name}": told for told in poller.poll(0.0)}


def value(told: DeviceReading, number: int, metric: str) -> Sample:
    entity = f"switchport/{told.device.name}/{number}"
    (found,) = [one for one in told.reading.samples if (one.entity, one.metric) == (entity, metric)]
    return found


def kinds(told: DeviceReading) -> list[str]:
    return [event.kind for event in told.reading.events]


def test_ufm_tells_the_fabric_as_its_own_tools_do(tmp_path: Path) -> None:
    model = Model()
    with site(tmp_path, tree(model)) as (poller, running):
        told = look(poller)
    assert sorted(told) == ["fabric/ib", "switch/ib-leaf-00", "switch/ib-leaf-01", "switch/ib-spine-00"]
    assert {one.metric: one.value for one in told["fabric/ib"].reading.samples} == {
        "switches_count": 3, "adapters_count": 4, "adapter_links_count": 4, "switch_links_count": 2,
    }  # fmt: skip
    leaf = told[f"switch/{LEAF}"]
    assert value(leaf, 2, "neighbour_count").labels == {
        "peer": "gtn-0101", "peer_port": "mlx5_1", "peer_mac": "", "peer_guid": "e8ebd30300700010/1",
    }  # fmt: skip
    assert value(leaf, 3, "neighbour_count").labels == {
        "peer": "ib-spine-00", "peer_port": "1", "peer_mac": "",
    }  # fmt: skip
    assert [value(leaf, number, "oper_up_count").value for number in (1, 8)] == [1, 0]
    assert value(leaf, 1, "rate_gbps").value == 400.0
    assert kinds(leaf) == []
    assert {headers.get("Authorization") for _, path, headers in running.asked if "/ufm" in path} == {
        f"Basic {TOKEN}"
    }
    assert all("Authorization" not in headers for _, path, headers in running.asked if path == "/csv/metrics")


def test_counters_come_from_the_telemetry_with_their_widths(tmp_path: Path) -> None:
    served = tree(Model())
    with site(tmp_path, served) as (poller, _):
        look(poller)
        served |= tree(Model(), words=1_000_000)
        leaf = look(poller)[f"switch/{LEAF}"]
    per_s = value(leaf, 1, "tx_bytes_per_s").value
    assert per_s is not None and per_s > 0
    assert value(leaf, 1, "symbol_error_total").value == 70_000
    assert (value(leaf, 1, "link_downed_total").value, value(leaf, 1, "link_downed_total").quality) == (
        None, "saturated",
    )  # fmt: skip
    assert "rx_errors_total" not in {one.metric for one in leaf.reading.samples}


def test_a_lost_cable_and_ufms_own_alarms_are_told(tmp_path: Path) -> None:
    served = tree(Model())
    with site(tmp_path, served) as (poller, _):
        look(poller)
        served |= tree(Model(cut={(0, 3)}))
        told = look(poller)
    assert kinds(told[f"switch/{LEAF}"]) == ["port_down"]
    (alarm,) = told["fabric/ib"].reading.events
    assert (alarm.entity, alarm.kind, alarm.severity, alarm.standing) == (
        "ufm_alarm/41", "ufm_alarm", "critical", True,
    )  # fmt: skip
    assert alarm.message.startswith("Link is Down: default / Switch: ib-leaf-00 / 3")


def test_a_link_with_fewer_lanes_than_it_may_have_is_degraded(tmp_path: Path) -> None:
    with site(tmp_path, tree(Model(width={(0, 1): 2}))) as (poller, _):
        (event,) = look(poller)[f"switch/{LEAF}"].reading.events
    assert (event.kind, event.attributes["width_speed"], event.attributes["could_be"]) == (
        "link_degraded", "2xNDR", "4X",
    )  # fmt: skip


def test_a_switch_whose_ports_ufm_does_not_tell_is_silent_and_not_down(tmp_path: Path) -> None:
    served = tree(Model())
    with site(tmp_path, served) as (poller, _):
        look(poller)
        served["/ufmRestV3/resources/ports?system=b83fd20300000000"] = Answer(500)
        told = look(poller)
    assert told[f"switch/{LEAF}"].state == "UFM: /ufmRestV3/resources/ports: http_500"
    assert kinds(told[f"switch/{LEAF}"]) == []
    assert "fabric_incomplete" in kinds(told["fabric/ib"])
    assert kinds(told["switch/ib-spine-00"]) == []


@pytest.mark.parametrize(
    ("path", "says", "missing"),
    [
        ("/csv/metrics", Answer(404), "telemetry"),
        ("/csv/metrics", Answer(body=b"no,such,columns\n1,2,3\n"), "telemetry"),
        ("/csv/metrics", Answer(body=b"x" * 200_000), "telemetry"),
        ("/ufmRestV3/app/alarms", Answer(body=b"[" * 100_000), "alarms"),
        ("/ufmRestV3/app/alarms", {"error": 1}, "alarms"),
    ],
)
def test_what_is_not_needed_costs_itself_only(tmp_path: Path, path: str, says: Any, missing: str) -> None:
    with site(tmp_path, tree(Model()) | {path: says}) as (poller, _):
        told = look(poller)
    events = [event for event in told["fabric/ib"].reading.events if event.kind == "fabric_incomplete"]
    assert [event.attributes["missing"] for event in events] == [[missing]]
    assert value(told[f"switch/{LEAF}"], 1, "oper_up_count").value == 1


@pytest.mark.parametrize(
    ("says", "words"),
    [
        (Answer(401), "auth_failed"),
        (Answer(503), "http_503"),
        (Answer(302, headers={"Location": "http://elsewhere/"}), "http_302"),
        (Answer(body=b"<html>"), "no JSON"),
        ([], "no switch"),
        ([{"type": "switch", "guid": "N/A"}, 3, None], "no switch"),
        (Answer(hang_s=5.0), "timeout"),
    ],
)
def test_a_ufm_that_refuses_or_hangs_is_a_reason(tmp_path: Path, says: Any, words: str) -> None:
    served = tree(Model()) | {"/ufmRestV3/resources/systems": says}
    with (
        site(tmp_path, served, look_s=1.0) as (poller, _),
        pytest.raises(CommandError, match=words),
    ):
        look(poller)


def test_a_name_and_password_are_used_below_the_other_path(tmp_path: Path) -> None:
    (tmp_path / "pw").write_text("secret")
    (tmp_path / "pw").chmod(0o600)
    with peer(tree(Model(), "/ufmRest")) as running:
        config = {"address": running.address, "insecure": True, "user": "reader", "password_file": "pw"}
        assert len(look(from_config(config, tmp_path))) == 4
        assert running.asked[0][2]["Authorization"].startswith("Basic ")


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"address": "https://ufm"}, "needs token_file, or user"),
        ({"address": "https://ufm", "user": "a"}, "user needs password_file"),
        ({"address": "http://ufm", "token_file": "token"}, "insecure = true"),
        ({"address": "https://ufm", "token_file": "token", "telemetry_path": "csv"}, "must begin with /"),
        ({"token_file": "token"}, "address is missing"),
        ({"address": "https://ufm", "token_file": "token", "password": "x"}, "unknown key"),
    ],
)
def test_bad_settings_name_their_key(tmp_path: Path, config: dict[str, Any], words: str) -> None:
    (tmp_path / "token").write_text(TOKEN)
    (tmp_path / "token").chmod(0o600)
    with pytest.raises(ConfigError, match=words):
        from_config(config, tmp_path)


ROW = st.dictionaries(
    st.sampled_from(list(port(Model(), 0, 1)) + ["type", "id", "severity", "system_name"]),
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.lists(st.integers()),
    max_size=8,
)


@given(st.lists(ROW, max_size=4))
def test_any_rows_are_borne(rows: list[dict[str, Any]]) -> None:
    ufm_model.switches(rows)
    ufm_model.alarms(rows)
    fabric = ib_topology.parsed(fabric_texts.ibnetdiscover(Model()).encode())
    for number in ufm_model.add_ports(fabric, next(iter(fabric.switches)), rows):
        assert 0 < number <= ib_topology.PORT_MAX


@given(st.lists(st.text(alphabet='0123456789abcdefx,"_ -', max_size=60), max_size=6))
def test_any_lines_of_csv_are_borne(lines: Sequence[str]) -> None:
    fabric = ib_topology.parsed(fabric_texts.ibnetdiscover(Model()).encode())
    rows = ufm_model.CounterRows(fabric)
    for line in ("node_guid,port_num,PortXmitDataExtended", *lines, "0xb83fd20300000000,1,5"):
        rows.add(line)
    assert rows.found.counts(["b83fd20300000000"], 1)["tx_bytes"].value == 20
