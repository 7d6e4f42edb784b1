"""Pluggable modules of network ports: light, temperature, voltage, bias current, and who made them.

In: ``ethtool -m`` of Ethernet ports, recorded as commands/ethtool_-m_<netdev>.txt or .json; ``mlxlink -m`` of
InfiniBand ones (commands/mlxlink_-m_<device>.json); the driver's own sensor of the module, where no tool
tells. Out: samples of ``port/<rdma device>/<n>``, or ``nic/<netdev>`` where there is no RDMA;
``optics_weak`` and ``optics_hot``. Reading a module keeps its firmware busy for up to hundreds of
milliseconds, so one port is asked at a look, each at most every ``EVERY_S``; one without a module hourly.
"""

from __future__ import annotations

import errno
import re
import zlib
from dataclasses import dataclass, field
from typing import Final

from collectors.minute import MetricSpec
from collectors.sources.base import Reading, Sample
from collectors.sources.ethernet import ROOT as NET
from collectors.sources.ethernet import netdevs
from collectors.sources.optics_dialects import parse
from collectors.sources.optics_module import PART, Module, events, number, samples
from collectors.sources.pci_places import device_bdf, rdma_of_netdev
from collectors.sources.tools import output
from collectors.sources.tree import Tree, reason
from collectors.sources.versions_facts import FACT

EVERY_S: Final = 300.0
JITTER_S: Final = 30
NONE_EVERY_S: Final = 3_600.0
FIND_EVERY_S: Final = 60.0
TIMEOUT_S: Final = 3.0
PORTS_MAX: Final = 64
SAID_MAX_BYTES: Final = 128 * 1024
RDMA: Final = "sys/class/infiniband"
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_RECORDED: Final = re.compile(r"(ethtool|mlxlink)_-m_([A-Za-z0-9_.-]{1,64})\.(?:txt|json)")
_SENSOR: Final = re.compile(r"temp(\d{1,2})_label")


@dataclass(frozen=True, slots=True)
class Place:
    """A port and how it is asked. ``tool``: ethtool or mlxlink; ``device``: what the tool calls the port."""

    entity: str
    tool: str
    device: str
    name: str
    recording: str
    bdf: str | None = None

    @property
    def commands(self) -> list[list[str]]:
        """What to run, the first that is installed."""
        if self.tool == "ethtool":
            return [["ethtool", "-m", self.device]]
        return [[tool, "-d", self.bdf or self.device, "-m", "--json"] for tool in ("mlxlink", "mstlink")]


@dataclass(slots=True)
class _Port:
    next_s: float = float("-inf")
    asked_s: float = float("-inf")
    known: bool = False
    reading: Reading = field(default_factory=Reading)


class OpticsSource:
    """The modules of a node, one port a look."""

    name = "optics"
    period_s = 15.0
    deadline_s = 8.0
    metrics = (
        MetricSpec("rx_power_dbm", "dbm", 0.01),
        MetricSpec("tx_power_dbm", "dbm", 0.01),
        MetricSpec("tx_bias_a", "a", 0.000001),
        MetricSpec("module_temperature_c", "c", 0.1),
        MetricSpec("module_voltage_v", "v", 0.001),
        MetricSpec("module_alarms_count", "count", 1.0),
        MetricSpec("module_warnings_count", "count", 1.0),
        MetricSpec(PART, "count", 1.0),
        MetricSpec(FACT, "count", 1.0),
    )

    def __init__(self) -> None:
        self._ports: dict[Place, _Port] = {}
        self._found_s: float | None = None

    def read(self, tree: Tree, at_s: float) -> Reading:
        if tree.is_due(self._found_s, at_s, FIND_EVERY_S):
            self._found_s = at_s
            self._ports = {place: self._ports.get(place) or _Port() for place in places(tree)}
        due = [place for place, port in self._ports.items() if port.next_s <= at_s or not tree.is_paced]
        due.sort(key=lambda place: self._ports[place].asked_s)
        for place in due[:1] if tree.is_paced else due:
            self._ask(tree, place, at_s)
        readings = [port.reading for port in self._ports.values()]
        told = [sample for reading in readings for sample in reading.samples]
        return Reading(told, [event for reading in readings for event in reading.events])

    def _ask(self, tree: Tree, place: Place, at_s: float) -> None:
        port = self._ports[place]
        jitter_s = zlib.crc32(f"{place.entity} {at_s}".encode()) % JITTER_S
        port.asked_s, port.next_s = at_s, at_s + EVERY_S + jitter_s
        module, why = _asked(tree, place)
        if module is None or "temperature" not in module.values:
            module = _with_sensor(tree, place, module)
        if module is not None:
            port.known = True
            port.reading = Reading(
                list(samples(place.entity, module)), list(events(place.entity, place.name, module))
            )
        elif port.known or (not tree.is_live and why != "not_available"):
            port.known = False
            port.reading = Reading([Sample(place.entity, "module_temperature_c", None, why)])
        else:
            port.next_s, port.reading = at_s + NONE_EVERY_S + jitter_s, Reading()


def _asked(tree: Tree, place: Place) -> tuple[Module | None, str]:
    """The module, or why there is none."""
    why = "not_available"
    for argv in place.commands:
        try:
            return parse(output(tree, place.recording, argv, TIMEOUT_S, SAID_MAX_BYTES)), why
        except OSError as error:
            why = reason(error)
            if error.errno != errno.ENOENT:
                break
        except (ValueError, RecursionError):
            return None, "unreadable"
    return None, why


# --- places -----------------------------------------------------------------------------------------------


def places(tree: Tree) -> list[Place]:
    """The ports of the node that may have a module; functions of virtual machines have none of their own."""
    if not tree.is_live:
        names = [match for name in tree.list("commands")[:4_096] if (match := _RECORDED.fullmatch(name))]
        return [_recorded(tree, match[1], match[2], match[0]) for match in names][:PORTS_MAX]
    found = [
        _ethernet(tree, netdev, f"ethtool_-m_{netdev}.txt")
        for netdev in netdevs(tree)
        if tree.exists(f"{NET}/{netdev}/device") and not tree.exists(f"{NET}/{netdev}/device/physfn")
    ]
    found = [place for place in found if not _is_infiniband(tree, place.entity)]
    for device in tree.list(RDMA)[:PORTS_MAX]:
        is_named = _NAME.fullmatch(device) is not None
        if is_named and not tree.exists(f"{RDMA}/{device}/device/physfn"):
            found += [
                place
                for number_of_port in tree.list(f"{RDMA}/{device}/ports")[:4]
                if (place := _infiniband(tree, device, number_of_port)) and _is_infiniband(tree, place.entity)
            ]
    return found[:PORTS_MAX]


def _recorded(tree: Tree, tool: str, device: str, name: str) -> Place:
    if tool == "ethtool":
        return _ethernet(tree, device, name)
    return Place(f"port/{device}/1", tool, device, device, name)


def _ethernet(tree: Tree, netdev: str, recording: str) -> Place:
    rdma = rdma_of_netdev(tree, netdev)
    entity = f"port/{rdma}/1" if rdma is not None and _NAME.fullmatch(rdma) else f"nic/{netdev}"
    return Place(entity, "ethtool", netdev, netdev, recording, device_bdf(tree, f"{NET}/{netdev}"))


def _infiniband(tree: Tree, device: str, port: str) -> Place | None:
    if not port.isdecimal() or not port.isascii() or len(port) > 3:
        return None
    bdf = device_bdf(tree, f"{RDMA}/{device}")
    return Place(f"port/{device}/{port}", "mlxlink", device, device, f"mlxlink_-m_{device}.json", bdf)


def _is_infiniband(tree: Tree, entity: str) -> bool:
    kind, _, rest = entity.partition("/")
    device, _, port = rest.partition("/")
    if kind != "port":
        return False
    try:
        return tree.read_text(f"{RDMA}/{device}/ports/{port}/link_layer", 64).strip() == "InfiniBand"
    except OSError:
        return False


def _with_sensor(tree: Tree, place: Place, module: Module | None) -> Module | None:
    """The temperature that the driver measures itself; None where it has no sensor of the module."""
    if place.bdf is None or (module is not None and module.is_copper):
        return module
    root = f"sys/bus/pci/devices/{place.bdf}/hwmon"
    for monitor in tree.list(root)[:4]:
        for name in tree.list(f"{root}/{monitor}")[:64]:
            match = _SENSOR.fullmatch(name)
            if match and _line(tree, f"{root}/{monitor}/{name}").lower().startswith("module"):
                stem = f"{root}/{monitor}/temp{match[1]}"
                value = number(_line(tree, f"{stem}_input"))
                if value is None:
                    continue
                module = module if module is not None else Module()
                module.values["temperature"] = value / 1_000
                limit = number(_line(tree, f"{stem}_crit"))
                if limit and "temperature" not in module.limits:
                    module.add_limit("temperature", "high_alarm", limit / 1_000)
                return module
    return module


def _line(tree: Tree, name: str) -> str:
    try:
        return tree.read_text(name, 128).strip()
    except OSError:
        return ""
