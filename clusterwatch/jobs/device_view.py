"""Devices as pages and REST show them: what each told, who is at the far end of its ports, what happened.

A cable is known by one end or by both: a switch tells who it sees, and a node or another switch is found
there by the Ethernet address of its port, else by its name and that of the port. What fits two is not joined.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from django.db.models import Q, QuerySet

from clusterwatch.fleet.models import Cluster, Node
from clusterwatch.store import device_readings, node_readings, queries
from clusterwatch.store.device_readings import host_of, is_same_host
from clusterwatch.store.models import Device, DeviceNeighbour
from clusterwatch.store.node_readings import STALE_AFTER_S, NodeReadings, Reading
from clusterwatch.store.queries import StoredEvent

EVENTS_WITHIN_NS: Final = 7 * 86_400 * 10**9
EVENTS_SHOWN: Final = 50
FAR_ENDS_MAX: Final = 64
"""of one node; a node has fewer ports"""
SWITCH: Final = "switch"
RACK: Final = "rack"
AMBIGUOUS: Final = "several nodes have this name"
NO_PORT: Final = "the device does not say which port of the node"


@dataclass(frozen=True, slots=True)
class DeviceLine:
    """A device and how it was reached."""

    id: int
    cluster: Cluster
    kind: str
    name: str
    node_name: str
    """the host it belongs to; empty: none"""
    poller: str
    polled_from: Node | None
    """None: that node is not known any more"""
    state: str
    """``ok``, or why it gave nothing at the last look"""
    age_s: float
    """since its poller spoke of it"""
    stale: bool

    @property
    def is_reached(self) -> bool:
        return self.state == "ok" and not self.stale


@dataclass(frozen=True, slots=True)
class Neighbour:
    """What one port of a device sees; ``doubt`` says why it is not joined with a node that bears the name."""

    port: str
    peer: str
    peer_port: str
    peer_mac: str
    peer_node: Node | None
    peer_device: DeviceLine | None
    doubt: str = ""


@dataclass(frozen=True, slots=True)
class SeenFrom:
    """Another device that says this one is at the far end of its ``port``; ``own_port`` in its words."""

    device: DeviceLine
    port: str
    own_port: str


@dataclass(frozen=True, slots=True)
class DeviceView:
    """A device for one person."""

    line: DeviceLine
    readings: NodeReadings
    neighbours: list[Neighbour]
    seen_from: list[SeenFrom]
    events: list[StoredEvent]
    """of the last week, newest first"""


@dataclass(frozen=True, slots=True)
class FarEnd:
    """The switch port at the other end of a node's port.

    Attributes:
        port: entity of the node's own port, ``nic/eth0`` or ``port/mlx5_0/1``; empty where it is not known.
        values: the newest of the switch's port.
        doubt: why the port, or the node itself, may be another.
    """

    port: str
    device: DeviceLine
    device_port: str
    values: tuple[Reading, ...]
    doubt: str = ""


@dataclass(frozen=True, slots=True)
class NodeDevices:
    """What stands around a node."""

    own: list[DeviceView]
    """its BMC, and the power of its rack; without events"""
    far_ends: list[FarEnd]


def devices_of(clusters: Iterable[int]) -> QuerySet[Device]:
    """Devices of these clusters in the order of a list, without their values."""
    return Device.objects.filter(cluster_id__in=list(clusters)).defer("data").order_by("kind", "name", "id")


def named(text: str, devices_max: int) -> list[DeviceLine]:
    """Devices of all clusters with ``text`` in the name. Cost: three queries."""
    found = Device.objects.filter(name__icontains=text).defer("data").order_by("name", "id")
    return lines(found[:devices_max])


def lines(devices: Iterable[Device], now_ns: int | None = None) -> list[DeviceLine]:
    """What a list shows. Cost: two queries."""
    found = list(devices)
    clusters = Cluster.objects.in_bulk({device.cluster_id for device in found})
    nodes = Node.objects.select_related("cluster").in_bulk({device.node_id for device in found})
    now = now_ns or time.time_ns()
    return [_line(device, clusters[device.cluster_id], nodes.get(device.node_id), now) for device in found]


def _line(device: Device, cluster: Cluster, node: Node | None, now_ns: int) -> DeviceLine:
    age_s = node_readings.age_s(device.t_ns, device.received_ns, now_ns)
    stale = age_s > STALE_AFTER_S + 2 * device.period_s
    return DeviceLine(
        device.pk, cluster, device.kind, device.name, device.node_name, device.poller, node, device.state,
        age_s, stale,
    )  # fmt: skip


def find(clusters: Iterable[int], kind: str, name: str) -> list[Device]:
    """Devices of this kind and name; one for each cluster that has it."""
    if "\0" in kind + name:
        return []
    return list(Device.objects.filter(cluster_id__in=list(clusters), kind=kind, name=name).order_by("id"))


def view(device: Device) -> DeviceView:
    """Everything at once. Cost: linear in its values and in the nodes of the cluster.

    Raises:
        WireError: the row is damaged.
    """
    now_ns = time.time_ns()
    line = lines([device], now_ns)[0]
    events = queries.events(
        now_ns - EVENTS_WITHIN_NS,
        now_ns + EVENTS_WITHIN_NS,  # a node's clock may run ahead
        node_id=device.node_id,
        device=f"{device.kind}/{device.name}",
        limit=EVENTS_SHOWN,
    )
    readings = device_readings.latest(device, now_ns)
    return DeviceView(line, readings, _neighbours(device), _seen_from(device), events)


def _neighbours(device: Device) -> list[Neighbour]:
    rows = list(DeviceNeighbour.objects.filter(device=device).order_by("id"))
    hosts = {row.peer_host for row in rows}
    if not hosts:
        return []
    nodes: dict[str, list[Node]] = {}
    for node in Node.objects.filter(cluster_id=device.cluster_id).only("id", "name", "cluster_id"):
        if (host := host_of(node.name)) in hosts:
            nodes.setdefault(host, []).append(node)
    devices: dict[str, list[DeviceLine]] = {}
    for one in lines(devices_of([device.cluster_id]).filter(kind=SWITCH)):
        if (host := host_of(one.name)) in hosts:
            devices.setdefault(host, []).append(one)
    return [_neighbour(row, nodes, devices) for row in rows]


def _neighbour(
    row: DeviceNeighbour, nodes: Mapping[str, list[Node]], devices: Mapping[str, list[DeviceLine]]
) -> Neighbour:
    hosts = [node for node in nodes.get(row.peer_host, ()) if is_same_host(row.peer, node.name)]
    others = [one for one in devices.get(row.peer_host, ()) if is_same_host(row.peer, one.name)]
    is_one = len(hosts) + len(others) == 1
    return Neighbour(
        row.port,
        row.peer,
        row.peer_port,
        row.peer_mac,
        hosts[0] if is_one and hosts else None,
        others[0] if is_one and others else None,
        "" if is_one or not (hosts or others) else AMBIGUOUS,
    )


def _seen_from(device: Device) -> list[SeenFrom]:
    """Links that the other end tells of: a leaf without LLDP is still known to its spine."""
    if device.kind != SWITCH:
        return []
    rows = DeviceNeighbour.objects.filter(cluster_id=device.cluster_id, peer_host=host_of(device.name))
    told = [
        row
        for row in rows.exclude(device=device).select_related("device").defer("device__data").order_by("id")
        if is_same_host(row.peer, device.name)
    ]
    of_device = {line.id: line for line in lines({row.device_id: row.device for row in told}.values())}
    return [SeenFrom(of_device[row.device_id], row.port, row.peer_port) for row in told]


def of_node(node: Node, readings: NodeReadings | None) -> NodeDevices:
    """A node's BMC, its rack's power and the far ends of its ports.

    Args:
        readings: what the node knows of itself: its ports and their addresses.
    """
    now_ns = time.time_ns()
    here = Device.objects.filter(cluster_id=node.cluster_id)
    mine = Q(node_host=host_of(node.name))
    if node.rack:
        mine |= Q(kind=RACK, name=node.rack)
    own = [
        device
        for device in here.filter(mine).order_by("kind", "name")
        if not device.node_name or is_same_host(device.node_name, node.name)
    ]
    views = [
        DeviceView(line, device_readings.latest(device, now_ns), [], [], [])
        for device, line in zip(own, lines(own, now_ns), strict=True)
    ]
    return NodeDevices(views, _far_ends(node, readings, now_ns))


def _far_ends(node: Node, readings: NodeReadings | None, now_ns: int) -> list[FarEnd]:
    ports = _ports(readings)
    rows = list(
        DeviceNeighbour.objects.filter(cluster_id=node.cluster_id)
        .filter(Q(peer_host=host_of(node.name)) | Q(peer_mac__in=[mac for mac in ports.values() if mac]))
        .order_by("id")[: 4 * FAR_ENDS_MAX]
    )
    joined = [(row, *_joined(row, node, ports)) for row in rows]
    kept = [one for one in joined if one[1] is not None][:FAR_ENDS_MAX]
    devices = list(Device.objects.filter(pk__in={row.device_id for row, _, _ in kept}))
    values = {device.pk: device_readings.latest(device, now_ns) for device in devices}
    told = {line.id: line for line in lines(devices, now_ns)}
    twins = _has_twins(node) if kept else False
    found = []
    for row, port, by_address in kept:
        doubt = AMBIGUOUS if twins and not by_address and row.peer.lower() != node.name.lower() else ""
        of_port = values[row.device_id].entities.get(row.port, ())
        own_port = "" if doubt else port or ""
        found.append(
            FarEnd(own_port, told[row.device_id], row.port, of_port, doubt or ("" if port else NO_PORT))
        )
    return sorted(found, key=lambda one: (not one.port, one.port, one.device.name, one.device_port))


def _ports(readings: NodeReadings | None) -> dict[str, str]:
    """Entity of each of a node's ports -> its Ethernet address, or GUID and number; empty: not told."""
    found: dict[str, str] = {}
    for entity, values in (readings.entities if readings is not None else {}).items():
        if entity.startswith(("nic/", "port/")):
            found[entity] = _address(entity, values)
    return found


def _address(entity: str, values: Sequence[Reading]) -> str:
    for one in values:
        if "mac" in one.labels:
            return one.labels["mac"].lower()
        if "guid" in one.labels:
            return f"{one.labels['guid'].lower()}/{entity.rpartition('/')[2]}"
    return ""


def _joined(row: DeviceNeighbour, node: Node, ports: Mapping[str, str]) -> tuple[str | None, bool]:
    """(own port, whether by its address): "" where only the host is known, None where it is another's."""
    if row.peer_mac:
        by_address = [entity for entity, mac in ports.items() if mac == row.peer_mac]
        if by_address:
            return by_address[0], True
    if not is_same_host(row.peer, node.name):
        return None, False
    names = (f"nic/{row.peer_port}", f"port/{row.peer_port}/1", f"port/{row.peer_port}")
    return next((name for name in names if name in ports), ""), False


def _has_twins(node: Node) -> bool:
    """Another node of the cluster has the same short name."""
    short = host_of(node.name)
    others = Node.objects.filter(cluster_id=node.cluster_id).exclude(pk=node.pk)
    return others.filter(Q(name__iexact=short) | Q(name__istartswith=f"{short}.")).exists()
