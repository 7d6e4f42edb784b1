"""Tables of SONiC's databases as its own gNMI server gives them -> ``SwitchFacts``. Pure.

In: leaves per database. Out: facts. All numbers are texts. Source: the paths and the recorded answers of
sonic-net/sonic-gnmi (COUNTERS with its queues, PORT_TABLE, LLDP_ENTRY_TABLE, TRANSCEIVER_DOM_SENSOR); names
of counters from SAI; ``stormed`` from sonic-swss, pfcactionhandler. ``flap_count`` was not in a recording.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Final

from collectors.pollers.switch_facts import (
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
from collectors.pollers.switch_gnmi_leaves import Leaf

PATHS: Final[Mapping[str, tuple[str, ...]]] = {
    "COUNTERS_DB": ("/COUNTERS/Ethernet*", "/COUNTERS/Ethernet*/Queues"),
    "APPL_DB": ("/PORT_TABLE", "/LLDP_ENTRY_TABLE"),
    "STATE_DB": ("/TRANSCEIVER_DOM_SENSOR",),
    "CONFIG_DB": ("/PORT_QOS_MAP",),
}
REQUIRED: Final = ("COUNTERS_DB", "APPL_DB")
_ENTRY: Final = re.compile(r"(Ethernet\d{1,5})(?::(\d{1,3}))?")
_PORT_STATS: Final = {
    "SAI_PORT_STAT_IF_IN_OCTETS": "rx_bytes",
    "SAI_PORT_STAT_IF_OUT_OCTETS": "tx_bytes",
    "SAI_PORT_STAT_IF_IN_DISCARDS": "rx_discards",
    "SAI_PORT_STAT_IF_OUT_DISCARDS": "tx_discards",
    "SAI_PORT_STAT_IF_IN_ERRORS": "rx_errors",
    "SAI_PORT_STAT_IF_OUT_ERRORS": "tx_errors",
    "SAI_PORT_STAT_ETHER_STATS_CRC_ALIGN_ERRORS": "rx_fcs_errors",
    "SAI_PORT_STAT_PAUSE_RX_PKTS": "rx_pause",
    "SAI_PORT_STAT_PAUSE_TX_PKTS": "tx_pause",
    "SAI_PORT_STAT_ECN_MARKED_PACKETS": "ecn_marked",
    "SAI_PORT_STAT_IF_IN_FEC_CORRECTABLE_FRAMES": "fec_corrected",
    "SAI_PORT_STAT_IF_IN_FEC_NOT_CORRECTABLE_FRAMES": "fec_uncorrected",
}
_PFC: Final = re.compile(r"SAI_PORT_STAT_PFC_([0-7])_(RX|TX)_PKTS")
_QUEUE_STATS: Final = {"SAI_QUEUE_STAT_BYTES": "bytes", "SAI_QUEUE_STAT_DROPPED_PACKETS": "discards"}
_SUMS: Final = {
    "PFC_WD_QUEUE_STATS_DEADLOCK_DETECTED": "pfc_watchdog_storms",
    "PFC_WD_QUEUE_STATS_TX_DROPPED_PACKETS": "pfc_watchdog_drops",
    "PFC_WD_QUEUE_STATS_RX_DROPPED_PACKETS": "pfc_watchdog_drops",
}
_QUEUE_ECN: Final = "SAI_QUEUE_STAT_WRED_ECN_MARKED_PACKETS"
_POWER: Final = re.compile(r"(rx|tx)(\d{1,2})power")
_STATES: Final = {"up": True, "down": False}
Rows = dict[str, dict[str, Any]]


def facts_of(databases: Mapping[str, Iterable[Leaf]]) -> SwitchFacts:
    """One look. ``databases``: the leaves that each answered with."""
    tables = {name: _rows(leaves) for name, leaves in databases.items()}
    appl = tables.get("APPL_DB", {})
    facts = SwitchFacts()
    for name, row in _ports(appl.get("PORT_TABLE", {})).items():
        if (port := facts.port(name)) is not None:
            _fill(port, row)
    for entry, row in tables.get("COUNTERS_DB", {}).get("COUNTERS", {}).items():
        match = _ENTRY.fullmatch(entry)
        known = facts.ports.get(match[1]) if match else None
        if match and known is not None:
            _add_queue(known, priority_of(match[2]), row) if match[2] else _add_counters(known, row)
    for name, port in facts.ports.items():
        remote = appl.get("LLDP_ENTRY_TABLE", {}).get(name)
        if remote:
            port.add_neighbour(_neighbour(remote))
        _add_module(port, tables.get("STATE_DB", {}).get("TRANSCEIVER_DOM_SENSOR", {}).get(name, {}))
        qos = tables.get("CONFIG_DB", {}).get("PORT_QOS_MAP", {}).get(name)
        if qos is not None:
            enabled = str(qos.get("pfc_enable", ""))[:64].split(",")
            port.lossless = frozenset(found for one in enabled if (found := priority_of(one)) is not None)
    return facts


def _rows(leaves: Iterable[Leaf]) -> dict[str, Rows]:
    """Table -> entry -> fields. The path repeats the wildcard, and ``Queues`` before the queue's own name."""
    found: dict[str, Rows] = defaultdict(lambda: defaultdict(dict))
    for path, value in leaves:
        names = [one for one in path if "*" not in one and one != "Queues"]
        if len(names) >= 3 and len(found[names[0]]) < PORTS_MAX * 32:
            found[names[0]][names[-2] if len(names) == 3 else ":".join(names[1:-1])][names[-1]] = value
    return found


def _ports(table: Rows) -> Rows:
    return {name: row for name, row in table.items() if _ENTRY.fullmatch(name) and ":" not in name}


def _fill(port: Port, row: dict[str, Any]) -> None:
    port.oper_up = _STATES.get(str(row.get("oper_status")))
    port.admin_up = _STATES.get(str(row.get("admin_status")))
    mbps = number_of(row.get("speed"))
    port.rate_gbps = mbps / 1_000 if mbps and mbps > 0 else None
    port.is_meant_up = bool(name_of(row.get("description")))
    port.set_counter("carrier_changes", count_of(row.get("flap_count")))


def _add_counters(port: Port, row: dict[str, Any]) -> None:
    for field, value in row.items():
        if (name := _PORT_STATS.get(field)) is not None:
            port.set_counter(name, count_of(value))
        elif pfc := _PFC.fullmatch(field):
            port.set_counter(f"{pfc[2].lower()}_prio{pfc[1]}_pause", count_of(value))


def _add_queue(port: Port, priority: int | None, row: dict[str, Any]) -> None:
    """Queue N is priority N: SONiC's default, and what its lossless queues keep."""
    for field, stat in _QUEUE_STATS.items():
        if priority is not None:
            port.set_counter(f"tx_queue{priority}_{stat}", count_of(row.get(field)))
    for field, name in _SUMS.items():
        port.add_counter(name, count_of(row.get(field)))
    if "ecn_marked" not in port.counters or _QUEUE_ECN in row:
        port.add_counter("ecn_marked", count_of(row.get(_QUEUE_ECN)))
    state = row.get("PFC_WD_STATUS")
    if isinstance(state, str):
        port.watchdog_active = (port.watchdog_active or 0) + (state == "stormed")
    used = number_of(row.get("SAI_QUEUE_STAT_CURR_OCCUPANCY_BYTES"))
    if used is not None and used >= 0:
        port.values["buffer_used_bytes"] = port.values.get("buffer_used_bytes", 0.0) + used
    most = number_of(row.get("SAI_QUEUE_STAT_SHARED_WATERMARK_BYTES"))
    if most is not None and most >= 0:
        port.values["buffer_watermark_bytes"] = max(most, port.values.get("buffer_watermark_bytes", 0.0))


def _neighbour(row: dict[str, Any]) -> Neighbour:
    port, described = row.get("lldp_rem_port_id"), name_of(row.get("lldp_rem_port_desc"))
    mac, chassis = mac_of(port), row.get("lldp_rem_chassis_id")
    peer = name_of(row.get("lldp_rem_sys_name")) or mac_of(chassis) or name_of(chassis)
    return Neighbour(peer, (described or mac) if mac else (name_of(port) or described), mac)


def _add_module(port: Port, row: dict[str, Any]) -> None:
    temperature = number_of(row.get("temperature"))
    if temperature is not None:
        port.values["module_temperature_c"] = temperature
    for field, value in row.items():
        match, power = _POWER.fullmatch(field), number_of(value)
        if match and power is not None:
            (port.rx_power_dbm if match[1] == "rx" else port.tx_power_dbm)[match[2]] = power
