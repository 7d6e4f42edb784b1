"""Switches over gNMI, against a real server: OpenConfig as EOS tells it, SONiC's databases, TLS, refusals."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme
from hypothesis import given
from hypothesis import strategies as st

from collectors.pollers import switch_openconfig as openconfig
from collectors.pollers import switch_sonic as sonic
from collectors.pollers.device import ConfigError, DeviceReading
from collectors.pollers.switch_facts import Neighbour
from collectors.pollers.switch_gnmi import from_config
from collectors.pollers.switch_gnmi_leaves import _flat, _unwrapped, local
from collectors.pollers.switch_poller import SwitchPoller
from collectors.sources.counters import Count
from tests.collectors.pollers.gnmi_peer import Answer, GnmiPeer

PORT = "interfaces|interface[name=Ethernet1/1]"
STATE = {
    "openconfig-interfaces:name": "Ethernet1/1",
    "openconfig-interfaces:type": "iana-if-type:ethernetCsmacd",
    "openconfig-interfaces:admin-status": "UP",
    "openconfig-interfaces:oper-status": "UP",
    "openconfig-interfaces:description": "to gtn-0101",
    "openconfig-interfaces:counters": {
        "in-octets": "18446744073709551000",
        "out-octets": "1000",
        "in-discards": "0",
        "out-discards": "17",
        "carrier-transitions": "3",
    },
}
ETHERNET = {
    "openconfig-if-ethernet:port-speed": "openconfig-if-ethernet:SPEED_400GB",
    "openconfig-if-ethernet:counters": {"in-mac-pause-frames": "5"},
}
NEIGHBOURS = {
    "openconfig-lldp:neighbor": [
        {
            "id": "1",
            "state": {
                "system-name": "gtn-0101",
                "port-id": "aabb.cc00.0001",
                "port-description": "mlx5_0",
                "chassis-id": "aa:bb:cc:00:00:00",
            },
        }
    ]
}
QOS = {
    "openconfig-qos:interface": [
        {
            "interface-id": "Ethernet1/1",
            "output": {
                "queues": {
                    "queue": [
                        {
                            "name": "Ethernet1/1:3",
                            "state": {
                                "transmit-octets": "900",
                                "dropped-pkts": "4",
                                "max-queue-len": "70000",
                            },
                        }
                    ]
                }
            },
        }
    ]
}
OPTICS = {
    "physical-channels": {
        "channel": [{"index": 1, "state": {"input-power": {"instant": "-1.25"}}}],
    },
    "state": {"fec-uncorrectable-blocks": "2"},
}
EOS: dict[str, list[Answer]] = {
    openconfig.REQUIRED[0]: [
        (f"{PORT}|state", STATE),
        ("interfaces|interface[name=Loopback0]|state", {"type": "softwareLoopback", "oper-status": "UP"}),
    ],
    openconfig.OPTIONAL[0]: [(f"{PORT}|ethernet|state", ETHERNET)],
    openconfig.OPTIONAL[1]: [("lldp|interfaces|interface[name=Ethernet1/1]|neighbors", NEIGHBOURS)],
    openconfig.OPTIONAL[2]: [("qos|interfaces", QOS)],
    openconfig.OPTIONAL[3]: [("components|component[name=Ethernet1/1]|transceiver", OPTICS)],
    openconfig.OPTIONAL[4]: [("components|component[name=Ethernet1/1]|state|temperature", {"instant": 51.5})],
    openconfig.OPTIONAL[5]: [("system|state|boot-time", str(1_799_999_000 * 10**9))],
}
QUEUE = {
    "PFC_WD_STATUS": "stormed",
    "PFC_WD_QUEUE_STATS_DEADLOCK_DETECTED": "2",
    "PFC_WD_QUEUE_STATS_TX_DROPPED_PACKETS": "8",
    "PFC_WD_QUEUE_STATS_RX_DROPPED_PACKETS": "1",
    "SAI_QUEUE_STAT_BYTES": "777",
    "SAI_QUEUE_STAT_CURR_OCCUPANCY_BYTES": "120",
    "SAI_QUEUE_STAT_SHARED_WATERMARK_BYTES": "64",
    "SAI_QUEUE_STAT_WRED_ECN_MARKED_PACKETS": "33",
}
COUNTERS = {
    "SAI_PORT_STAT_IF_IN_OCTETS": "18446744073709551615",
    "SAI_PORT_STAT_IF_OUT_OCTETS": "9",
    "SAI_PORT_STAT_PFC_3_RX_PKTS": "0",
    "SAI_PORT_STAT_PFC_3_TX_PKTS": "44",
    "SAI_PORT_STAT_IF_IN_FEC_NOT_CORRECTABLE_FRAMES": "N/A",
}
SONIC: dict[str, list[Answer]] = {
    "COUNTERS_DB/COUNTERS/Ethernet*": [("COUNTERS|Ethernet*", {"Ethernet0": COUNTERS, "Ethernet99": {}})],
    "COUNTERS_DB/COUNTERS/Ethernet*/Queues": [
        (
            "COUNTERS|Ethernet*|Queues",
            {
                "Ethernet0:3": QUEUE,
                "Ethernet0:10": {"SAI_QUEUE_STAT_BYTES": "5"},
                "Ethernet0:3:periodic": QUEUE,
            },
        )
    ],
    "APPL_DB/PORT_TABLE": [
        (
            "PORT_TABLE",
            {
                "Ethernet0": {"oper_status": "up", "admin_status": "up", "speed": "400000", "index": "1"},
                "PortConfigDone": {"count": "1"},
            },
        )
    ],
    "APPL_DB/LLDP_ENTRY_TABLE": [
        (
            "LLDP_ENTRY_TABLE",
            {"Ethernet0": {"lldp_rem_sys_name": "gtn-0101", "lldp_rem_port_id": "mlx5_0"}},
        )
    ],
    "STATE_DB/TRANSCEIVER_DOM_SENSOR": [
        (
            "TRANSCEIVER_DOM_SENSOR",
            {"Ethernet0": {"temperature": "48.1", "rx1power": "-inf", "rx2power": "-1.5"}},
        )
    ],
    "CONFIG_DB/PORT_QOS_MAP": [("PORT_QOS_MAP", {"Ethernet0": {"pfc_enable": "3,4"}})],
}


@pytest.fixture
def started() -> Iterator[Callable[..., GnmiPeer]]:
    peers: list[GnmiPeer] = []

    def start(answers: dict[str, list[Answer]], **told: Any) -> GnmiPeer:
        peers.append(GnmiPeer(answers, **told).start())
        return peers[-1]

    yield start
    for peer in peers:
        peer.stop()


def poller(folder: Path, *peers: GnmiPeer, **settings: object) -> SwitchPoller:
    targets = [
        {"name": f"leaf-{at}", "address": "127.0.0.1", "port": peer.port} for at, peer in enumerate(peers, 1)
    ]
    return from_config({"targets": targets, "insecure": True, "look_s": 5.0, **settings}, folder)


def polled(one: SwitchPoller, at_s: float = 0.0) -> dict[str, DeviceReading]:
    return {answer.device.name: answer for answer in one.poll(at_s)}


def value(answer: DeviceReading, metric: str, **labels: str) -> tuple[float | None, str]:
    (found,) = [
        (sample.value, sample.quality)
        for sample in answer.reading.samples
        if (sample.metric, sample.labels) == (metric, labels)
    ]
    return found


def test_openconfig_is_one_call_for_everything(started: Callable[..., GnmiPeer], tmp_path: Path) -> None:
    peer = started(EOS)
    one = poller(tmp_path, peer)
    answer = polled(one)["leaf-1"]
    one.close()
    assert answer.state == "ok"
    assert len(peer.calls) == 1
    assert {s.entity for s in answer.reading.samples} == {"switch/leaf-1", "switchport/leaf-1/Ethernet1/1"}
    assert value(answer, "oper_up_count") == (1, "ok")
    assert value(answer, "rate_gbps") == (400.0, "ok")
    assert value(answer, "tx_discards_total") == (17, "ok")
    assert value(answer, "carrier_changes_total") == (3, "ok")
    assert value(answer, "rx_pause_total") == (5, "ok")
    assert value(answer, "tx_queue3_bytes_per_s") == (None, "first_sample")
    assert value(answer, "tx_queue3_discards_total") == (4, "ok")
    assert value(answer, "buffer_watermark_bytes") == (70_000, "ok")
    assert value(answer, "rx_power_dbm", lane="1") == (-1.25, "ok")
    assert value(answer, "fec_uncorrected_total") == (2, "ok")
    assert value(answer, "module_temperature_c") == (51.5, "ok")
    assert value(answer, "uptime_s") == (1_000.0, "ok")
    peer_of = {"peer": "gtn-0101", "peer_port": "mlx5_0", "peer_mac": "aa:bb:cc:00:00:01"}
    assert value(answer, "neighbour_count", **peer_of) == (1, "ok")


def test_a_branch_that_a_switch_refuses_costs_that_branch(
    started: Callable[..., GnmiPeer], tmp_path: Path
) -> None:
    peer = started({path: said for path, said in EOS.items() if "qos" not in path and "lldp" not in path})
    one = poller(tmp_path, peer)
    first = polled(one)["leaf-1"]
    calls = len(peer.calls)
    second = polled(one, 15.0)["leaf-1"]
    one.close()
    assert first.state == second.state == "ok"
    assert value(second, "module_temperature_c") == (51.5, "ok")
    assert len(peer.calls) == calls + 1, "what was refused is not asked again at the next look"


def test_sonics_databases_tell_pfc_its_watchdog_queues_and_neighbours(
    started: Callable[..., GnmiPeer], tmp_path: Path
) -> None:
    one = poller(tmp_path, started(SONIC), dialect="sonic")
    answer = polled(one)["leaf-1"]
    one.close()
    assert answer.state == "ok"
    assert value(answer, "pfc_watchdog_active_count") == (1, "ok")
    assert value(answer, "pfc_watchdog_drops_total") == (9, "ok")
    assert value(answer, "rx_prio3_pause_total") == (None, "pfc_watchdog")
    assert value(answer, "tx_prio3_pause_total") == (44, "ok")
    assert value(answer, "ecn_marked_total") == (33, "ok")
    assert value(answer, "fec_uncorrected_total") == (None, "not_available")
    assert value(answer, "buffer_used_bytes") == (120, "ok")
    assert value(answer, "rx_power_dbm", lane="1") == (None, "no_light")
    assert value(answer, "neighbour_count", peer="gtn-0101", peer_port="mlx5_0", peer_mac="") == (1, "ok")
    assert {event.kind for event in answer.reading.events} == {"pfc_watchdog", "optics_weak"}
    assert not [sample for sample in answer.reading.samples if "Ethernet99" in sample.entity]


def test_tls_with_the_sites_own_authority_and_a_login(
    started: Callable[..., GnmiPeer], tmp_path: Path
) -> None:
    authority, other = trustme.CA(), trustme.CA()
    server = authority.issue_cert("127.0.0.1")
    chain = b"".join(pem.bytes() for pem in server.cert_chain_pems)
    tls = grpc.ssl_server_credentials([(server.private_key_pem.bytes(), chain)])
    peer = started(EOS, tls=tls, login=("watcher", "a-password"))
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    other.cert_pem.write_to_path(tmp_path / "other.pem")
    states = []
    for ca, password in (("ca.pem", "a-password"), ("ca.pem", "wrong"), ("other.pem", "a-password")):
        (tmp_path / "password").write_text(password)
        (tmp_path / "password").chmod(0o600)
        one = poller(
            tmp_path, peer, insecure=False, ca_file=ca, user="watcher", password_file="password", look_s=3.0
        )
        states.append(polled(one)["leaf-1"].state)
        one.close()
    assert states == ["ok", "refused", "unreachable"]


def test_hung_gone_and_lying_switches_cost_only_themselves(
    started: Callable[..., GnmiPeer], tmp_path: Path
) -> None:
    hung, lying, good = started(EOS, hang_s=1.5), started({path: [] for path in EOS}), started(EOS)
    garbage = started({path: [("a", b"{not json")] for path in EOS})
    gone = GnmiPeer(port=1)
    one = poller(tmp_path, hung, lying, gone, garbage, good, look_s=0.7)
    answers = polled(one)
    one.close()
    states = [answers[f"leaf-{at}"].state for at in range(1, 6)]
    assert states == ["timeout", "no_ports", "unreachable", "no_ports", "ok"]


def test_ports_of_other_kinds_and_bad_names_are_left_out() -> None:
    rows = [
        (("interfaces", "interface", name, "state", "type"), kind)
        for name, kind in (("Ethernet1", "iana-if-type:ethernetCsmacd"), ("Vlan1", "l3ipvlan"), ("a\nb", ""))
    ]
    assert list(openconfig.facts_of(rows).ports) == ["Ethernet1"]


@pytest.mark.parametrize(
    ("leaf", "said", "gbps"),
    [
        ("port-speed", "openconfig-if-ethernet:SPEED_400GB", 400.0),
        ("port-speed", "SPEED_100MB", 0.1),
        ("negotiated-port-speed", "SPEED_800GB", 800.0),
        ("port-speed", "SPEED_UNKNOWN", None),
        ("port-speed", 400, None),
    ],
)
def test_speeds(leaf: str, said: object, gbps: float | None) -> None:
    rows = [
        (("interfaces", "interface", "Ethernet1", "state", "oper-status"), "UP"),
        (("interfaces", "interface", "Ethernet1", "ethernet", "state", leaf), said),
    ]
    assert openconfig.facts_of(rows).ports["Ethernet1"].rate_gbps == gbps


def test_the_same_leaves_whatever_piece_the_value_is() -> None:
    whole = {"openconfig-interfaces:interface": [{"name": "Ethernet1", "state": {"mtu": 9_000}}]}
    expected = [
        (("interfaces", "interface", "Ethernet1", "name"), "Ethernet1"),
        (("interfaces", "interface", "Ethernet1", "state", "mtu"), 9_000),
    ]
    assert list(_flat(("interfaces",), whole, 0)) == expected
    path = ("interfaces", "interface")
    assert list(_flat(path, _unwrapped(path, whole), 0)) == expected
    assert local("Ethernet68:3") == "Ethernet68:3"


def test_pfc_of_each_port_tells_which_priorities_are_lossless() -> None:
    base = ("qos", "interfaces", "interface", "Ethernet0", "pfc", "pfc-priorities", "pfc-priority")
    rows: list[tuple[tuple[str, ...], Any]] = [
        (("interfaces", "interface", "Ethernet0", "state", "oper-status"), "UP"),
        ((*base, "3", "state", "enable"), True),
        ((*base, "4", "state", "enable"), False),
        ((*base, "3", "state", "statistics", "pause-frames-rx"), "12"),
    ]
    port = openconfig.facts_of(rows).ports["Ethernet0"]
    assert port.lossless == frozenset({3})
    assert port.counters["rx_prio3_pause"] == Count(12)


def test_ports_of_one_module_have_their_own_lanes() -> None:
    rows: list[tuple[tuple[str, ...], Any]] = []
    for port, channel in (("Ethernet1/1", 0), ("Ethernet1/2", 1)):
        rows.append((("interfaces", "interface", port, "state", "transceiver"), "Module1"))
        rows.append((("interfaces", "interface", port, "state", "physical-channel"), channel))
    base = ("components", "component", "Module1", "transceiver", "physical-channels", "channel")
    rows += [((*base, str(lane), "state", "input-power", "instant"), -1.0 - lane) for lane in (0, 1)]
    ports = openconfig.facts_of(rows).ports
    assert [ports[name].rx_power_dbm for name in ("Ethernet1/1", "Ethernet1/2")] == [{"0": -1.0}, {"1": -2.0}]


def test_a_neighbour_without_a_name_is_its_address() -> None:
    base = ("lldp", "interfaces", "interface", "Ethernet0", "neighbors", "neighbor", "1", "state")
    rows = [
        (("interfaces", "interface", "Ethernet0", "state", "oper-status"), "UP"),
        ((*base, "chassis-id"), "AABB.CC00.0000"),
        ((*base, "port-id"), "eth0"),
    ]
    assert openconfig.facts_of(rows).ports["Ethernet0"].neighbours == [Neighbour("aa:bb:cc:00:00:00", "eth0")]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)
NAMES = st.sampled_from(
    ["interfaces", "interface", "Ethernet0", "state", "counters", "in-octets", "qos", "output", "queues",
     "queue", "lldp", "neighbors", "neighbor", "components", "component", "temperature", "instant", "system",
     "boot-time", "COUNTERS", "PORT_TABLE", "speed", "PFC_WD_STATUS", "Ethernet0:3", "Queues"]
)  # fmt: skip


@given(st.lists(st.tuples(st.lists(NAMES, max_size=9).map(tuple), JSON), max_size=12))
def test_leaves_of_a_lying_switch_never_raise(rows: list[tuple[tuple[str, ...], Any]]) -> None:
    flat = [leaf for path, said in rows for leaf in _flat(path, _unwrapped(path, said), 0)]
    openconfig.facts_of(flat, 10**18)
    sonic.facts_of({"COUNTERS_DB": flat, "APPL_DB": flat, "STATE_DB": flat, "CONFIG_DB": flat})


def test_without_the_extra_one_line_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pygnmi", None)
    with pytest.raises(ConfigError, match=r"clusterwatch\[pollers\]"):
        from_config({"targets": [{"name": "leaf-1"}]}, tmp_path)


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"dialect": "ios"}, "dialect"),
        ({"insecure": True, "ca_file": "ca.pem"}, "exclude"),
        ({"ca_file": "none.pem"}, "ca_file"),
        ({"tls": True}, "tls"),
    ],
)
def test_a_bad_setting_is_named(settings: dict[str, object], key: str, tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text(json.dumps({}))
    with pytest.raises(ConfigError, match=key):
        from_config({"targets": [{"name": "leaf-1"}], **settings}, tmp_path)
