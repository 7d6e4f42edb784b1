"""What screens and REST show of a cluster: its newest live frame, the places of its slots, its nodes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson
import redis

from clusterwatch.fleet.models import Cluster, Slot
from clusterwatch.store import frames, valkey

STALE_AFTER_S = 5.0
"""A cluster's frame is published each second; an older one tells nothing about now."""
TILE_NODES = 8
"""Nodes to a tile of the map; a tile is a unit of drawing, eight nodes in rack order."""
ROW_SLOTS = 8
"""GPUs to a row of a tile; a node with more takes several rows."""
STATE_OF_BYTE = {0: "unknown", 1: "ok", 2: "idle", 3: "degraded", 4: "failed", 5: "drained"}
"""Bytes of ``slots`` in a cluster frame (live/README.md)."""
STATES = ("ok", "degraded", "failed", "idle", "drained", "unknown")


@dataclass(frozen=True, slots=True)
class ClusterNow:
    """A cluster as its newest frame has it. While nothing fresh comes every slot is unknown."""

    fresh: bool
    at_ms: int | None
    """time of the frame, ms UTC; None: no frame at all"""
    counts: Mapping[str, int]
    """by state, sums to ``total``"""
    total: int
    expected: int
    """nodes known"""
    reported: int
    """nodes heard within three seconds"""
    slots: bytes = b""
    silent: Mapping[str, Any] = field(default_factory=dict)
    jobs: Mapping[str, Any] = field(default_factory=dict)
    reason: str = ""
    """why it is not fresh"""

    def state_of(self, slot: int) -> str:
        """One of ``STATES``; unknown where no fresh frame tells."""
        return STATE_OF_BYTE.get(self.slots[slot], "unknown") if slot < len(self.slots) else "unknown"


def cluster_now(cluster: Cluster) -> ClusterNow:
    """The newest frame of a cluster, or what is left to say without one."""
    try:
        raw: Any = valkey.client().get(valkey.frame_full_key(f"cluster:{cluster.pk}"))
    except redis.RedisError:
        return _blind(cluster, None, "live state is unreachable")
    if raw is None:
        return _blind(cluster, None, "no live frame was published yet")
    frame = orjson.loads(raw)
    at_ms = int(frame["at_ms"])
    if time.time() * 1000 - at_ms > STALE_AFTER_S * 1000:
        return _blind(cluster, at_ms, "the newest live frame is old")
    state: Any = frames.decode_content(frame["full"])
    counts = {name: int(state["counts"].get(name, 0)) for name in STATES}
    return ClusterNow(
        fresh=True,
        at_ms=at_ms,
        counts=counts,
        total=int(state["total"]),
        expected=int(state["coverage"]["expected"]),
        reported=int(state["coverage"]["reported"]),
        slots=state["slots"],
        silent=state.get("silent", {}),
        jobs=state.get("jobs", {}),
    )


def _blind(cluster: Cluster, at_ms: int | None, reason: str) -> ClusterNow:
    total = Slot.objects.filter(cluster=cluster, until__isnull=True).count()
    counts = dict.fromkeys(STATES, 0) | {"unknown": total}
    return ClusterNow(False, at_ms, counts, total, cluster.nodes.count(), 0, reason=reason)


def map_places(cluster: Cluster) -> dict[str, Any]:
    """Where each slot is drawn.

    Returns: ``{"version": int, "tiles": [[label, [[node id, name, [slot, ...]], ...]], ...]}``.

    Cost: one query, linear in slots; callers keep it per ``slots_version``.
    """
    rows = (
        Slot.objects.filter(cluster=cluster, until__isnull=True)
        .order_by("node__rack", "node__name", "gpu_index", "number")
        .values_list("node_id", "node__name", "node__rack", "number")
    )
    nodes: dict[int, tuple[str, str, list[int]]] = {}
    for node_id, name, rack, number in rows.iterator(chunk_size=4096):
        nodes.setdefault(node_id, (name, rack, []))[2].append(number)
    tiles: list[list[Any]] = []
    racks: list[list[str]] = []
    for node_id, (name, rack, slots) in nodes.items():
        for start in range(0, len(slots), ROW_SLOTS):
            if not tiles or len(tiles[-1][1]) >= TILE_NODES:
                tiles.append(["", []])
                racks.append([])
            tiles[-1][1].append([node_id, name, slots[start : start + ROW_SLOTS]])
            if rack and rack not in racks[-1]:
                racks[-1].append(rack)
    for tile, names in zip(tiles, racks, strict=True):
        tile[0] = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}" if names else ""
    return {"version": cluster.slots_version, "tiles": tiles}
