"""Looks at BMCs that serve a tree, and what a look told, for the tests of Redfish."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from collectors.pollers.device import DeviceReading
from collectors.pollers.redfish import Bmc, RedfishPoller
from collectors.pollers.redfish_client import Login
from collectors.sources.base import SourceEvent
from tests.collectors.pollers.http_peer import peer
from tests.collectors.pollers.redfish_trees import V1

CLOCK_S = 1_796_205_600.0
"""2026-12-02 10:00 as the trees' BMC has it"""
PSU = f"{V1}/Chassis/chassis/PowerSubsystem/PowerSupplies"


def bmc(address: str, name: str = "b1", **fields: Any) -> Bmc:
    return Bmc(name, Login(address, insecure=True), **fields)


def poller(*bmcs: Bmc, wall_s: float = CLOCK_S, **options: Any) -> RedfishPoller:
    return RedfishPoller(list(bmcs), wall=lambda: wall_s, **options)


def look(tree: dict[str, Any], **fields: Any) -> DeviceReading:
    """One look at a BMC that serves a tree."""
    with peer(tree) as running:
        (found,) = poller(bmc(running.address, **fields)).poll(0.0)
    return found


def looks(tree: dict[str, Any], *changes: Callable[[], None]) -> list[DeviceReading]:
    """A look, then one after each change, a minute apart."""
    with peer(tree) as running:
        asking = poller(bmc(running.address))
        found = list(asking.poll(0.0))
        for at, change in enumerate(changes, 1):
            change()
            found += asking.poll(at * 60.0)
    return found


def values(found: DeviceReading) -> dict[tuple[str, str], float | None]:
    return {
        (one.entity, one.metric): one.value for one in found.reading.samples if one.metric != "part_count"
    }


def qualities(found: DeviceReading) -> dict[tuple[str, str], str]:
    return {(one.entity, one.metric): one.quality for one in found.reading.samples}


def faults(found: DeviceReading) -> set[tuple[str, str, str]]:
    return {(one.entity, one.kind, one.severity) for one in found.reading.events}


def told(found: DeviceReading, kind: str) -> list[SourceEvent]:
    return [one for one in found.reading.events if one.kind == kind]
