"""How nodes are heard: one word per node, as pages and REST show it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import redis

from clusterwatch.store import hot
from collectors.wire.limits import SILENT_AFTER_S

_OF_LINK: Final = {hot.CLOSED: "closed", hot.CLOSED_CLEAN: "stopped"}


@dataclass(frozen=True, slots=True)
class NodeLink:
    """``state``: ok, silent, closed, stopped, gateway_silent; unknown where hot state has no such node."""

    state: str
    seen_at: datetime | None
    """when its newest frame came"""


NOT_HEARD: Final = NodeLink("unknown", None)


def read_links() -> dict[int, NodeLink]:
    """By node; empty while hot state cannot be reached."""
    try:
        nodes = hot.read_nodes()
    except redis.RedisError:
        return {}
    now_ns, silent_ns = time.time_ns(), SILENT_AFTER_S * 1e9
    columns = (nodes.node_id, nodes.link, nodes.seen_ns, nodes.word_ns)
    found = {}
    for pk, link, seen_ns, word_ns in zip(*(column.tolist() for column in columns), strict=True):
        state = _OF_LINK.get(link) or ("silent" if now_ns - seen_ns > silent_ns else "ok")
        # Of a gateway that is silent itself nothing is known of its nodes.
        state = "gateway_silent" if now_ns - word_ns > silent_ns else state
        found[pk] = NodeLink(state, datetime.fromtimestamp(seen_ns / 1e9, UTC))
    return found
