"""Which resources of a BMC are looked at, and in which order: what matters most comes first.

In: a way to get a resource (it may fail, and gives nothing when the look's budget is spent). Out: ``Told``
and the logs. A resource that cannot be read costs only what it would have told. Where a BMC can expand a
collection, one request gives all its members. Source: DMTF DSP2046; OCP profile for power shelves; NVIDIA HGX
(GPUs and NVSwitches are chassis with sensors).
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from collectors.pollers import redfish_parts as parts
from collectors.pollers.redfish_log import LogRead, Mark, entry, is_event_log, order_of
from collectors.pollers.redfish_values import (
    ROWS_MAX,
    Resource,
    child,
    identity,
    link,
    number,
    rows,
    seconds,
    status,
    word,
)
from collectors.sources.base import SourceEvent

ROOT: Final = "/redfish/v1/"
CHASSIS_MAX: Final = 64
PAGES_MAX: Final = 8
LOGS_MAX: Final = 4
SINGLE_ENTRIES_MAX: Final = 64
EXPAND: Final = "?$expand=.($levels=1)"
Get = Callable[[str], Awaitable[Resource | None]]
"""The resource at a path; None where it cannot be had."""


@dataclass(slots=True)
class Seen:
    """What one look found beside samples."""

    told: parts.Told
    logs: list[tuple[str, LogRead]] = field(default_factory=list)
    clock_s: float | None = None
    """the BMC's own time"""
    has_inventory: bool = False


class Walk:
    """One look at one BMC."""

    def __init__(
        self, get: Get, told: parts.Told, marks: dict[str, Mark], wants_inventory: bool, first_sensor: int
    ) -> None:
        """
        Args:
            marks: log's path -> what was there at the look before.
            wants_inventory: whether the lists that hardly change are looked at, too.
            first_sensor: where to begin among sensors that must be asked one by one.
        """
        self._get = get
        self._marks = marks
        self._wants_inventory = wants_inventory
        self._first_sensor = first_sensor
        self._expands = False
        self._told = told
        self._bmc = f"bmc/{told.bmc}"
        self.seen = Seen(told)

    async def run(self, root: Resource) -> None:
        features = child(root, "ProtocolFeaturesSupported")
        self._expands = child(features, "ExpandQuery").get("NoLinks") is True
        shelves = await self._linked(child(root, "PowerEquipment"))
        for shelf in await self._members(child(shelves, "PowerShelves")):
            await self._shelf(shelf)
        chassis = await self._members(child(root, "Chassis"))
        for one in chassis[:CHASSIS_MAX]:
            await self._chassis(one)
        systems = await self._members(child(root, "Systems"))
        managers = await self._members(child(root, "Managers"))
        for system in systems:
            self._system(system)
        for manager in managers:
            self._manager(manager)
        await self._logs([*systems, *managers, *chassis])
        if self._wants_inventory:
            await self._inventory(root, systems)
        for one in chassis[:CHASSIS_MAX]:
            await self._sensors(one)

    async def _linked(self, value: object) -> Resource:
        path = link(value)
        return (await self._get(path) if path else None) or {}

    async def _members(self, collection: object) -> list[Resource]:
        """All members of a collection, expanded where the BMC can."""
        path = link(collection)
        if path is None:
            return []
        found: list[Resource] = []
        page = await self._get(path + EXPAND) if self._expands and "?" not in path else None
        if page is None:
            page = await self._get(path)
        for _ in range(PAGES_MAX):
            for row in rows(page or {}, "Members"):
                whole = row if len(row) > 1 else await self._linked(row)
                if whole and len(found) < ROWS_MAX:
                    found.append(whole)
            following = link((page or {}).get("Members@odata.nextLink"))
            if following is None:
                break
            page = await self._get(following)
        return found

    async def _shelf(self, shelf: Resource) -> None:
        """A power shelf: its PSUs, batteries and what it delivers."""
        place = identity(shelf, "shelf")
        self._told.part(self._bmc, shelf, part=place)
        metrics = await self._linked(shelf.get("Metrics"))
        self._power(place, metrics)
        await self._supplies(place, shelf.get("PowerSupplies"))
        await self._batteries(place, shelf.get("Batteries"))
        for row in rows(shelf, "PowerSupplyRedundancy"):
            health = status(row)[1]
            if health in ("Warning", "Critical"):
                self._told.fault(
                    self._bmc,
                    "power_redundancy_lost",
                    f"{place}: power supplies no longer redundant",
                    "warning",
                )

    async def _chassis(self, chassis: Resource) -> None:
        place = identity(chassis, "chassis")
        self._told.part(self._bmc, chassis, part=place)
        await self._chassis_power(place, chassis)
        await self._chassis_cooling(place, chassis)
        environment = await self._linked(chassis.get("EnvironmentMetrics"))
        self._power(place, environment)
        hot = number(environment.get("TemperatureCelsius"))
        if hot is not None:
            self._told.add(f"sensor/{self._told.bmc}/{place}", "temperature_c", hot)

    def _power(self, place: str, metrics: Resource) -> None:
        """What EnvironmentMetrics, or the metrics of a shelf, say of power and energy."""
        for name, metric, factor in (
            ("PowerWatts", "power_w", 1.0),
            ("InputPowerWatts", "power_w", 1.0),
            ("PowerLimitWatts", "power_limit_w", 1.0),
            ("EnergykWh", "energy_j_total", 3.6e6),
            ("EnergyJoules", "energy_j_total", 1.0),
        ):
            value = number(metrics.get(name))
            if name == "PowerLimitWatts" and value is None:
                value = number(child(metrics, name).get("SetPoint"))
            if value is not None:
                self._told.add(self._bmc, metric, value * factor, part=place)

    async def _chassis_power(self, place: str, chassis: Resource) -> None:
        power = await self._linked(chassis.get("PowerSubsystem"))
        found = await self._supplies(place, power.get("PowerSupplies"))
        found |= await self._batteries(place, power.get("Batteries"))
        if found or not (old := await self._linked(chassis.get("Power"))):
            return
        for at, control in enumerate(rows(old, "PowerControl")):
            part = place if at == 0 else f"{place}.{identity(control, str(at))}"
            self._told.add(self._bmc, "power_w", number(control.get("PowerConsumedWatts")), part=part)
            limit = number(child(control, "PowerLimit").get("LimitInWatts"))
            if limit:
                self._told.add(self._bmc, "power_limit_w", limit, part=part)
        for entity, supply in parts.entities(self._told, "psu", place, rows(old, "PowerSupplies")):
            parts.power_supply(self._told, entity, supply, {})
        for entity, rail in parts.entities(self._told, "sensor", place, rows(old, "Voltages")):
            if status(rail)[0] != "Absent":
                self._told.add(entity, "voltage_v", number(rail.get("ReadingVolts")))

    async def _supplies(self, place: str, collection: object) -> bool:
        found = await self._members(collection)
        for entity, supply in parts.entities(self._told, "psu", place, found):
            is_there = status(supply)[0] != "Absent"
            metrics = await self._linked(supply.get("Metrics")) if is_there else {}
            parts.power_supply(self._told, entity, supply, metrics)
        return bool(found)

    async def _batteries(self, place: str, collection: object) -> bool:
        found = await self._members(collection)
        for entity, unit in parts.entities(self._told, "bbu", place, found):
            parts.battery(self._told, entity, unit, await self._linked(unit.get("Metrics")))
        return bool(found)

    async def _chassis_cooling(self, place: str, chassis: Resource) -> None:
        cooling = await self._linked(chassis.get("ThermalSubsystem"))
        fans = await self._members(cooling.get("Fans"))
        for entity, unit in parts.entities(self._told, "fan", place, fans):
            parts.fan(self._told, entity, unit)
        metrics = await self._linked(cooling.get("ThermalMetrics"))
        for row in rows(metrics, "TemperatureReadingsCelsius"):
            self._reading(place, row)
        if fans or not (old := await self._linked(chassis.get("Thermal"))):
            return
        for entity, unit in parts.entities(self._told, "fan", place, rows(old, "Fans")):
            parts.fan(self._told, entity, unit)
        for entity, sensor in parts.entities(self._told, "sensor", place, rows(old, "Temperatures")):
            parts.temperature(self._told, entity, sensor)

    def _reading(self, place: str, row: Resource) -> None:
        """A line of ThermalMetrics: it names its sensor by the path of that."""
        source = link(row.get("DataSourceUri"))
        name = source.rpartition("/")[2] if source else word(row.get("DeviceName"))
        value = number(row.get("Reading"))
        if name and value is not None:
            self._told.add(f"sensor/{self._told.bmc}/{place}.{name}", "temperature_c", value)

    async def _sensors(self, chassis: Resource) -> None:
        """Of sensors that must be asked one by one, each look begins behind those of the look before."""
        path, place = link(chassis.get("Sensors")), identity(chassis, "chassis")
        if path is None:
            return
        page = await self._get(path + EXPAND) if self._expands else None
        found = rows(page or await self._get(path) or {}, "Members")
        start = self._first_sensor % len(found) if found else 0
        whole = [row if len(row) > 1 else await self._linked(row) for row in (*found[start:], *found[:start])]
        for entity, sensor in parts.entities(self._told, "sensor", place, [row for row in whole if row]):
            parts.sensor(self._told, entity, sensor)

    def _system(self, system: Resource) -> None:
        place = identity(system, "system")
        self._told.part(self._bmc, {**system, "FirmwareVersion": system.get("BiosVersion")}, part=place)
        power = word(system.get("PowerState"), 32)
        if power not in ("On", "Off"):
            return
        self._told.add(self._bmc, "powered_on_count", float(power == "On"), part=place)
        on = f"{self._bmc} {place} on"
        if power == "On":
            self._told.present.add(on)
        elif on in self._told.before:
            self._told.present.add(on)
            self._told.fault(self._bmc, "power_lost", f"{place} is switched off", "warning")

    def _manager(self, manager: Resource) -> None:
        self._told.part(self._bmc, manager, part=identity(manager, "manager"))
        if self.seen.clock_s is None:
            self.seen.clock_s = seconds(manager.get("DateTime"))

    async def _inventory(self, root: Resource, systems: list[Resource]) -> None:
        """Firmware, and the serials of GPUs: hardly ever another."""
        for system in systems:
            for processor in await self._members(system.get("Processors")):
                self._told.part(self._bmc, processor, part=identity(processor, "processor"))
        updates = await self._linked(root.get("UpdateService"))
        for firmware in await self._members(updates.get("FirmwareInventory")):
            self._told.part(self._bmc, firmware, part=identity(firmware, "firmware"))
        self.seen.has_inventory = True

    async def _logs(self, owners: list[Resource]) -> None:
        read: set[str] = set()
        for owner in owners:
            for service in await self._members(owner.get("LogServices")):
                path = link(service.get("Entries"))
                if path is None or path in read or len(read) >= LOGS_MAX or not is_event_log(service):
                    continue
                read.add(path)
                self.seen.logs.append((path, await self._log(path, identity(service, "log"))))

    async def _log(self, path: str, name: str) -> LogRead:
        mark, read = self._marks.get(path, Mark()), LogRead(name)
        page = await self._get(path)
        total = number((page or {}).get("Members@odata.count"))
        read.count = None if total is None or total < 0 else int(total)
        for at in range(PAGES_MAX):
            if page is None:
                read.is_whole = False
                return read
            found = rows(page, "Members")
            following = link(page.get("Members@odata.nextLink"))
            if at == 0:
                read.page = _page(read.count, found)
                if following and read.page == mark.page:
                    read.is_unchanged = True
                    return read
            await self._entries(read, found, mark)
            if following is None:
                return read
            page = await self._get(following)
        read.is_whole = False
        if read.count and len(read.entries) < read.count:  # the newest may be the last
            newest = await self._get(f"{path}?$skip={max(read.count - ROWS_MAX // 2, 0)}")
            await self._entries(read, rows(newest or {}, "Members"), mark)
        return read

    async def _entries(self, read: LogRead, found: list[Resource], mark: Mark) -> None:
        """Entries of a page; of bare links only the newest behind the mark are followed."""
        bare = [((order_of((link(row) or "").rstrip("/")) or (0, 0)), row) for row in found if len(row) == 1]
        bare = [pair for pair in bare if mark.order is None or pair[0] >= mark.order]
        bare.sort(key=lambda pair: pair[0], reverse=True)
        followed = bare[: SINGLE_ENTRIES_MAX if mark.is_set else 1]
        read.is_whole = read.is_whole and len(followed) == len(bare)
        whole = [row for row in found if len(row) > 1]
        whole += [await self._linked(row) for _, row in followed]
        read.entries += [one for row in whole if (one := entry(row)) is not None]


def _page(count: int | None, found: list[Resource]) -> str:
    ids = "\0".join(word(row.get("Id")) or word(row.get("@odata.id")) for row in found)
    return hashlib.sha256(f"{count}\0{ids}".encode()).hexdigest()[:16]


def no_answer(bmc: str, why: str) -> SourceEvent:
    """A BMC among several of a rack that did not answer."""
    return SourceEvent(f"bmc/{bmc}", "bmc_unreachable", f"{bmc}: {why}", "warning", standing=True)
