"""What UFM says of switches, ports, alarms and counters, in the form of the fabric's own tools.

In: rows of /resources/systems, /resources/ports and /app/alarms, lines of the telemetry's CSV. Out: parts of
an ``ib_documents.Scan``. Source: UFM Enterprise REST API Guide (Systems, Ports, Alarms), UFM Telemetry
Documentation (Endpoint; the names of ibdiagnet, whose ``Extended`` counters have 64 bits).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from collectors.pollers.ib_counters import PortCounters
from collectors.pollers.ib_fabric import guid_of
from collectors.pollers.ib_link_states import ACTIVE, LinkState
from collectors.pollers.ib_topology import PORT_MAX, SWITCHES_MAX, End, Fabric, Switch
from collectors.pollers.slurm_jobs import text_of
from collectors.sources.base import SourceEvent
from collectors.wire.records import Severity

COLUMNS_MAX: Final = 2_048
ALARMS_MAX: Final = 200
_GUID: Final = re.compile(r"(?:0x)?([0-9a-fA-F]{1,16})")
_PEER: Final = re.compile(r"(?:0x)?([0-9a-fA-F]{1,16})_(\d{1,3})")
_WIDTH: Final = re.compile(r"(\d{1,2})[xX]")
_SPEED: Final = re.compile(r"[A-Z]{3}\d{0,2}")
_COUNTER: Final = re.compile(r"\d{1,20}")
_NOTHING: Final = frozenset({"", "N/A", "NA", "None"})
_HEAD: Final = re.compile(r"node_?guid", re.IGNORECASE)
_KEYS: Final = {"node_guid": ("node_guid", "nodeguid"), "port_num": ("port_num", "portnum", "port_number")}
_LEVELS: Final[Mapping[str, Severity]] = {"critical": "critical", "info": "info", "notice": "info"}
_LINK_UP: Final = "Link Up"
_WORDS: Final = (
    "SymbolErrorCounter", "LinkErrorRecoveryCounter", "LinkDownedCounter", "PortRcvErrors",
    "PortRcvRemotePhysicalErrors", "PortRcvSwitchRelayErrors", "PortXmitDiscards", "PortXmitConstraintErrors",
    "PortRcvConstraintErrors", "LocalLinkIntegrityErrors", "ExcessiveBufferOverrunErrors", "VL15Dropped",
    "PortXmitWait", "PortXmitData", "PortRcvData", "PortXmitPkts", "PortRcvPkts",
)  # fmt: skip
_NARROW: Final = {name.lower(): name for name in _WORDS}
_WIDE: Final = {f"{name}Extended".lower(): name for name in _WORDS}


def switches(rows: list[dict[str, Any]]) -> Fabric:
    """The switches of /resources/systems, without their ports."""
    fabric = Fabric()
    for row in rows:
        if text_of(row.get("type"), 32).lower() != "switch" or len(fabric.switches) >= SWITCHES_MAX:
            continue
        guid = _guid(row.get("guid")) or _guid(row.get("system_guid"))
        if guid:
            words = text_of(row.get("system_name"), 128) or text_of(row.get("name"), 128)
            fabric.switches[guid] = Switch(guid, words or None)
            fabric.of_port_guid[guid] = guid
    return fabric


def add_ports(fabric: Fabric, guid: str, rows: list[dict[str, Any]]) -> dict[int, LinkState]:
    """The ports of one switch: their far ends are added to it; their states."""
    states: dict[int, LinkState] = {}
    switch = fabric.switches[guid]
    for row in rows:
        number = row.get("number")
        if isinstance(number, str) and number.isascii() and number.isdigit():
            number = int(number[:4])
        if isinstance(number, bool) or not isinstance(number, int) or not 0 < number <= PORT_MAX:
            continue
        physical, logical = text_of(row.get("physical_state"), 32), text_of(row.get("logical_state"), 32)
        is_up = physical == _LINK_UP and logical == ACTIVE
        states[number] = LinkState(ACTIVE if is_up else logical or "Down", physical, _could_be(row, is_up))
        end = _end(fabric, row)
        if end is not None and physical == _LINK_UP:
            switch.ends[number] = end
    return states


def _end(fabric: Fabric, row: dict[str, Any]) -> End | None:
    """The far end of a port's cable; None where UFM knows of none."""
    peer = _PEER.fullmatch(text_of(row.get("peer"), 64))
    guid = _guid(row.get("peer_node_guid")) or (guid_of(peer[1]) if peer else "")
    if not guid:
        return None
    width, speed = _WIDTH.fullmatch(text_of(row.get("active_width"), 8)), text_of(row.get("active_speed"), 8)
    is_switch = guid in fabric.switches
    return End(
        is_switch=is_switch,
        guid=guid if is_switch else _guid(row.get("peer_guid")) or guid,
        port=int(peer[2]) if peer else 1,
        words=text_of(row.get("peer_node_description"), 128) or None,
        width=int(width[1]) if width else None,
        speed=speed if _SPEED.fullmatch(speed) else None,
    )


def _could_be(row: dict[str, Any], is_up: bool) -> tuple[str, ...]:
    """What a link is set to be able to and does not do: UFM tells one side's own settings."""
    active = text_of(row.get("active_width"), 8)
    enabled = row.get("enabled_width")
    best = max((_lanes(one) for one in enabled[:16]), default=0) if isinstance(enabled, list) else 0
    return (f"{best}X",) if is_up and 0 < _lanes(active) < best else ()


def _lanes(text: Any) -> int:
    match = _WIDTH.fullmatch(text) if isinstance(text, str) else None
    return int(match[1]) if match else 0


class CounterRows:
    """Lines of the telemetry's CSV, one at a time; what is no switch of the fabric is passed over."""

    def __init__(self, fabric: Fabric) -> None:
        self._fabric = fabric
        self._places: dict[str, int] = {}
        self._counters: list[tuple[int, str, str]] = []
        """column, the tools' name, what stands behind a wide value"""
        self.found = PortCounters()
        self.rows = 0

    def add(self, line: str) -> None:
        cells = line.split(",", COLUMNS_MAX)
        if _HEAD.search(line, 0, 4_096) and self._is_head(cells):
            return
        if not self._places or len(cells) <= max(self._places.values()):
            return
        guid = _guid(cells[self._places["node_guid"]].strip())
        port = cells[self._places["port_num"]].strip()
        if guid not in self._fabric.switches or not _COUNTER.fullmatch(port) or not 0 < int(port) <= PORT_MAX:
            return
        told = "".join(
            f"[{name} == {cells[at].strip()}{wide}]"
            for at, name, wide in self._counters
            if at < len(cells) and _COUNTER.fullmatch(cells[at].strip())
        )
        self.found.lines.setdefault(guid, {})[int(port)] = told
        self.rows += 1

    def _is_head(self, cells: list[str]) -> bool:
        """Whether it names the columns, which are then known; it comes again where the counters change."""
        names = [cell.strip().strip('"').lower() for cell in cells]
        places = {key: at for key, words in _KEYS.items() for at, name in enumerate(names) if name in words}
        if len(places) < len(_KEYS):
            return False
        self._places = places
        wide = [(at, _WIDE[name], " ()") for at, name in enumerate(names) if name in _WIDE]
        self._counters = [(at, _NARROW[name], "") for at, name in enumerate(names) if name in _NARROW] + wide
        return True


def alarms(rows: list[dict[str, Any]]) -> list[SourceEvent]:
    """UFM's own alarms, the gravest first; each stands until UFM clears it."""
    found = []
    for row in rows:
        number = row.get("id")
        if isinstance(number, bool) or not isinstance(number, int | str):
            continue
        level = text_of(row.get("severity"), 16).lower()
        name = text_of(row.get("name"), 64) or "alarm"
        where = text_of(row.get("object_path"), 128) or text_of(row.get("object_name"), 128)
        words = text_of(row.get("description"), 200)
        found.append(
            SourceEvent(
                f"ufm_alarm/{text_of(str(number)[:32], 32)}", "ufm_alarm",
                f"{name}: {where}: {words}"[:300], _LEVELS.get(level, "warning"),
                attributes={"name": name, "object": where or None, "type": text_of(str(row.get("type")), 16)},
                standing=True,
            )
        )  # fmt: skip
    order = ("critical", "warning", "info")
    return sorted(found, key=lambda one: order.index(one.severity))[:ALARMS_MAX]


def _guid(value: Any) -> str:
    text = text_of(value, 32)
    match = _GUID.fullmatch(text) if text not in _NOTHING else None
    return guid_of(match[1]) if match and int(match[1], 16) else ""
