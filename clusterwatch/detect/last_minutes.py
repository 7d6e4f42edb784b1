"""The last two minutes of nodes we no longer see, as evidence.

In: a scene. Out: one piece with every metric of their GPUs, one value a second, until they fell silent. The
gateway that heard them kept it (``store.tails``); their blocks of those minutes never came.
"""

from __future__ import annotations

import logging
from typing import Any, Final

import numpy as np
import redis
from numpy.typing import NDArray

from clusterwatch.analysis.model import ProcessState
from clusterwatch.analysis.progress import PROCESS_CODES
from clusterwatch.detect.scene import Scene
from clusterwatch.incidents.services import Piece
from clusterwatch.store import tails

log = logging.getLogger(__name__)

NODES_MAX: Final = 4
"""Nodes whose minutes are frozen: 0.2 MB of text each, before compression."""
_UNSEEN: Final = (ProcessState.AGENT_GONE, ProcessState.NODE_SILENT)
_DIGITS: Final = 6


def piece(scene: Scene) -> Piece | None:
    """What silent nodes of the job said last; None when all are seen or nothing was kept."""
    nodes = [found for node_id, host in _unseen(scene)[:NODES_MAX] if (found := _node(node_id, host))]
    if not nodes:
        return None
    hosts = [str(node["host"]) for node in nodes]
    title = f"The last {_seconds(nodes)} s of {', '.join(hosts)} before the silence"
    payload = {
        "rows": [row for node in nodes for row in _summary(node)],
        "step_s": 1,
        "order": "metric -> second, oldest first -> slot",
        "nodes": nodes,
    }
    return Piece("last_minutes", title, "gateway", payload, 0.6, ", ".join(hosts))


def _unseen(scene: Scene) -> list[tuple[int, str]]:
    """(node id, host) of nodes with ranks of the job that we no longer see, in the order of ranks."""
    found = {
        scene.ranks[row].node_id: scene.ranks[row].host
        for row, code in enumerate(scene.look.process.tolist())
        if PROCESS_CODES[code] in _UNSEEN
    }
    return list(found.items())


def _node(node_id: int, host: str) -> dict[str, Any] | None:
    try:
        tail = tails.load(node_id)
    except redis.RedisError as fault:
        log.warning("tail_unread node=%d reason=%s", node_id, fault)
        return None
    if tail is None or not tail.metrics:
        return None
    heard: NDArray[np.bool_] = np.asarray(np.isfinite(tail.values).any(axis=(0, 2)))
    first = int(heard.argmax())
    return {
        "host": host,
        "last_word_ns": tail.last_word_ns,
        "first_second_ns": tail.end_ns - (len(heard) - 1 - first) * 1_000_000_000,
        "metrics": {
            name: _rounded(values[first:]) for name, values in zip(tail.metrics, tail.values, strict=True)
        },
    }


def _summary(node: dict[str, Any]) -> list[dict[str, Any]]:
    """What a page shows of each metric; the numbers themselves are in ``nodes``."""
    rows = []
    for name, seconds in node["metrics"].items():
        known = [value for row in seconds for value in row if value is not None]
        newest: list[float | None] = next((s for s in reversed(seconds) if any(v is not None for v in s)), [])
        rows.append(
            {
                "host": node["host"], "metric": name, "lowest": min(known), "highest": max(known),
                "last_of_each_slot": newest,
            }
        )  # fmt: skip
    return rows


def _seconds(nodes: list[dict[str, Any]]) -> int:
    return max(len(rows) for node in nodes for rows in node["metrics"].values())


def _rounded(values: NDArray[np.float32]) -> list[list[float | None]]:
    """Six significant digits, as float32 has them; None where nothing came."""
    return [
        [float(f"{value:.{_DIGITS}g}") if np.isfinite(value) else None for value in row]
        for row in values.tolist()
    ]
