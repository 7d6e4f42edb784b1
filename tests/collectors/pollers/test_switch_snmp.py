"""Switches over SNMP, against a real snmpd; the tables of a switch that it has not are served by a script."""

from __future__ import annotations

import math
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.pollers import switch_snmp_tables as mib
from collectors.pollers.device import ConfigError, DeviceReading
from collectors.pollers.switch_facts import Port
from collectors.pollers.switch_poller import SwitchPoller
from collectors.pollers.switch_snmp import NAME, from_config
from collectors.pollers.switch_snmp_walk import Column, Oid, Value
from collectors.sources.counters import Count
from tests.collectors.pollers.snmp_peer import COMMUNITY, PASSWORD, SNMPD, USER, SnmpPeer

needs_snmpd = pytest.mark.skipif(SNMPD is None, reason="snmpd is not installed")


def secret(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(f"{text}\n", encoding="utf-8")
    path.chmod(0o600)
    return name


def target(name: str, port: int) -> dict[str, object]:
    return {"name": name, "address": "127.0.0.1", "port": port}


def poller(folder: Path, *targets: dict[str, object], **settings: object) -> SwitchPoller:
    if "user" not in settings and "community_file" not in settings:
        settings["community_file"] = secret(folder, "community", COMMUNITY)
    return from_config({"targets": list(targets), **settings}, folder)


def polled(one: SwitchPoller, at_s: float = 0.0) -> dict[str, DeviceReading]:
    return {answer.device.name: answer for answer in one.poll(at_s)}


def until_up(one: SwitchPoller) -> dict[str, DeviceReading]:
    """snmpd listens a moment after it starts; what is asked before that is refused or lost."""
    for _ in range(20):
        answers = polled(one)
        if all(answer.state == "ok" for answer in answers.values()):
            break
        time.sleep(0.05)
    return answers


def value(answer: DeviceReading, port: str, metric: str, **labels: str) -> tuple[float | None, str]:
    (found,) = [
        (sample.value, sample.quality)
        for sample in answer.reading.samples
        if sample.entity == f"switchport/{answer.device.name}/{port}"
        and (sample.metric, sample.labels) == (metric, labels)
    ]
    return found


def fill(peer: SnmpPeer) -> None:
    """Two ports of a leaf: one with everything, one that lost its link."""
    peer.add_port(1, "Ethernet1/1", 2**40)
    peer.add_port(2, "Ethernet2/1", 2**41)
    peer.set(mib.OPER, 2, integer=2)
    peer.set(mib.ALIAS, 2, text="to gtn-0102 mlx5_0")
    peer.set(mib.COUNTER_COLUMNS[0], 1, counter=7)
    peer.set(mib.PRIORITY_COLUMNS[0], 1, 3, counter64=11)
    peer.set(mib.PRIORITY_COLUMNS[1], 1, 3, counter64=12)
    peer.set(mib.QUEUES, 1, 2, 4, 2, counter64=2**35)
    peer.set(mib.QUEUES, 1, 2, 4, 8, counter64=1)
    for column, kind, said in zip(mib.SENSOR_COLUMNS[:5], ("integer",) * 5, (6, 8, 4, 5_000, 1), strict=True):
        peer.rows[(*column, 500)] = (kind, str(said))
    peer.set(mib.SENSOR_COLUMNS[5], 500, text="DOM RX Power Sensor for Ethernet1/1/2")
    peer.set(mib.LLDP_COLUMNS[0], 17, text="Ethernet1/1")
    peer.set(mib.LLDP_COLUMNS[4], 0, 17, 1, integer=3)
    peer.rows[(*mib.LLDP_COLUMNS[5], 0, 17, 1)] = ("octet", "aa bb cc 00 00 01")
    peer.set(mib.LLDP_COLUMNS[6], 0, 17, 1, text="mlx5_0")
    peer.set(mib.LLDP_COLUMNS[7], 0, 17, 1, text="gtn-0101")
    peer.save()


@pytest.fixture(scope="module")
def peer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SnmpPeer]:
    if SNMPD is None:
        pytest.skip("snmpd is not installed")
    peer = SnmpPeer(tmp_path_factory.mktemp("snmp"))
    try:
        fill(peer)
        yield peer
    finally:
        peer.stop()


@needs_snmpd
def test_a_real_agent_tells_ports_counters_pause_neighbours_and_light(peer: SnmpPeer, tmp_path: Path) -> None:
    one = poller(tmp_path, target("leaf-1", peer.port), look_s=5.0)
    answer = until_up(one)["leaf-1"]
    one.close()
    assert (answer.state, answer.device.kind) == ("ok", "switch")
    assert value(answer, "Ethernet1/1", "oper_up_count") == (1, "ok")
    assert value(answer, "Ethernet1/1", "rate_gbps") == (400.0, "ok")
    assert value(answer, "Ethernet1/1", "rx_discards_total") == (7, "ok")
    assert value(answer, "Ethernet1/1", "tx_prio3_pause_total") == (11, "ok")
    assert value(answer, "Ethernet1/1", "rx_prio3_pause_total") == (12, "ok")
    assert value(answer, "Ethernet1/1", "tx_queue3_bytes_per_s")[1] in ("first_sample", "ok")
    power, quality = value(answer, "Ethernet1/1", "rx_power_dbm", lane="2")
    assert power == pytest.approx(10 * math.log10(0.5)) and quality == "ok"
    neighbour = {"peer": "gtn-0101", "peer_port": "mlx5_0", "peer_mac": "aa:bb:cc:00:00:01"}
    assert value(answer, "Ethernet1/1", "neighbour_count", **neighbour) == (1, "ok")
    assert [event.kind for event in answer.reading.events] == [
        "port_down",
    ]
    assert answer.reading.events[0].entity == "switchport/leaf-1/Ethernet2/1"


@needs_snmpd
def test_version_3_with_a_user_and_two_looks_give_rates(peer: SnmpPeer, tmp_path: Path) -> None:
    settings: dict[str, object] = {
        "user": USER,
        "auth_password_file": secret(tmp_path, "auth", PASSWORD),
        "privacy_password_file": secret(tmp_path, "privacy", PASSWORD),
    }
    one = poller(tmp_path, target("leaf-1", peer.port), look_s=5.0, **settings)
    assert until_up(one)["leaf-1"].state == "ok"
    before = peer.rows[(*mib.HC_OUT, 1)]
    peer.set(mib.HC_OUT, 1, counter64=2**40 + 250_000_000_000)
    peer.set(mib.QUEUES, 1, 2, 4, 2, counter64=2**35 + 5_000_000_000)
    peer.save()
    answer = polled(one, 10.0)["leaf-1"]
    peer.rows[(*mib.HC_OUT, 1)] = before
    peer.save()
    one.close()
    assert value(answer, "Ethernet1/1", "tx_utilization_ratio")[0] == pytest.approx(0.5, rel=0.3)
    assert value(answer, "Ethernet1/1", "tx_queue3_bytes_per_s")[0] == pytest.approx(5e8, rel=0.3)


@needs_snmpd
def test_the_machines_own_agent_is_a_switch_of_its_own(tmp_path: Path) -> None:
    own = SnmpPeer(tmp_path / "own", own=True)
    one = poller(tmp_path, target("this", own.port), look_s=5.0)
    try:
        for _ in range(20):
            answer = polled(one)["this"]
            if answer.state in ("ok", "no_ports"):
                break
            time.sleep(0.05)
    finally:
        own.stop()
        one.close()
    assert answer.state in ("ok", "no_ports"), "no_ports: a machine that has the loopback only"
    assert not [sample for sample in answer.reading.samples if sample.entity.endswith("/lo")]


@needs_snmpd
def test_a_hung_a_wrong_and_a_nameless_switch_cost_only_themselves(peer: SnmpPeer, tmp_path: Path) -> None:
    hung = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    hung.bind(("127.0.0.1", 0))
    nameless: dict[str, object] = {"name": "gone", "address": "no-such-switch.invalid"}
    one = poller(
        tmp_path, target("hung", hung.getsockname()[1]), nameless, target("leaf-1", peer.port),
        look_s=0.8, concurrency=2,
    )  # fmt: skip
    answers = until_up_except(one, "leaf-1")
    again = list(one.poll(10.0))
    one.close()
    hung.close()
    assert answers["hung"].state == "timeout" and not answers["hung"].reading.samples
    assert answers["gone"].state in ("no such address", "timeout")
    assert again[0].device.name == "leaf-1", "those that failed are asked last"


def until_up_except(one: SwitchPoller, name: str) -> dict[str, DeviceReading]:
    for _ in range(10):
        answers = polled(one)
        if answers[name].state == "ok":
            break
    return answers


@needs_snmpd
def test_a_wrong_password_is_refused(peer: SnmpPeer, tmp_path: Path) -> None:
    wrong = secret(tmp_path, "auth", "not-the-password")
    one = poller(tmp_path, target("leaf-1", peer.port), look_s=3.0, user=USER, auth_password_file=wrong)
    states = {polled(one)["leaf-1"].state for _ in range(2)}
    one.close()
    assert "refused" in states


Said = Mapping[Oid, Mapping[Oid, Value]]


def tables_of(*parts: Said) -> dict[Oid, Column]:
    return {oid: dict(rows) for part in parts for oid, rows in part.items()}


def port_1(*parts: Said) -> Port:
    return mib.facts_of(tables_of(PORT_1, *parts), None).ports["Ethernet1"]


PORT_1: Said = {mib.NAME: {(1,): b"Ethernet1"}, mib.OPER: {(1,): 1}, mib.HIGH_SPEED: {(1,): 400_000}}


def test_bytes_of_32_bits_are_unusable_on_a_fast_port() -> None:
    narrow: Said = {mib.IN_32: {(1,): 5}}
    assert mib.lacks_64_bits(tables_of(PORT_1, narrow))
    port = port_1(narrow)
    assert port.counters["rx_bytes"] == Count(None, "too_narrow")
    assert "tx_bytes" not in port.counters, "absent, not 0"
    assert port_1(narrow, {mib.HIGH_SPEED: {(1,): 10}}).counters["rx_bytes"] == Count(5)


def test_ports_are_ethernet_ports_each_name_once() -> None:
    tables: Said = {
        mib.NAME: {(1,): b"lo", (2,): b"Ethernet1", (3,): b"Ethernet1", (4,): b"bad\x00name", (5,): b""},
        mib.DESCR: {(4,): b"Ethernet4", (5,): b""},
        mib.TYPE: {(1,): 24, (2,): 6, (3,): 6, (4,): 6, (5,): 6},
        mib.OPER: {(2,): 1, (3,): 2},
    }
    facts = mib.facts_of(tables_of(tables), 4_200)
    assert list(facts.ports) == ["Ethernet1", "Ethernet4", "5"]
    assert facts.ports["Ethernet1"].oper_up is True
    assert facts.uptime_s == 42.0


@pytest.mark.parametrize(
    ("high", "low", "gbps"),
    [(400_000, 4_294_967_295, 400.0), (0, 1_000_000_000, 1.0), (0, 4_294_967_295, None), (None, None, None)],
)
def test_the_rate_is_never_the_largest_number(high: int | None, low: int | None, gbps: float | None) -> None:
    said = {mib.HIGH_SPEED: high, mib.SPEED: low}
    rates: Said = {oid: {} if rate is None else {(1,): rate} for oid, rate in said.items()}
    assert port_1(rates).rate_gbps == gbps


def test_a_discontinuity_is_another_epoch() -> None:
    first, second = (port_1({mib.DISCONTINUITY: {(1,): ticks}}) for ticks in (0, 99))
    assert first.epoch != second.epoch


def test_an_alias_that_is_a_ports_name_is_no_description() -> None:
    meant = [
        port_1({mib.ALIAS: {(1,): alias}}).is_meant_up
        for alias in (b"to gtn-0101", b"etp1", b"Ethernet1", b"")
    ]
    assert meant == [True, False, False, False]


def test_lldp_numbers_that_have_other_names_are_not_taken_for_ports() -> None:
    remote: Said = {mib.LLDP_COLUMNS[7]: {(0, 1, 1): b"gtn-0101"}}
    assert port_1(remote).neighbours[0].peer == "gtn-0101"
    assert not port_1(remote, {mib.LLDP_COLUMNS[0]: {(1,): b"Management1"}}).neighbours


def test_spectrums_own_tables_tell_how_long_a_priority_was_paused() -> None:
    said = zip(mib.PRIORITY_COLUMNS[2:], (5, 9_000, 6, 8_000, 700), strict=True)
    counters = port_1({oid: {(1, 3): number, (1, 8): 1, (1,): 1} for oid, number in said}).counters
    assert {name: count.value for name, count in counters.items()} == {
        "rx_prio3_pause": 5,
        "rx_prio3_pause_duration": 9_000,
        "tx_prio3_pause": 6,
        "tx_prio3_pause_duration": 8_000,
        "tx_queue3_bytes": 700,
    }


def test_light_of_no_watts_is_minus_infinity_and_a_broken_sensor_is_absent() -> None:
    columns: dict[Oid, Column] = {oid: {} for oid in mib.SENSOR_COLUMNS}
    for row, (watts, status) in {(1,): (0, 1), (2,): (10_000, 1), (3,): (1, 3)}.items():
        said: tuple[Value, ...] = (
            6,
            8,
            4,
            watts,
            status,
            f"DOM RX Power Sensor for Ethernet1/{row[0]}".encode(),
        )
        for oid, one in zip(mib.SENSOR_COLUMNS, said, strict=True):
            columns[oid][row] = one
    assert port_1(columns).rx_power_dbm == {"1": -math.inf, "2": 0.0}


VALUES = st.one_of(st.integers(-(2**70), 2**70), st.binary(max_size=40), st.tuples(st.integers(0, 9)))
ROWS = st.lists(st.integers(0, 9), min_size=0, max_size=5).map(tuple)
COLUMNS = (
    *mib.PORT_COLUMNS, *mib.NARROW_COLUMNS, *mib.COUNTER_COLUMNS, *mib.PRIORITY_COLUMNS, *mib.LLDP_COLUMNS,
    *mib.SENSOR_COLUMNS, mib.QUEUES,
)  # fmt: skip


@given(st.dictionaries(st.sampled_from(COLUMNS), st.dictionaries(ROWS, VALUES, max_size=6)))
def test_tables_of_a_lying_switch_never_raise(tables: dict[Oid, Column]) -> None:
    for port in mib.facts_of(tables, None).ports.values():
        assert port.name and port.name.isprintable()


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"targets": []}, "targets"),
        ({"targets": [{"name": "a"}, {"name": "a"}]}, "targets"),
        ({"targets": [{"name": "a b"}]}, "name"),
        ({"targets": [{"name": "a", "port": 0}]}, "port"),
        ({"targets": [{"name": "a"}], "comunity_file": "x"}, "comunity_file"),
        ({"targets": [{"name": "a"}], "community_file": None}, "community_file"),
        ({"targets": [{"name": "a"}], "lossless_priorities": [9]}, "lossless_priorities"),
        ({"targets": [{"name": "a"}], "user": "x", "auth_protocol": "ROT13"}, "user"),
    ],
)
def test_a_bad_setting_is_named(settings: dict[str, object], key: str, tmp_path: Path) -> None:
    secret(tmp_path, "community", COMMUNITY)
    config = {"community_file": "community", **settings}
    with pytest.raises(ConfigError, match=key):
        from_config({name: said for name, said in config.items() if said is not None}, tmp_path)


def test_without_the_extra_one_line_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pysnmp", None)
    with pytest.raises(ConfigError, match=r"clusterwatch\[pollers\]"):
        poller(tmp_path, {"name": "leaf-1"})


def test_a_secret_that_others_can_read_is_refused(tmp_path: Path) -> None:
    secret(tmp_path, "community", COMMUNITY)
    (tmp_path / "community").chmod(0o644)
    with pytest.raises(ConfigError, match="community"):
        from_config({"targets": [{"name": "a"}], "community_file": "community"}, tmp_path)
    assert NAME == "switch_snmp"
