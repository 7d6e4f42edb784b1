"""Tables of a switch's MIBs as they were walked -> ``SwitchFacts``. Pure.

In: columns by their object identifier. Out: facts. Source: IF-MIB (RFC 2863), EtherLike-MIB (RFC 3635),
LLDP-MIB (IEEE 802.1AB-2005), ENTITY-SENSOR-MIB (RFC 3433), IEEE8021-PFC-MIB; CISCO-PFC-EXT-MIB and
CISCO-SWITCH-QOS-MIB as SONiC's own agent serves them: priorities count from 0, queues from 1;
MELLANOX-QOS-MIB, of which only the objects were read and no switch was seen.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Final

from collectors.pollers.switch_facts import (
    LANES_MAX,
    PRIORITIES,
    Neighbour,
    Port,
    SwitchFacts,
    count_of,
    mac_of,
    name_of,
    narrow_bytes,
)
from collectors.pollers.switch_snmp_walk import Column, Oid, Tables, text, whole
from collectors.sources.counters import Counter

SYS_UPTIME: Final[Oid] = (1, 3, 6, 1, 2, 1, 1, 3, 0)
UPTIME_WRAPS_S: Final = 2**32 / 100
_IF: Final[Oid] = (1, 3, 6, 1, 2, 1, 2, 2, 1)
_IFX: Final[Oid] = (1, 3, 6, 1, 2, 1, 31, 1, 1, 1)
_DOT3: Final[Oid] = (1, 3, 6, 1, 2, 1, 10, 7)
_IEEE_PFC: Final[Oid] = (1, 3, 111, 2, 802, 1, 1, 21, 1, 1, 1)
_LLDP: Final[Oid] = (1, 0, 8802, 1, 1, 2, 1)
_SENSOR: Final[Oid] = (1, 3, 6, 1, 2, 1, 99, 1, 1, 1)
_ENTITY: Final[Oid] = (1, 3, 6, 1, 2, 1, 47, 1, 1, 1, 1)

DESCR, TYPE, SPEED, ADMIN, OPER = (*_IF, 2), (*_IF, 3), (*_IF, 5), (*_IF, 7), (*_IF, 8)
NAME, HIGH_SPEED, ALIAS, DISCONTINUITY = (*_IFX, 1), (*_IFX, 15), (*_IFX, 18), (*_IFX, 19)
HC_IN, HC_OUT, IN_32, OUT_32 = (*_IFX, 6), (*_IFX, 10), (*_IF, 10), (*_IF, 16)
PORT_COLUMNS: Final = (
    DESCR,
    TYPE,
    SPEED,
    ADMIN,
    OPER,
    NAME,
    HIGH_SPEED,
    ALIAS,
    DISCONTINUITY,
    HC_IN,
    HC_OUT,
)
NARROW_COLUMNS: Final = (IN_32, OUT_32)
"""walked only where 64 bits are missing"""
_COUNTERS_32: Final[dict[Oid, str]] = {
    (*_IF, 13): "rx_discards",
    (*_IF, 14): "rx_errors",
    (*_IF, 19): "tx_discards",
    (*_IF, 20): "tx_errors",
    (*_DOT3, 2, 1, 3): "rx_fcs_errors",
    (*_DOT3, 2, 1, 18): "rx_symbol_errors",
    (*_IEEE_PFC, 2): "tx_pfc",
    (*_IEEE_PFC, 3): "rx_pfc",
}
_COUNTERS_64: Final[dict[Oid, str]] = {
    (*_DOT3, 10, 1, 5): "rx_pause",
    (*_DOT3, 10, 1, 6): "tx_pause",
}
COUNTER_COLUMNS: Final = (*_COUNTERS_32, *_COUNTERS_64)
_CISCO_PFC: Final[Oid] = (1, 3, 6, 1, 4, 1, 9, 9, 813, 1, 2, 1)
_MELLANOX: Final[Oid] = (1, 3, 6, 1, 4, 1, 33049, 15, 1)
_BY_PRIORITY: Final[dict[Oid, str]] = {
    (*_CISCO_PFC, 2): "tx_prio{}_pause",
    (*_CISCO_PFC, 3): "rx_prio{}_pause",
    (*_MELLANOX, 2, 1, 3): "rx_prio{}_pause",
    (*_MELLANOX, 2, 1, 4): "rx_prio{}_pause_duration",
    (*_MELLANOX, 2, 1, 5): "tx_prio{}_pause",
    (*_MELLANOX, 2, 1, 6): "tx_prio{}_pause_duration",
    (*_MELLANOX, 4, 1, 4): "tx_queue{}_bytes",
}
"""Rows are (ifIndex, priority or traffic class)."""
PRIORITY_COLUMNS: Final = tuple(_BY_PRIORITY)
QUEUES: Final[Oid] = (1, 3, 6, 1, 4, 1, 9, 9, 580, 1, 5, 5, 1, 4)
_EGRESS: Final = 2
_UNICAST_BYTES: Final = 2

_LOCAL_ID, _LOCAL_DESCR = (*_LLDP, 3, 7, 1, 3), (*_LLDP, 3, 7, 1, 4)
_CHASSIS_KIND, _CHASSIS = (*_LLDP, 4, 1, 1, 4), (*_LLDP, 4, 1, 1, 5)
_PORT_KIND, _PORT, _PORT_DESCR = (*_LLDP, 4, 1, 1, 6), (*_LLDP, 4, 1, 1, 7), (*_LLDP, 4, 1, 1, 8)
_SYSTEM: Final[Oid] = (*_LLDP, 4, 1, 1, 9)
LLDP_COLUMNS: Final = (
    _LOCAL_ID,
    _LOCAL_DESCR,
    _CHASSIS_KIND,
    _CHASSIS,
    _PORT_KIND,
    _PORT,
    _PORT_DESCR,
    _SYSTEM,
)
_CHASSIS_IS_MAC, _PORT_IS_MAC = 4, 3

_SENSOR_TYPE, _SCALE, _PRECISION, _VALUE, _STATUS = ((*_SENSOR, column) for column in range(1, 6))
_ENTITY_DESCR: Final[Oid] = (*_ENTITY, 2)
SENSOR_COLUMNS: Final = (_SENSOR_TYPE, _SCALE, _PRECISION, _VALUE, _STATUS, _ENTITY_DESCR)
_WATTS, _CELSIUS, _DBM = 6, 8, 14
"""14 is of CISCO-ENTITY-SENSOR-MIB, which some agents use here"""
_POWER: Final = re.compile(r"(?i)\b(rx|tx|receive|transmit)\b.{0,32}\bpower\b")
_LANE: Final = re.compile(r"(?i)\s+lane\s+(\d{1,2})\Z")

_ETHERNET_TYPES: Final = frozenset({6, 62, 69, 117})
_OPER: Final = {1: True, 2: False, 5: False, 6: False, 7: False}
_ADMIN: Final = {1: True, 2: False}
_PORT_LIKE: Final = re.compile(r"[A-Za-z-]{1,24}\d{1,4}(?:[/:.]\d{1,4}){0,4}[a-z]?")
"""An alias such as ``etp3``: what some switches put where others have a description."""
KINDS: Final = {name: Counter(bits=32, wraps=True) for name in _COUNTERS_32.values()}


def facts_of(tables: Tables, uptime_ticks: int | None) -> SwitchFacts:
    """One look. ``tables``: the columns named here, as far as the switch has them."""
    facts = SwitchFacts(uptime_wraps_s=UPTIME_WRAPS_S, kinds=KINDS)
    if uptime_ticks is not None:
        facts.uptime_s = uptime_ticks / 100
    by_index = _ports(tables, facts)
    for index, port in by_index.items():
        _add_counters(tables, index, port)
    _add_priorities(tables, by_index)
    _add_neighbours(tables, by_index)
    _add_sensors(tables, by_index)
    return facts


def lacks_64_bits(tables: Tables) -> bool:
    """Whether some port has no bytes of 64 bits."""
    return any(index not in tables.get(HC_IN, {}) for index in tables.get(OPER, {}))


def is_wanted_queue(row: Oid) -> bool:
    """Whether a row of ``QUEUES`` is one that is told: one in eight."""
    return len(row) == 4 and row[1] == _EGRESS and row[2] - 1 in PRIORITIES and row[3] == _UNICAST_BYTES


def _column(tables: Tables, oid: Oid) -> Column:
    return tables.get(oid, {})


def _ports(tables: Tables, facts: SwitchFacts) -> dict[int, Port]:
    """ifIndex -> port, of Ethernet ports only; of two ports of one name the first."""
    found: dict[int, Port] = {}
    types, names, descrs = _column(tables, TYPE), _column(tables, NAME), _column(tables, DESCR)
    for row in sorted({*names, *descrs, *_column(tables, OPER)}):
        if len(row) != 1 or (row in types and types[row] not in _ETHERNET_TYPES):
            continue
        name = name_of(text(names.get(row))) or name_of(text(descrs.get(row))) or str(row[0])
        if name in facts.ports or (port := facts.port(name)) is None:
            continue
        port.oper_up = _OPER.get(whole(_column(tables, OPER).get(row)) or 0)
        port.admin_up = _ADMIN.get(whole(_column(tables, ADMIN).get(row)) or 0)
        port.rate_gbps = _rate(tables, row)
        alias = text(_column(tables, ALIAS).get(row)).strip()
        port.is_meant_up = bool(alias) and alias != name and not _PORT_LIKE.fullmatch(alias)
        port.epoch = str(whole(_column(tables, DISCONTINUITY).get(row)) or 0)
        found[row[0]] = port
    return found


def _rate(tables: Tables, row: Oid) -> float | None:
    """ifHighSpeed; ifSpeed only where that tells nothing, and never its largest value."""
    mbps, bps = whole(_column(tables, HIGH_SPEED).get(row)), whole(_column(tables, SPEED).get(row))
    if mbps:
        return mbps / 1_000
    return bps / 1e9 if bps and 0 < bps < 2**32 - 1 else None


def _add_counters(tables: Tables, index: int, port: Port) -> None:
    row = (index,)
    for oid, name in (*_COUNTERS_32.items(), *_COUNTERS_64.items()):
        port.set_counter(name, count_of(whole(_column(tables, oid).get(row))))
    for name, wide, narrow in (("rx_bytes", HC_IN, IN_32), ("tx_bytes", HC_OUT, OUT_32)):
        port.set_counter(name, count_of(whole(_column(tables, wide).get(row))))
        if name not in port.counters:
            count = count_of(whole(_column(tables, narrow).get(row)))
            port.set_counter(name, narrow_bytes(count, port.rate_gbps))


def _add_priorities(tables: Tables, ports: dict[int, Port]) -> None:
    for oid, pattern in _BY_PRIORITY.items():
        for row, value in _column(tables, oid).items():
            port = ports.get(row[0]) if len(row) == 2 else None
            if port is not None and row[1] in PRIORITIES:
                port.set_counter(pattern.format(row[1]), count_of(whole(value)))
    for row, value in _column(tables, QUEUES).items():
        port = ports.get(row[0]) if is_wanted_queue(row) else None
        if port is not None:
            port.set_counter(f"tx_queue{row[2] - 1}_bytes", count_of(whole(value)))


def _add_neighbours(tables: Tables, ports: dict[int, Port]) -> None:
    by_name = {port.name: port for port in ports.values()}
    by_name |= {
        text(descr): ports[row[0]]
        for row, descr in _column(tables, DESCR).items()
        if len(row) == 1 and row[0] in ports
    }
    systems, chassis, remote = (_column(tables, oid) for oid in (_SYSTEM, _CHASSIS, _PORT))
    for row in sorted({*systems, *chassis, *remote}):
        if len(row) == 3 and (port := _local_port(tables, row[1], by_name, ports)) is not None:
            port.add_neighbour(_neighbour(tables, row))


def _local_port(tables: Tables, number: int, by_name: dict[str, Port], ports: dict[int, Port]) -> Port | None:
    """LLDP has numbers of its own: what they are called decides; without names they are the ifIndex."""
    said = [text(_column(tables, oid).get((number,))) for oid in (_LOCAL_ID, _LOCAL_DESCR)]
    for name in said:
        if name in by_name:
            return by_name[name]
    is_named = any(name and not mac_of(name) and name.isprintable() and not name.isdigit() for name in said)
    return None if is_named else ports.get(number)


def _neighbour(tables: Tables, row: Oid) -> Neighbour:
    """The name of the system, else its address; the port's name, else its description, else its address."""
    chassis = _identity(tables, _CHASSIS, _CHASSIS_KIND, _CHASSIS_IS_MAC, row)
    port = _identity(tables, _PORT, _PORT_KIND, _PORT_IS_MAC, row)
    described = name_of(text(_column(tables, _PORT_DESCR).get(row)))
    peer_mac = mac_of(port)
    peer = name_of(text(_column(tables, _SYSTEM).get(row))) or chassis
    return Neighbour(peer, (described or port) if peer_mac else (port or described), peer_mac)


def _identity(tables: Tables, oid: Oid, kind_oid: Oid, mac_kind: int, row: Oid) -> str:
    raw = _column(tables, oid).get(row)
    if not isinstance(raw, bytes):
        return ""
    if _column(tables, kind_oid).get(row) == mac_kind and len(raw) == 6:
        return raw.hex(":")
    return mac_of(text(raw)) or name_of(text(raw))


def _add_sensors(tables: Tables, ports: dict[int, Port]) -> None:
    by_name = {port.name: port for port in ports.values()}
    for row, value in _sensors(tables):
        described = text(_column(tables, _ENTITY_DESCR).get(row))[:256].strip()
        kind = _column(tables, _SENSOR_TYPE).get(row)
        port, lane = _port_and_lane(described, by_name)
        if port is None:
            continue
        power = _POWER.search(described)
        if kind == _CELSIUS:
            port.values.setdefault("module_temperature_c", value)
        elif power and kind in (_WATTS, _DBM):
            lanes = port.rx_power_dbm if power[1].lower().startswith("r") else port.tx_power_dbm
            if len(lanes) < LANES_MAX:
                lanes[lane] = value if kind == _DBM else _dbm(value)


def _sensors(tables: Tables) -> Iterator[tuple[Oid, float]]:
    """(index, value in the sensor's unit) of sensors that work."""
    scales, precisions = _column(tables, _SCALE), _column(tables, _PRECISION)
    for row, raw in _column(tables, _VALUE).items():
        scale, precision, value = whole(scales.get(row)), whole(precisions.get(row)), whole(raw)
        if scale is None or precision is None or value is None or abs(value) >= 10**9:
            continue
        if 1 <= scale <= 17 and -8 <= precision <= 9 and _column(tables, _STATUS).get(row) == 1:
            yield row, value * 10.0 ** (3 * (scale - 9) - precision)


def _port_and_lane(described: str, by_name: dict[str, Port]) -> tuple[Port | None, str]:
    """``DOM RX Power Sensor for Ethernet1/2`` is lane 2 of Ethernet1, unless a port has the whole name."""
    lane = _LANE.search(described)
    word = described[: lane.start() if lane else None].rsplit(" ", 1)[-1]
    if word in by_name:
        return by_name[word], lane[1] if lane else "1"
    start, _, last = word.rpartition("/")
    return by_name.get(start), last if last.isascii() and last.isdigit() and len(last) <= 2 else "1"


def _dbm(watts: float) -> float:
    return 10 * math.log10(watts * 1_000) if watts > 0 else -math.inf
