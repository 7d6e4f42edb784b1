"""JSON of FBOSS's own command (Wedge400, Minipack2) -> ``SwitchFacts``. Pure.

In: one document per command, host -> model. Out: facts. Read in the public source of facebook/fboss (the
thrift models of ``show port``, ``lldp``, ``transceiver``, ``interface flaps``, ``fb303counters``, and what
fills them): names of fields, "Up" and "Enabled", speeds as "400G", light in dBm, priorities and queues as
keys, PFC only where it is on. Not verified, since it needs a switch: whether a map of PFC leaves out
priorities without it, and what counters do when the agent restarts (a fall is a reset). These commands tell
neither the watchdog's state and drops nor the use of buffers, so those stay absent.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from collectors.pollers.switch_facts import (
    LANES_MAX,
    PORTS_MAX,
    PRIORITIES,
    Neighbour,
    Port,
    SwitchError,
    SwitchFacts,
    count_of,
    mac_of,
    name_of,
    number_of,
)

COMMANDS: Final[Mapping[str, tuple[str, ...]]] = {
    "port": ("show", "port"),
    "lldp": ("show", "lldp"),
    "transceiver": ("show", "transceiver"),
    "flaps": ("show", "interface", "flaps"),
    "fb303counters": ("show", "fb303counters"),
}
REQUIRED: Final = "port"
ROWS_MAX: Final = 200_000
_STATS: Final = {
    "ingressBytes": "rx_bytes",
    "egressBytes": "tx_bytes",
    "inDiscardPkts": "rx_discards",
    "outDiscardPkts": "tx_discards",
    "inErrorPkts": "rx_errors",
    "inCongestionDiscards": "rx_congestion_discards",
    "outCongestionDiscardPkts": "tx_congestion_discards",
    "inPausePackets": "rx_pause",
    "outPausePackets": "tx_pause",
}
_BY_PRIORITY: Final = {
    "inPfcPriorityPackets": "rx_prio{}_pause",
    "outPfcPriorityPackets": "tx_prio{}_pause",
    "queueOutBytes": "tx_queue{}_bytes",
}
_FB303: Final = {
    "out_ecn_counter": "ecn_marked",
    "fec_correctable_errors": "fec_corrected",
    "fec_uncorrectable_errors": "fec_uncorrected",
    "out_errors": "tx_errors",
    "wred_dropped_packets": "tx_wred_drops",
    "pfc_deadlock_detection": "pfc_watchdog_storms",
}
_SUM: Final = re.compile(r"([^\s]{1,64})\.([a-z0-9_]{1,64})\.sum")
_SPEED: Final = re.compile(r"(\d{1,5})G")
_OPER: Final = {"Up": True, "Down": False}
_ADMIN: Final = {"Enabled": True, "Disabled": False}


def parsed(raw: bytes, address: str) -> dict[str, Any]:
    """The model of one host. Raises ``SwitchError`` where the document holds none."""
    try:
        hosts = json.loads(raw)
    except (ValueError, RecursionError):
        raise SwitchError("no JSON") from None
    if not isinstance(hosts, dict) or not hosts:
        raise SwitchError("no answer in the document")
    model = hosts.get(address, next(iter(hosts.values())) if len(hosts) == 1 else None)
    if not isinstance(model, dict):
        raise SwitchError("no answer of this switch in the document")
    return model


def facts_of(models: Mapping[str, Mapping[str, Any]]) -> SwitchFacts:
    """One look. ``models``: those of ``COMMANDS`` that the switch answered."""
    facts = SwitchFacts()
    for row in _rows(models.get("port"), "portEntries"):
        if (port := facts.port(row.get("name"))) is not None:
            _fill(port, row)
    for row in _rows(models.get("lldp"), "lldpEntries"):
        if (local := facts.ports.get(str(row.get("localPort")))) is not None:
            _add_neighbour(local, row)
    for row in _rows(models.get("flaps"), "flap_counters"):
        if (flapped := facts.ports.get(str(row.get("interfaceName")))) is not None:
            flapped.set_counter("carrier_changes", count_of(row.get("totalFlaps")))
    modules = models.get("transceiver", {}).get("transceivers")
    for name, row in list(modules.items())[: PORTS_MAX * 2] if isinstance(modules, dict) else ():
        if name in facts.ports and isinstance(row, dict):
            _add_module(facts.ports[name], row)
    for row in _rows(models.get("fb303counters"), "counters"):
        _add_fb303(facts, row)
    return facts


def _rows(model: Mapping[str, Any] | None, key: str) -> Iterator[dict[str, Any]]:
    listed = model.get(key) if model is not None else None
    for row in listed[:ROWS_MAX] if isinstance(listed, list) else ():
        if isinstance(row, dict):
            yield row


def _fill(port: Port, row: dict[str, Any]) -> None:
    port.oper_up = _OPER.get(str(row.get("linkState")))
    port.admin_up = _ADMIN.get(str(row.get("adminState")))
    speed = _SPEED.fullmatch(str(row.get("speed"))[:16])
    port.rate_gbps = float(speed[1]) if speed else None
    stats = row.get("hwPortStats")
    if not isinstance(stats, dict) or not any(_is_counting(value) for value in stats.values()):
        return  # a port without statistics is told with zeros
    for field, name in _STATS.items():
        port.set_counter(name, count_of(stats.get(field)))
    for field, pattern in _BY_PRIORITY.items():
        for priority, value in _priorities(stats.get(field)):
            port.set_counter(pattern.format(priority), count_of(value))
    paused = [priority for priority, _ in _priorities(stats.get("inPfcPriorityPackets"))]
    port.lossless = (
        frozenset(paused) if isinstance(row.get("pfc"), str) and row["pfc"].strip() else frozenset()
    )


def _is_counting(value: Any) -> bool:
    return any(map(_is_counting, value.values())) if isinstance(value, dict) else bool(value)


def _priorities(said: Any) -> Iterator[tuple[int, Any]]:
    for key, value in said.items() if isinstance(said, dict) else ():
        if (
            isinstance(key, str)
            and len(key) == 1
            and key.isascii()
            and key.isdigit()
            and int(key) in PRIORITIES
        ):
            yield int(key), value


def _add_neighbour(port: Port, row: dict[str, Any]) -> None:
    port.is_meant_up = port.is_meant_up or bool(name_of(row.get("expectedPeer")))
    remote, described = row.get("remotePort"), name_of(row.get("remotePortDescription"))
    mac = mac_of(remote)
    port.add_neighbour(
        Neighbour(
            name_of(row.get("systemName")), (described or mac) if mac else (name_of(remote) or described), mac
        )
    )


def _add_module(port: Port, row: dict[str, Any]) -> None:
    """A module that is not there, or cannot be read, is told with zeros."""
    if row.get("isPresent") is not True or not row.get("vendor"):
        return
    if (temperature := number_of(row.get("temperature"))) is not None:
        port.values["module_temperature_c"] = temperature
    for field, lanes in (("rxPower", port.rx_power_dbm), ("txPower", port.tx_power_dbm)):
        said = row.get(field)
        for lane, raw in enumerate(said[:LANES_MAX] if isinstance(said, list) else (), 1):
            if (power := number_of(raw)) is not None:
                lanes[str(lane)] = power


def _add_fb303(facts: SwitchFacts, row: dict[str, Any]) -> None:
    match = _SUM.fullmatch(str(row.get("name"))[:160])
    port = facts.ports.get(match[1]) if match else None
    if match and port is not None and (name := _FB303.get(match[2])) is not None:
        port.set_counter(name, count_of(row.get("value")))
