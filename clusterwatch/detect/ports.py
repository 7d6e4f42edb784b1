"""Which port belongs to a rank, and what is at its far end, as nodes and switches told.

In: ranks, nodes, hosts. Out: names by rank or host; nothing where nobody told. Every name came from a node.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from clusterwatch.jobs.models import Rank
from clusterwatch.store import queries
from clusterwatch.store.device_readings import host_of
from clusterwatch.store.models import DeviceNeighbour

MAPS_WITHIN_NS: Final = 600 * 10**9
MAPS_MAX: Final = 1_000
NEIGHBOURS_MAX: Final = 256
"""Ports of a host that switches tell of."""
NAME_MAX_CHARS: Final = 64


def of_ranks(
    cluster_id: int, job_key: str, ranks: Iterable[Rank], node_ids: Collection[int]
) -> dict[int, str]:
    """RDMA device nearest to a rank's GPU, as the node's agent told when the rank began. A query a node."""
    prefix = f"job/{job_key}/rank/"
    began_ns = min(int(rank.started_at.timestamp() * 1e9) for rank in ranks)
    found: dict[int, str] = {}
    for node_id in node_ids:
        told = queries.events(
            began_ns - MAPS_WITHIN_NS, began_ns + MAPS_WITHIN_NS,
            cluster_id=cluster_id, node_id=node_id, limit=MAPS_MAX,
        )  # fmt: skip
        for event in told:
            number = event.fields.get("entity", "").removeprefix(prefix)
            device = event.fields.get("nic", "")
            is_map = event.kind == "rank_map" and number.isascii() and number.isdecimal()
            if is_map and len(number) < 10 and device not in ("", "null"):
                found.setdefault(int(number), device)
    return found


@dataclass(frozen=True, slots=True)
class FarEnd:
    """A port of a switch that says that a host's port is behind it."""

    switch: str
    port: str
    host_port: str


def far_ends(cluster_id: int, host: str) -> list[FarEnd]:
    """What switches tell of the ports of a host. One query."""
    rows = DeviceNeighbour.objects.filter(
        cluster_id=cluster_id, peer_host=host_of(host), device__kind="switch"
    ).order_by("id")
    told = rows.values_list("device__name", "port", "peer_port")[:NEIGHBOURS_MAX]
    return [FarEnd(*(_short(name) for name in (switch, _own(port), peer))) for switch, port, peer in told]


def far_end_of(ends: Collection[FarEnd], device: str) -> FarEnd | None:
    """The one port that tells of this device, None where none does or several do."""
    mine = [one for one in ends if one.host_port in (device, f"{device}/1")]
    return mine[0] if len(mine) == 1 else None


def _own(port: str) -> str:
    """``switchport/leaf-3/Ethernet4/1`` as the switch itself calls it."""
    parts = port.split("/", 2)
    return parts[2] if len(parts) == 3 else port


def _short(name: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in name[:NAME_MAX_CHARS])
