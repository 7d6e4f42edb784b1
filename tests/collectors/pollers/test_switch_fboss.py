"""FBOSS switches: the JSON of their own command, from a program or from files."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.pollers.device import ConfigError, DeviceReading
from collectors.pollers.switch_facts import Neighbour, SwitchError
from collectors.pollers.switch_fboss import from_config
from collectors.pollers.switch_fboss_documents import COMMANDS, facts_of, parsed
from collectors.pollers.switch_poller import SwitchPoller
from collectors.sources.counters import Count

SCRIPT = Path(__file__).with_name("switch_data") / "fboss2.py"
ENTRY: dict[str, Any] = {
    "id": 1,
    "name": "eth1/1/1",
    "adminState": "Enabled",
    "linkState": "Up",
    "speed": "400G",
    "tcvrPresent": "Present",
    "pfc": "TX RX WD",
    "queueIdToName": {"2": "rdma"},
    "isDrained": "No",
    "hwPortStats": {
        "inDiscardPkts": 3,
        "inErrorPkts": 0,
        "outDiscardPkts": 0,
        "outCongestionDiscardPkts": 5,
        "queueOutBytes": {"0": 10, "2": 9_000_000_000, "9": 1},
        "outPfcPriorityPackets": {"2": 70},
        "inPfcPriorityPackets": {"2": 80},
        "ingressBytes": 2**62,
        "egressBytes": 1_000,
        "inCongestionDiscards": -1,
    },
}
UNUSED = {
    **ENTRY,
    "name": "eth1/2/1",
    "linkState": "Down",
    "hwPortStats": {"ingressBytes": 0, "egressBytes": 0, "queueOutBytes": {"0": 0}},
}
MODELS: dict[str, Any] = {
    "port": {"portEntries": [ENTRY, UNUSED]},
    "lldp": {
        "lldpEntries": [
            {"localPort": "eth1/1/1", "systemName": "gtn-0101", "remotePort": "AA:BB:CC:00:00:01",
             "remotePortDescription": "mlx5_0", "expectedPeer": ""},
            {"localPort": "eth1/2/1", "systemName": "", "remotePort": "", "expectedPeer": "gtn-0102"},
        ]
    },
    "transceiver": {
        "transceivers": {
            "eth1/1/1": {"isPresent": True, "vendor": "A", "temperature": 44.5, "rxPower": [-1.0, -1.25]},
            "eth1/2/1": {"isPresent": False, "vendor": "", "temperature": 0.0, "rxPower": []},
        }
    },
    "flaps": {"flap_counters": [{"interfaceName": "eth1/1/1", "totalFlaps": 6, "oneMinute": 0}]},
    "fb303counters": {
        "counters": [
            {"source": "agent", "name": "eth1/1/1.out_ecn_counter.sum", "value": 12},
            {"source": "agent", "name": "eth1/1/1.out_ecn_counter.sum.60", "value": 1},
            {"source": "agent", "name": "eth1/1/1.fec_uncorrectable_errors.sum", "value": 2},
            {"source": "agent", "name": "eth1/1/1.pfc_deadlock_detection.sum", "value": 0},
        ]
    },
}  # fmt: skip


def write(folder: Path, models: dict[str, Any], host: str = "HOST") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for document, model in models.items():
        (folder / f"{document}.json").write_text(json.dumps({host: model}), encoding="utf-8")
    return folder


def polled(one: SwitchPoller) -> dict[str, DeviceReading]:
    return {answer.device.name: answer for answer in one.poll(0.0)}


def value(answer: DeviceReading, port: str, metric: str, **labels: str) -> tuple[float | None, str]:
    (found,) = [
        (sample.value, sample.quality)
        for sample in answer.reading.samples
        if sample.entity.endswith(f"/{port}") and (sample.metric, sample.labels) == (metric, labels)
    ]
    return found


def test_the_command_is_run_for_each_switch_and_one_that_hangs_or_fails_costs_itself(tmp_path: Path) -> None:
    recorded = write(tmp_path / "recorded", MODELS)
    command = [sys.executable, "-S", str(SCRIPT), str(recorded), "--fmt", "json", "--host", "{address}"]
    targets = [{"name": name} for name in ("hung", "broken", "leaf-1")]
    one = from_config({"targets": targets, "command": command, "look_s": 2.0}, tmp_path)
    answers = polled(one)
    one.close()
    assert answers["hung"].state == "timeout"
    assert answers["broken"].state.endswith("ended with 3")
    answer = answers["leaf-1"]
    assert answer.state == "ok"
    assert value(answer, "eth1/1/1", "rate_gbps") == (400.0, "ok")
    assert value(answer, "eth1/1/1", "tx_prio2_pause_total") == (70, "ok")
    assert value(answer, "eth1/1/1", "ecn_marked_total") == (12, "ok")
    assert value(answer, "eth1/1/1", "rx_power_dbm", lane="2") == (-1.25, "ok")
    assert value(answer, "eth1/1/1", "rx_congestion_discards_total") == (None, "out_of_range")
    assert [event.kind for event in answer.reading.events] == ["port_down"], "an expected peer is missing"


def test_files_of_the_site_are_read_and_old_ones_are_no_answer(tmp_path: Path) -> None:
    write(tmp_path / "fboss" / "leaf-1", {"port": MODELS["port"]}, "leaf-1.example")
    old = write(tmp_path / "fboss" / "leaf-2", {"port": MODELS["port"]}) / "port.json"
    os.utime(old, (1_000, 1_000))
    targets = [{"name": f"leaf-{at}"} for at in (1, 2, 3)]
    one = from_config({"targets": targets, "folder": "fboss"}, tmp_path)
    answers = polled(one)
    one.close()
    assert [answers[f"leaf-{at}"].state for at in (1, 2)] == ["ok", "stale"]
    assert answers["leaf-3"].state.startswith("port.json")
    assert value(answers["leaf-1"], "eth1/1/1", "rx_discards_total") == (3, "ok")
    told = {sample.metric for sample in answers["leaf-1"].reading.samples}
    assert not told & {"ecn_marked_total", "carrier_changes_total", "pfc_watchdog_active_count"}


def test_a_port_told_with_zeros_only_has_no_counters() -> None:
    ports = facts_of(MODELS).ports
    assert ports["eth1/2/1"].counters == {}
    assert ports["eth1/1/1"].counters["rx_bytes"] == Count(2**62)
    assert ports["eth1/1/1"].counters["carrier_changes"] == Count(6)


def test_a_module_that_is_not_there_has_no_temperature() -> None:
    ports = facts_of(MODELS).ports
    assert ports["eth1/1/1"].values == {"module_temperature_c": 44.5}
    assert not ports["eth1/2/1"].values


def test_pfc_and_queues_have_their_priorities() -> None:
    port = facts_of(MODELS).ports["eth1/1/1"]
    assert port.lossless == frozenset({2})
    assert {name for name in port.counters if "queue" in name} == {"tx_queue0_bytes", "tx_queue2_bytes"}
    without = {**ENTRY, "pfc": ""}
    assert facts_of({"port": {"portEntries": [without]}}).ports["eth1/1/1"].lossless == frozenset()


def test_neighbours_by_name_and_address() -> None:
    ports = facts_of(MODELS).ports
    assert ports["eth1/1/1"].neighbours == [Neighbour("gtn-0101", "mlx5_0", "aa:bb:cc:00:00:01")]
    assert not ports["eth1/2/1"].neighbours
    assert ports["eth1/2/1"].is_meant_up


@pytest.mark.parametrize(
    "raw", [b"", b"[]", b"{}", b'{"a": 1}', b'{"a": {}, "b": {}}', b"\xff\xfe", b"[" * 90_000]
)
def test_a_document_without_this_switch_is_an_error(raw: bytes) -> None:
    with pytest.raises(SwitchError):
        parsed(raw, "leaf-1")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(sorted(ENTRY) + ["2"]), inner)
    ),
    max_leaves=10,
)


@given(st.dictionaries(st.sampled_from(sorted(ENTRY)), JSON), JSON)
def test_documents_of_a_lying_switch_never_raise(entry: dict[str, Any], other: Any) -> None:
    keys = ("portEntries", "lldpEntries", "flap_counters", "counters")
    rows = {key: [{**ENTRY, **entry}, entry, other] for key in keys}
    facts_of({document: {**rows, "transceivers": {"eth1/1/1": other}} for document in COMMANDS})
    facts_of({document: dict.fromkeys((*keys, "transceivers"), other) for document in COMMANDS})


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"command": "fboss2"}, "command"),
        ({"command": ["fboss2"]}, "command"),
        ({"folder": "none"}, "folder"),
        ({"folder": ".", "command": ["a", "{address}"]}, "exclude"),
        ({"targets": [{"name": "a", "address": "--help"}]}, "address"),
    ],
)
def test_a_bad_setting_is_named(settings: dict[str, object], key: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=key):
        from_config({"targets": [{"name": "leaf-1"}], **settings}, tmp_path)
