"""Devices as pages show them: a list, a switch with its ports in trouble first, what stands around a node.

In: what ``jobs.device_view`` read. Out: dataclasses for the templates.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from clusterwatch.jobs.device_view import DeviceLine, DeviceView, FarEnd, Neighbour, NodeDevices
from clusterwatch.store.node_readings import Reading
from clusterwatch.web.node_page import EventRow, event_row
from clusterwatch.web.part_tables import Cell, Head, Looked, Section, cell, looked, natural, sections
from clusterwatch.web.words import Badge

PORT: Final = "switchport/"
TROUBLE: Final = re.compile(r"(?:discards|errors|fec_uncorrected|pfc_watchdog_drops)_delta_count\Z")
"""Counters that should stand still: one that moved since the look before is trouble."""
ERRORS: Final = re.compile(r"(?:errors|fec_uncorrected)_delta_count\Z")
DISCARDS: Final = re.compile(r"(?:discards|pfc_watchdog_drops)_delta_count\Z")


@dataclass(frozen=True, slots=True)
class DeviceRow:
    """One device of a list."""

    line: DeviceLine
    badge: Badge
    heard_at: datetime


@dataclass(frozen=True, slots=True)
class PortRow:
    """A port of a switch; ``trouble`` names in words what is wrong with it, empty: nothing is known to be."""

    name: str
    entity: str
    up: Cell
    rate: Cell
    sent: Cell
    received: Cell
    discards: Cell
    errors: Cell
    trouble: str
    in_use: bool
    neighbours: tuple[Neighbour, ...]


@dataclass(frozen=True, slots=True)
class PortGroup:
    title: str
    note: str
    rows: tuple[PortRow, ...]
    is_open: bool


@dataclass(frozen=True, slots=True)
class DevicePage:
    view: DeviceView
    badge: Badge
    heard_at: datetime
    sources: tuple[Looked, ...]
    ports: tuple[PortGroup, ...]
    sections: tuple[Section, ...]
    events: tuple[EventRow, ...]


@dataclass(frozen=True, slots=True)
class FarRow:
    """The far end of one of a node's ports."""

    far: FarEnd
    own: str
    port: PortRow


@dataclass(frozen=True, slots=True)
class Around:
    """What stands around a node: sections of its BMC and its rack's power, the far ends of its ports."""

    own: tuple[DevicePage, ...]
    far: tuple[FarRow, ...]


def badge_of(line: DeviceLine) -> Badge:
    """A device that was not reached is unknown, never fine."""
    if line.stale:
        return Badge("unknown", "not heard of lately")
    return Badge("ok", "answers") if line.state == "ok" else Badge("degraded", line.state[:64])


def rows(lines: Sequence[DeviceLine], now: datetime) -> list[DeviceRow]:
    """Those that were not reached come first."""
    found = [DeviceRow(line, badge_of(line), now - timedelta(seconds=line.age_s)) for line in lines]
    return sorted(found, key=lambda row: row.line.is_reached)


def build(view: DeviceView, now: datetime) -> DevicePage:
    """Arranges what was read. Cost: linear in the values."""
    entities = view.readings.entities
    rest = {name: values for name, values in entities.items() if not name.startswith(PORT)}
    sources = tuple(looked(state, now) for state in view.readings.sources)
    seen: dict[str, list[Neighbour]] = {}
    for neighbour in view.neighbours:
        seen.setdefault(neighbour.port, []).append(neighbour)
    ports = [
        port_row(name, values, seen.get(name, ()))
        for name, values in entities.items()
        if name.startswith(PORT)
    ]
    return DevicePage(
        view=view,
        badge=badge_of(view.line),
        heard_at=now - timedelta(seconds=view.line.age_s),
        sources=sources,
        ports=tuple(_groups(ports)),
        sections=tuple(sections(rest, sources, lambda entity: _part(entity, view.line.name))),
        events=tuple(event_row(event) for event in view.events),
    )


def around(found: NodeDevices, now: datetime) -> Around:
    """What a node's page shows of the devices near it."""
    far = tuple(
        FarRow(one, one.port.partition("/")[2], port_row(one.device_port, one.values, ()))
        for one in found.far_ends
    )
    return Around(tuple(build(view, now) for view in found.own), far)


def port_row(entity: str, values: Sequence[Reading], neighbours: Sequence[Neighbour]) -> PortRow:
    """One port in a line."""
    by_metric = {reading.metric: reading for reading in values}
    return PortRow(
        name=entity.partition("/")[2].partition("/")[2] or entity,
        entity=entity,
        up=cell(by_metric.get("oper_up_count")),
        rate=cell(by_metric.get("rate_gbps")),
        sent=cell(by_metric.get("tx_utilization_ratio")),
        received=cell(by_metric.get("rx_utilization_ratio")),
        discards=_moved(by_metric, DISCARDS),
        errors=_moved(by_metric, ERRORS),
        trouble=_trouble(by_metric),
        in_use=bool(neighbours) or _number(by_metric, "oper_up_count") != 0,
        neighbours=tuple(neighbours),
    )


def _number(by_metric: Mapping[str, Reading], metric: str) -> float | None:
    reading = by_metric.get(metric)
    return None if reading is None else reading.value


def _moved(by_metric: Mapping[str, Reading], which: re.Pattern[str]) -> Cell:
    """By how much these counters moved since the look before, together; not known where one is not."""
    found = [reading for metric, reading in by_metric.items() if which.search(metric)]
    unknown = next((reading for reading in found if reading.value is None), None)
    if unknown is not None or not found:
        return cell(unknown)
    total = sum(reading.value or 0 for reading in found)
    return Cell(f"+{total:g}" if total else "0", stale=any(reading.stale for reading in found))


def _trouble(by_metric: Mapping[str, Reading]) -> str:
    moved = [
        metric.removesuffix("_delta_count").replace("_", " ")
        for metric, reading in by_metric.items()
        if TROUBLE.search(metric) and (reading.value or 0) > 0
    ]
    if (_number(by_metric, "pfc_watchdog_active_count") or 0) > 0:
        moved.insert(0, "PFC watchdog holds a queue")
    is_down = _number(by_metric, "oper_up_count") == 0 and _number(by_metric, "admin_up_count") == 1
    if is_down and ("neighbour_count" in by_metric or (_number(by_metric, "carrier_changes_total") or 0) > 0):
        moved.insert(0, "down, and was in use")
    return ", ".join(moved[:4])


def _groups(ports: list[PortRow]) -> list[PortGroup]:
    ports.sort(key=lambda port: natural(port.name))
    bad = tuple(port for port in ports if port.trouble)
    calm = tuple(port for port in ports if not port.trouble and port.in_use)
    idle = tuple(port for port in ports if not port.trouble and not port.in_use)
    groups = [
        PortGroup(
            "Ports in trouble", "errors or discards since the look before, or down though used", bad, True
        ),
        PortGroup("Other ports in use", "nothing known against them", calm, not bad and len(calm) <= 40),
        PortGroup("Ports not in use", "down, and nobody is seen there", idle, False),
    ]
    return [group for group in groups if group.rows]


def _part(entity: str, device: str) -> Head:
    kind, _, name = entity.partition("/")
    short = name.removeprefix(f"{device}/")
    return Head(short or kind, entity)
