"""Which port belongs to a rank, and what is at its far end, as nodes and switches told.

In: ranks, nodes, hosts. Out: names by rank or host; nothing where nobody told. Every name came from a node.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from clusterwatch.jobs.models import Rank
from clusterwatch.store import event_history, queries
from clusterwatch.store.device_readings import host_of
from clusterwatch.store.models import DeviceNeighbour
from clusterwatch.store.queries import StoredEvent

MAPS_WITHIN_NS: Final = 600 * 10**9
MAPS_MAX: Final = 1_000
JOB_MAPS_MAX: Final = 100_000
NEIGHBOURS_MAX: Final = 100_000
"""Ports of a job's hosts that switches tell of."""
MAP: Final = "rank_map"
NAME_MAX_CHARS: Final = 64


def of_ranks(
    cluster_id: int, job_key: str, ranks: Iterable[Rank], node_ids: Collection[int]
) -> dict[int, str]:
    """RDMA device nearest to a rank's GPU, as the node's agent told when the rank began. A query a node."""
    began_ns = min(_began_ns(rank) for rank in ranks)
    found: dict[int, str] = {}
    for node_id in node_ids:
        told = queries.events(
            began_ns - MAPS_WITHIN_NS, began_ns + MAPS_WITHIN_NS,
            cluster_id=cluster_id, node_id=node_id, limit=MAPS_MAX,
        )  # fmt: skip
        _add_maps(found, job_key, told)
    return found


def of_job(cluster_id: int, job_key: str, ranks: Iterable[Rank]) -> dict[int, str]:
    """The same of all ranks, the newest word of each. Cost: a query per 5,000 ranks."""
    began = [_began_ns(rank) for rank in ranks]
    span = min(began) - MAPS_WITHIN_NS, max(began) + MAPS_WITHIN_NS
    told = list(event_history.in_order(cluster_id, *span, {MAP}, JOB_MAPS_MAX))
    found: dict[int, str] = {}
    _add_maps(found, job_key, reversed(told))
    return found


def _began_ns(rank: Rank) -> int:
    return int(rank.started_at.timestamp() * 1e9)


def _add_maps(found: dict[int, str], job_key: str, told: Iterable[StoredEvent]) -> None:
    """Adds the ports of ranks that are not there; events of other jobs and other kinds are left out."""
    prefix = f"job/{job_key}/rank/"
    for event in told:
        number = event.fields.get("entity", "").removeprefix(prefix)
        device = event.fields.get("nic", "")
        is_map = event.kind == MAP and number.isascii() and number.isdecimal()
        if is_map and len(number) < 10 and device not in ("", "null"):
            found.setdefault(int(number), device)


@dataclass(frozen=True, slots=True)
class FarEnd:
    """A port of a switch that says that a host's port is behind it."""

    switch: str
    port: str
    host_port: str


def far_ends(cluster_id: int, hosts: Collection[str]) -> dict[str, list[FarEnd]]:
    """What switches tell of the ports of hosts, by ``host_of`` their names. One query."""
    rows = DeviceNeighbour.objects.filter(
        cluster_id=cluster_id, peer_host__in={host_of(host) for host in hosts}, device__kind="switch"
    ).order_by("id")
    told = rows.values_list("peer_host", "device__name", "port", "peer_port")[:NEIGHBOURS_MAX]
    found: dict[str, list[FarEnd]] = defaultdict(list)
    for host, switch, port, peer in told:
        found[host].append(FarEnd(_short(switch), _short(_own(port)), _short(peer)))
    return dict(found)


def leaf_of(ends: Collection[FarEnd], device: str) -> str:
    """The switch behind a host's port, or behind all of its ports; empty where it is not told."""
    end = far_end_of(ends, device)
    if end is not None:
        return end.switch
    switches = {one.switch for one in ends}
    return switches.pop() if len(switches) == 1 else ""


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
