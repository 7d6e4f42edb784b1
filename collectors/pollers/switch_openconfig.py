"""Leaves of OpenConfig models -> ``SwitchFacts``. Pure.

In: leaves of interfaces, lldp, qos, components and system. Out: facts. Counters of 64 bits are texts in
JSON_IETF (RFC 7951). Source: openconfig-interfaces, -if-ethernet, -lldp, -qos, -platform-transceiver. The PFC
branch of qos is SONiC's extension, written from its design document and not seen on a switch.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from typing import Any, Final

from collectors.pollers.switch_facts import (
    LANES_MAX,
    PORTS_MAX,
    Neighbour,
    Port,
    SwitchFacts,
    count_of,
    mac_of,
    name_of,
    number_of,
    priority_of,
)
from collectors.pollers.switch_gnmi_leaves import Leaf, Path, local

REQUIRED: Final = ("/interfaces/interface[name=*]/state",)
OPTIONAL: Final = (
    "/interfaces/interface[name=*]/ethernet/state",
    "/lldp/interfaces/interface[name=*]/neighbors",
    "/qos/interfaces",
    "/components/component[name=*]/transceiver",
    "/components/component[name=*]/state/temperature",
    "/system/state/boot-time",
)
_COUNTERS: Final = {
    "in-octets": "rx_bytes",
    "out-octets": "tx_bytes",
    "in-discards": "rx_discards",
    "out-discards": "tx_discards",
    "in-errors": "rx_errors",
    "out-errors": "tx_errors",
    "in-fcs-errors": "rx_fcs_errors",
    "in-crc-errors": "rx_fcs_errors",
    "carrier-transitions": "carrier_changes",
    "in-mac-pause-frames": "rx_pause",
    "out-mac-pause-frames": "tx_pause",
}
_FEC: Final = {"fec-corrected-bits": "fec_corrected", "fec-uncorrectable-blocks": "fec_uncorrected"}
_OPER: Final = {"UP": True, "DOWN": False, "LOWER_LAYER_DOWN": False, "NOT_PRESENT": False, "DORMANT": False}
_ADMIN: Final = {"UP": True, "DOWN": False}
_SPEED: Final = re.compile(r"SPEED_(\d{1,5})(GB|MB)")
_REMOTE: Final = frozenset({"system-name", "port-id", "port-description", "chassis-id"})
Rows = dict[str, dict[str, Any]]


def facts_of(leaves: Iterable[Leaf], timestamp_ns: int = 0) -> SwitchFacts:
    """One look. ``timestamp_ns``: the switch's own time of its answer, to tell how long it has been up."""
    reader = _Reader()
    for path, value in leaves:
        reader.read(path, value)
    return reader.facts(timestamp_ns)


class _Reader:
    """Leaves come in any order: they are sorted by what they belong to before anything is judged."""

    def __init__(self) -> None:
        self._ports: dict[str, dict[Path, Any]] = defaultdict(dict)
        self._remote: dict[tuple[str, str], dict[str, Any]] = defaultdict(dict)
        self._qos: dict[str, list[tuple[Path, Any]]] = defaultdict(list)
        self._modules: dict[str, list[tuple[Path, Any]]] = defaultdict(list)
        self._channels: dict[str, set[str]] = defaultdict(set)
        self._boot_ns: int | None = None

    def read(self, path: Path, value: Any) -> None:
        match path:
            case ("interfaces", "interface", name, "state", "physical-channel"):
                if len(channels := self._channels[name]) < LANES_MAX and isinstance(value, int | str):
                    channels.add(str(value))
            case ("interfaces", "interface", name, *rest) if rest:
                self._keep(self._ports, name)[tuple(rest)] = value
            case ("lldp", "interfaces", "interface", name, "neighbors", "neighbor", number, "state", leaf):
                if leaf in _REMOTE and len(self._remote) < PORTS_MAX * 8:
                    self._remote[name, number][leaf] = value
            case ("qos", "interfaces", "interface", name, *rest) if len(self._qos) < PORTS_MAX:
                self._qos[name].append((tuple(rest), value))
            case ("components", "component", name, *rest) if len(self._modules) < PORTS_MAX * 4:
                self._modules[name].append((tuple(rest), value))
            case ("system", "state", "boot-time"):
                count = count_of(value)
                self._boot_ns = count.value if count else None

    def _keep(self, rows: dict[str, dict[Path, Any]], name: str) -> dict[Path, Any]:
        return rows[name] if name in rows or len(rows) < PORTS_MAX * 2 else {}

    def facts(self, timestamp_ns: int) -> SwitchFacts:
        facts = SwitchFacts()
        if self._boot_ns and timestamp_ns > self._boot_ns:
            facts.uptime_s = (timestamp_ns - self._boot_ns) / 1e9
        modules: dict[str, list[Port]] = defaultdict(list)
        for name, said in self._ports.items():
            if not _is_ethernet(said.get(("state", "type"))) or (port := facts.port(name)) is None:
                continue
            _fill(port, said)
            modules[str(said.get(("state", "transceiver"), name))].append(port)
        for (name, _), remote in self._remote.items():
            if name in facts.ports:
                facts.ports[name].add_neighbour(_neighbour(remote))
        for name, rows in self._qos.items():
            if name in facts.ports:
                _add_queues(facts.ports[name], rows)
        for name, rows in self._modules.items():
            for port in modules.get(name, ())[:8]:
                _add_module(port, rows, self._channels.get(port.name))
        return facts


def _is_ethernet(kind: Any) -> bool:
    """Ports without a type are taken: some servers tell none."""
    return not isinstance(kind, str) or local(kind) == "ethernetCsmacd"


def _fill(port: Port, said: dict[Path, Any]) -> None:
    port.oper_up = _OPER.get(_word(said.get(("state", "oper-status"))))
    port.admin_up = _ADMIN.get(_word(said.get(("state", "admin-status"))))
    if port.admin_up is None and isinstance(enabled := said.get(("state", "enabled")), bool):
        port.admin_up = enabled
    port.is_meant_up = bool(name_of(said.get(("state", "description"))))
    for leaf in ("negotiated-port-speed", "port-speed"):
        if port.rate_gbps is None:
            port.rate_gbps = _gbps(said.get(("ethernet", "state", leaf)))
    port.epoch = str(said.get(("state", "counters", "last-clear"), ""))[:64]
    for path, value in said.items():
        if path[-2:-1] == ("counters",) and (name := _COUNTERS.get(path[-1])) is not None:
            port.set_counter(name, count_of(value))


def _word(value: Any) -> str:
    return local(value).upper() if isinstance(value, str) else ""


def _gbps(value: Any) -> float | None:
    match = _SPEED.fullmatch(_word(value))
    return int(match[1]) / (1 if match[2] == "GB" else 1_000) if match else None


def _neighbour(said: dict[str, Any]) -> Neighbour:
    """The name of the system, else its address; the port's name, else its description, else its address."""
    port, described = said.get("port-id"), name_of(said.get("port-description"))
    mac = mac_of(port)
    chassis = said.get("chassis-id")
    peer = name_of(said.get("system-name")) or mac_of(chassis) or name_of(chassis)
    return Neighbour(peer, (described or mac) if mac else (name_of(port) or described), mac)


def _add_queues(port: Port, rows: list[tuple[Path, Any]]) -> None:
    lossless: set[int] = set()
    knows_pfc = False
    for path, value in rows:
        match path:
            case ("output", "queues", "queue", name, "state", leaf):
                _add_queue(port, priority_of(name), leaf, value)
            case ("pfc", "pfc-priorities", "pfc-priority", name, "state", "enable"):
                knows_pfc = True
                if value is True and (priority := priority_of(name)) is not None:
                    lossless.add(priority)
            case ("pfc", "pfc-priorities", "pfc-priority", name, "state", *_, leaf):
                priority = priority_of(name)
                if priority is not None and leaf in ("pause-frames-rx", "pause-frames-tx"):
                    port.set_counter(f"{leaf[-2:]}_prio{priority}_pause", count_of(value))
    if knows_pfc:
        port.lossless = frozenset(lossless)


def _add_queue(port: Port, priority: int | None, leaf: str, value: Any) -> None:
    if leaf == "max-queue-len" and (most := number_of(value)) is not None and most >= 0:
        port.values["buffer_watermark_bytes"] = max(most, port.values.get("buffer_watermark_bytes", 0.0))
    elif priority is not None and leaf == "transmit-octets":
        port.set_counter(f"tx_queue{priority}_bytes", count_of(value))
    elif priority is not None and leaf == "dropped-pkts":
        port.set_counter(f"tx_queue{priority}_discards", count_of(value))


def _add_module(port: Port, rows: list[tuple[Path, Any]], channels: set[str] | None) -> None:
    """``channels``: the lanes of a module that are this port's; None: all of them."""
    for path, value in rows:
        match path:
            case ("state", "temperature", "instant"):
                if (temperature := number_of(value)) is not None:
                    port.values["module_temperature_c"] = temperature
            case ("transceiver", "state", leaf) if leaf in _FEC:
                port.set_counter(_FEC[leaf], count_of(value))
            case ("transceiver", "physical-channels", "channel", lane, "state", leaf, "instant"):
                lanes = {"input-power": port.rx_power_dbm, "output-power": port.tx_power_dbm}.get(leaf)
                power = number_of(value)
                is_own = name_of(lane) and (channels is None or lane in channels)
                if lanes is not None and power is not None and is_own and len(lanes) < LANES_MAX:
                    lanes[lane] = power
