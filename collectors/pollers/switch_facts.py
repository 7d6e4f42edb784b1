"""What a switch says of its ports, in one form for every dialect.

In: the texts and numbers of SNMP, gNMI or JSON. Out: ``SwitchFacts``. Nothing here is trusted: names are
checked, lengths and numbers of things are bounded. What a switch does not tell is absent, never 0. A
direction is the port's own: ``rx_prio3_pause`` counts what the other end sent because *it* cannot keep up.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from collectors.sources.counters import OUT_OF_RANGE, UNREADABLE, Count, Counter, parsed

PORTS_MAX: Final = 1_024
NEIGHBOURS_MAX: Final = 8
"""per port"""
NAME_MAX_CHARS: Final = 128
LANES_MAX: Final = 16
PRIORITIES: Final = range(8)
TOO_NARROW: Final = "too_narrow"
"""A counter of 32 bits that a port of this rate fills within moments."""
NARROW_GBPS_MAX: Final = 0.1
"""Up to here 32 bits of bytes last for minutes (343 s at 100 Mb/s); RFC 2863 wants 64 bits above 20 Mb/s."""
_LAST_NUMBER: Final = re.compile(r"(\d{1,3})\D{0,16}\Z")
_MAC: Final = re.compile(r"(?:[0-9a-fA-F]{2}([:.-]?)){5}[0-9a-fA-F]{2}|(?:[0-9a-fA-F]{4}\.){2}[0-9a-fA-F]{4}")


class SwitchError(Exception):
    """A switch that gives no answer, or none that can be used; the text is a reason in a few words."""


@dataclass(frozen=True, slots=True)
class Neighbour:
    """The other end of a cable, as LLDP or the fabric tells it; empty: not told.

    Attributes:
        peer_guid: of an InfiniBand adapter: its node GUID, ``/`` and its port's number.
    """

    peer: str
    peer_port: str = ""
    peer_mac: str = ""
    peer_guid: str = ""


@dataclass(slots=True)
class Port:
    """One port at one look. None: not told.

    Attributes:
        rate_gbps: the rate it runs at (or would).
        is_meant_up: it has a description or an expected peer, so that being down is a fault.
        counters: name without its unit ending (``tx_discards``, ``rx_prio3_pause``) -> value.
        values: a gauge's whole name (``module_temperature_c``) -> value.
        rx_power_dbm: lane -> power; minus infinity where there is no light.
        lossless: priorities with PFC; empty where the port has none.
        watchdog_active: queues that the PFC watchdog holds at this moment.
        epoch: anything that is another when the counters were set back.
    """

    name: str
    oper_up: bool | None = None
    admin_up: bool | None = None
    rate_gbps: float | None = None
    is_meant_up: bool = False
    counters: dict[str, Count] = field(default_factory=dict)
    values: dict[str, float] = field(default_factory=dict)
    rx_power_dbm: dict[str, float] = field(default_factory=dict)
    tx_power_dbm: dict[str, float] = field(default_factory=dict)
    lossless: frozenset[int] | None = None
    watchdog_active: int | None = None
    neighbours: list[Neighbour] = field(default_factory=list)
    epoch: str = ""

    def set_counter(self, name: str, count: Count | None) -> None:
        """Absent stays absent; of two sources of one counter the first that knows a value stays."""
        if count is None:
            return
        known = self.counters.get(name)
        if known is None or known.value is None:
            self.counters[name] = count

    def add_counter(self, name: str, count: Count | None) -> None:
        """Sums parts of one counter, such as the drops of several queues."""
        known = self.counters.get(name)
        if count is None or count.value is None or known is None or known.value is None:
            self.set_counter(name, count)
        else:
            self.counters[name] = Count(known.value + count.value)

    def add_neighbour(self, neighbour: Neighbour) -> None:
        if neighbour.peer and neighbour not in self.neighbours and len(self.neighbours) < NEIGHBOURS_MAX:
            self.neighbours.append(neighbour)


@dataclass(slots=True)
class SwitchFacts:
    """One look at one switch.

    Attributes:
        ports: name -> port, at most ``PORTS_MAX``.
        uptime_s: of what counts; a smaller one than before means that every counter began anew.
        uptime_wraps_s: where the uptime itself starts again at 0.
        kinds: counters that are not 64 bits wide.
        missing: what could not be asked for, in words.
    """

    ports: dict[str, Port] = field(default_factory=dict)
    uptime_s: float | None = None
    uptime_wraps_s: float | None = None
    kinds: Mapping[str, Counter] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)

    def port(self, raw_name: object) -> Port | None:
        """The port of that name, made when it is new; None for a bad name or too many ports."""
        name = name_of(raw_name)
        if not name:
            return None
        port = self.ports.get(name)
        if port is None and len(self.ports) < PORTS_MAX:
            port = self.ports[name] = Port(name)
        return port


def name_of(raw: object) -> str:
    """A name from a switch; empty where it is none: not printable, empty or too long."""
    if not isinstance(raw, str):
        return ""
    text = raw.strip()
    return text if 0 < len(text) <= NAME_MAX_CHARS and text.isprintable() else ""


def mac_of(raw: object) -> str:
    """An Ethernet address of any spelling as ``aa:bb:cc:dd:ee:ff``; empty where it is none."""
    text = raw.strip() if isinstance(raw, str) else ""
    if not _MAC.fullmatch(text):
        return ""
    digits = re.sub(r"[^0-9a-f]", "", text.lower())
    return ":".join(digits[at : at + 2] for at in range(0, 12, 2))


def count_of(raw: object) -> Count | None:
    """A counter as JSON tells it: a number, or its digits as a text (RFC 7951 for 64 bits). None: absent."""
    if raw is None:
        return None
    if isinstance(raw, str):
        return parsed(raw)
    if isinstance(raw, float) and raw.is_integer():
        raw = int(raw)
    if isinstance(raw, bool) or not isinstance(raw, int):
        return Count(None, UNREADABLE)
    return Count(raw) if 0 <= raw < 2**64 else Count(None, OUT_OF_RANGE)


def number_of(raw: object) -> float | None:
    """A measured value; minus infinity may be one of light. None for what is no number."""
    if isinstance(raw, str):
        try:
            raw = float(raw.strip().removesuffix("dBm").removesuffix("C")) if len(raw) <= 32 else None
        except ValueError:
            return None
    if isinstance(raw, bool) or not isinstance(raw, int | float):
        return None
    value = _as_float(raw)
    return None if math.isnan(value) or value == math.inf else value


def _as_float(raw: int | float) -> float:
    try:
        return float(raw)
    except OverflowError:
        return math.inf


def priority_of(raw: object) -> int | None:
    """The priority of a queue's name (``Ethernet1:3``, ``UC3``, ``3``); None for multicast and for others."""
    text = str(raw) if isinstance(raw, str | int) and not isinstance(raw, bool) else ""
    match = _LAST_NUMBER.search(text[-NAME_MAX_CHARS:])
    if match is None or "mc" in text.lower().rsplit(":", 1)[-1]:
        return None
    number = int(match[1])
    return number if number in PRIORITIES else None


def narrow_bytes(count: Count | None, rate_gbps: float | None) -> Count | None:
    """Bytes of a 32-bit counter: usable only on a port that cannot fill it between two looks."""
    if count is None or (rate_gbps is not None and rate_gbps <= NARROW_GBPS_MAX):
        return count
    return Count(None, TOO_NARROW)
