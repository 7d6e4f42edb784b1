"""What each device (switch, BMC, rack) told last: one packed row, and who is at the far end of its ports.

In: ``DeviceReadings`` records as their pollers packed them, checked at ingest. Out: values by entity with
quality and true age, neighbours both ways. A row never goes back: of one spool the higher number is newer,
of two the later time. The tables are keyed by cluster and stay on the coordinator of a distributed database.
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
from collections.abc import Collection, Iterable, Sequence
from typing import Final, NamedTuple

import msgspec
from django.db import connection

from clusterwatch.store import node_readings
from clusterwatch.store.models import Device, DeviceNeighbour
from clusterwatch.store.node_readings import DAY_NS, KEPT_DAYS, NodeReadings
from collectors.wire import readings

DEVICES_MAX: Final = 20_000
"""of one cluster: more are refused, so that no node can fill the table with names"""
NEIGHBOUR: Final = "neighbour_count"
_MAC: Final = re.compile(r"(?:[0-9a-f]{2}:){5}[0-9a-f]{2}")


class TooManyDevices(ValueError):
    """A cluster may not have another device; the text says how many it may have."""


class DeviceRow(NamedTuple):
    """One record as it is stored; ``t_ns`` is of the clock of the node that asked."""

    cluster_id: int
    kind: str
    name: str
    node_id: int
    poller: str
    state: str
    node_name: str
    t_ns: int
    epoch: str
    sequence: int
    data: bytes

    @property
    def key(self) -> tuple[int, str, str]:
        return self.cluster_id, self.kind, self.name

    def replaces(self, other: DeviceRow) -> bool:
        """Clocks of one spool may be set back, its numbers only rise."""
        if (self.node_id, self.epoch) == (other.node_id, other.epoch):
            return self.sequence > other.sequence
        return self.t_ns >= other.t_ns


class Peer(NamedTuple):
    """The far end of a port; texts that were not told are empty.

    Attributes:
        peer_mac: its Ethernet address, or of an InfiniBand adapter its GUID, ``/`` and the port's number.
    """

    port: str
    peer: str
    peer_port: str
    peer_mac: str


_COLUMNS: Final = (
    "cluster_id", "kind", "name", "node_id", "poller", "state", "node_name", "t_ns", "epoch", "sequence",
    "data", "node_host", "period_s", "received_ns",
)  # fmt: skip
_KEY: Final = ("cluster_id", "kind", "name")
_UPSERT: Final = (
    "INSERT INTO store_device AS kept (" + ", ".join(_COLUMNS) + ", neighbours_digest)"  # noqa: S608  our names
    " VALUES {rows} ON CONFLICT (cluster_id, kind, name) DO UPDATE SET "
    + ", ".join(f"{name} = excluded.{name}" for name in _COLUMNS if name not in _KEY)
    + " WHERE CASE WHEN kept.node_id = excluded.node_id AND kept.epoch = excluded.epoch"
    " THEN kept.sequence < excluded.sequence ELSE kept.t_ns <= excluded.t_ns END"
    " RETURNING id, cluster_id, kind, name, neighbours_digest"
)


def put(rows: Iterable[DeviceRow], received_ns: int) -> None:
    """Replaces what is older; runs in the caller's transaction.

    Raises:
        TooManyDevices: a cluster would have more than ``DEVICES_MAX``.
        WireError: a row is damaged.
    """
    newest: dict[tuple[int, str, str], DeviceRow] = {}
    for row in rows:
        before = newest.get(row.key)
        if before is None or row.replaces(before):
            newest[row.key] = row
    if not newest:
        return
    _require_room(newest.keys())
    tables = {key: readings.unpack(row.data) for key, row in newest.items()}
    values: list[int | float | str | bytes] = []
    for key in sorted(newest):  # in one order everywhere, so that two gateways never wait in a circle
        row, period_s = newest[key], max((word.period_s for word in tables[key].sources), default=0.0)
        values += [*row, host_of(row.node_name), period_s, received_ns, b""]
    marks = f"({', '.join(['%s'] * (len(_COLUMNS) + 1))})"
    with connection.cursor() as cursor:
        cursor.execute(_UPSERT.format(rows=", ".join([marks] * len(newest))), values)
        taken = cursor.fetchall()
    for device_id, cluster_id, kind, name, digest in taken:
        key = (cluster_id, kind, name)
        _keep_peers(device_id, cluster_id, peers_of(tables[key]), bytes(digest), newest[key].state)


def _require_room(keys: Collection[tuple[int, str, str]]) -> None:
    for cluster_id in sorted({key[0] for key in keys}):
        names = {key[1:] for key in keys if key[0] == cluster_id}
        here = Device.objects.filter(cluster_id=cluster_id)
        wanted = here.filter(name__in={name for _, name in names}).values_list("kind", "name")
        new = len(names - set(wanted))
        if new and here.count() + new > DEVICES_MAX:
            raise TooManyDevices(f"a cluster may have {DEVICES_MAX} devices")


def peers_of(table: readings.Table) -> list[Peer]:
    """Who the ports of a device see, in the order of the table."""
    if NEIGHBOUR not in table.metrics or not table.label:
        return []
    wanted = table.metrics.index(NEIGHBOUR)
    found = []
    for entity, metric, label in zip(table.entity, table.metric, table.label, strict=True):
        told = table.labels[label]
        if metric == wanted and told.get("peer"):
            mac = (told.get("peer_mac") or told.get("peer_guid", "")).lower()
            found.append(Peer(table.entities[entity], told["peer"], told.get("peer_port", ""), mac))
    return found


def _keep_peers(device_id: int, cluster_id: int, peers: Sequence[Peer], digest: bytes, state: str) -> None:
    """A device that cannot be reached and tells nothing still has the cables it had."""
    new = hashlib.blake2b(msgspec.msgpack.encode(peers), digest_size=16).digest() if peers else b""
    if new == digest or (state != readings.OK and not peers):
        return
    DeviceNeighbour.objects.filter(device_id=device_id).delete()
    DeviceNeighbour.objects.bulk_create(
        DeviceNeighbour(
            device_id=device_id,
            cluster_id=cluster_id,
            port=one.port,
            peer=one.peer,
            peer_host=host_of(one.peer),
            peer_port=one.peer_port,
            peer_mac=one.peer_mac,
        )
        for one in peers
    )
    Device.objects.filter(pk=device_id).update(neighbours_digest=new)


def host_of(name: str) -> str:
    """The short lower-case name of a host; an address stays whole."""
    lower = name.lower()
    if _MAC.fullmatch(lower):
        return lower
    try:
        ipaddress.ip_address(lower)
    except ValueError:
        return lower.partition(".")[0]
    return lower


def is_same_host(told: str, name: str) -> bool:
    """Whether two spellings may mean one host: equal, or equal up to a domain that one of them leaves out."""
    left, right = told.lower(), name.lower()
    return left == right or (host_of(left) == host_of(right) and ("." not in left or "." not in right))


def latest(device: Device, now_ns: int) -> NodeReadings:
    """What a device told, with its true age.

    Raises:
        WireError: the row is damaged.
    """
    sent_s = node_readings.age_s(device.t_ns, device.received_ns, now_ns)
    return node_readings.unpacked(readings.unpack(bytes(device.data)), sent_s)


def drop_unseen(now_ns: int) -> None:
    """Deletes devices that nobody told of for ``KEPT_DAYS``."""
    Device.objects.filter(received_ns__lt=now_ns - KEPT_DAYS * DAY_NS).delete()
