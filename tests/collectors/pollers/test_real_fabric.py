"""The real tools in a fabric of ibsim: what they print is what is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from collectors.pollers.device import DeviceReading
from collectors.pollers.ib_cluster import from_config
from tests.collectors.pollers.real_fabric import fabric


def value(told: DeviceReading, entity: str, metric: str) -> tuple[float | None, str]:
    found = {(one.entity, one.metric): (one.value, one.quality) for one in told.reading.samples}
    return found[entity, metric]


def test_errors_and_a_pulled_cable_of_a_fabric_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with fabric(tmp_path) as running:
        for name, text in running.environment.items():
            monkeypatch.setenv(name, text)
        poller = from_config({"skip_sl": True}, tmp_path)
        first = {told.device.name: told for told in poller.poll(0.0)}
        running.order('PerformanceSet "ib-leaf-02"[3] PortCounters.SymbolErrorCounter=65535')
        running.order('PerformanceSet "ib-leaf-02"[1] PortCounters.PortXmitDiscards=77')
        running.order('Unlink "gtn-0102 mlx5_4"')
        second = {told.device.name: told for told in poller.poll(60.0)}
    assert sorted(first) == ["ib", "ib-leaf-02", "ib-spine-01"]
    assert not first["ib"].reading.events
    leaf = first["ib-leaf-02"]
    assert [event.kind for event in leaf.reading.events] == ["link_degraded"] * 3  # ibsim's links are SDR
    assert value(leaf, "switchport/ib-leaf-02/4", "oper_up_count") == (1, "ok")
    assert value(leaf, "switchport/ib-leaf-02/8", "oper_up_count") == (0, "ok")
    assert value(leaf, "switchport/ib-leaf-02/3", "symbol_error_total") == (0, "ok")
    leaf = second["ib-leaf-02"]
    assert value(leaf, "switchport/ib-leaf-02/3", "symbol_error_total") == (None, "saturated")
    assert value(leaf, "switchport/ib-leaf-02/1", "tx_discards_delta_count") == (77, "ok")
    assert value(leaf, "switchport/ib-leaf-02/1", "tx_packets_delta_count")[1] == "ok"
    (event,) = [event for event in leaf.reading.events if event.kind == "port_down"]
    assert event.attributes == {
        "switch": "ib-leaf-02", "switch_port": "4", "peer": "gtn-0102", "peer_port": "mlx5_4",
    }  # fmt: skip
