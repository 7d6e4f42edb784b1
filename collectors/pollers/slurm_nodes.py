"""Nodes of a cluster as ``scontrol show nodes --json`` or ``sinfo --json`` tells them, in any dialect.

In: the JSON text. Out: ``Nodes``. Up to Slurm 22.05 both list nodes with a state and flags beside it; later
the state is a list of words, and ``sinfo`` lists groups of nodes, one for each partition, so that a node is
there several times. Source: sinfo(1), "NODE STATE CODES"; data_parser plugins v0.0.38 to v0.0.44.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from collectors.pollers.slurm_jobs import errors_of, gpus, number, states_of, text_of
from collectors.sources import hostlist

NODES_MAX: Final = 65_536
ROWS_MAX: Final = 262_144
REASON_MAX_CHARS: Final = 256
DOWN, NOT_RESPONDING, DRAINED, DRAINING = "down", "not_responding", "drained", "draining"
OUT: Final = frozenset({DOWN, NOT_RESPONDING, DRAINED, DRAINING, "maintenance"})
"""No new job runs on these."""
_FLAGS: Final = (
    ("POWERED_DOWN", "powered_down"),
    ("POWERING_DOWN", "powered_down"),
    ("POWER_DOWN", "powered_down"),
    ("POWERING_UP", "starting"),
    ("REBOOT_ISSUED", "starting"),
    ("REBOOT", "starting"),
    ("MAINTENANCE", "maintenance"),
    ("MAINT", "maintenance"),
)
_BASES: Final = {
    "ALLOCATED": "allocated",
    "MIXED": "mixed",
    "IDLE": "idle",
    "FUTURE": "future",
    "DOWN": DOWN,
    "ERROR": DOWN,
}
STATES: Final = (
    "idle", "reserved", "mixed", "allocated", "completing", "maintenance", "starting", "powered_down",
    DRAINING, DRAINED, NOT_RESPONDING, DOWN, "future", "unknown",
)  # fmt: skip
"""Every node is in one of them."""


@dataclass(frozen=True, slots=True)
class Node:
    """One node. None or empty: not told.

    Attributes:
        state: one of ``STATES``.
        since_s: when the reason was set, seconds since 1970.
        gpus: how many it has; ``gpus_held``: of them by jobs.
    """

    name: str
    state: str
    reason: str = ""
    by: str = ""
    since_s: int | None = None
    gpus: int | None = None
    gpus_held: int | None = None


@dataclass(frozen=True, slots=True)
class Nodes:
    """``errors``: what Slurm says went wrong; then some may lack."""

    nodes: dict[str, Node]
    errors: list[str]


def parse(text: bytes | str) -> Nodes:
    """All nodes that can be read. Raises ``ValueError`` for what is no such JSON at all."""
    try:
        said = json.loads(text)
    except RecursionError:
        raise ValueError("nested too deep") from None
    if not isinstance(said, dict):
        raise ValueError("no list of nodes")
    errors = list(errors_of(said.get("errors")))
    single, groups = said.get("nodes"), said.get("sinfo")
    if isinstance(single, list):
        rows = _singles(single)
    elif isinstance(groups, list):
        rows = _groups(groups)
    elif errors:
        return Nodes({}, errors)
    else:
        raise ValueError("no list of nodes")
    found: dict[str, Node] = {}
    for node in rows:
        if node.name in found or len(found) < NODES_MAX:
            found.setdefault(node.name, node)
    return Nodes(found, errors)


def state_of(words: Iterable[str]) -> str:
    """One of ``STATES`` for Slurm's words; what keeps jobs away comes first."""
    told = set(words)
    if told & {"DOWN", "ERROR", "FAIL"}:
        return DOWN
    if told & {"DRAIN", "DRAINED", "DRAINING"}:
        busy = told & {"ALLOCATED", "MIXED", "COMPLETING", "DRAINING"}
        return DRAINING if busy else DRAINED
    if told & {"NOT_RESPONDING", "NO_RESPOND"}:
        return NOT_RESPONDING
    for flag, state in _FLAGS:
        if flag in told:
            return state
    base = next((state for word, state in _BASES.items() if word in told), "unknown")
    if base == "idle" and "COMPLETING" in told:
        return "completing"
    return "reserved" if base == "idle" and told & {"RESERVED", "PLANNED"} else base


def _singles(rows: list[Any]) -> Iterator[Node]:
    for row in rows[:ROWS_MAX]:
        name = text_of(row.get("name"), 128) if isinstance(row, dict) else ""
        if not name:
            continue
        words = [*states_of(row.get("state")), *states_of(row.get("state_flags") or [])]
        held = row.get("gres_used")
        yield Node(
            name,
            state_of(words),
            text_of(row.get("reason"), REASON_MAX_CHARS),
            text_of(row.get("reason_set_by_user"), 64),
            number(row.get("reason_changed_at")) or None,
            _gpus(row.get("gres"), row.get("tres")),
            _gpus(held, row.get("tres_used")) if isinstance(held, str) else None,
        )


def _groups(rows: list[Any]) -> Iterator[Node]:
    """``sinfo`` tells the GPUs of a group as those of each of its nodes, and not those that jobs hold."""
    for row in rows[:ROWS_MAX]:
        if not isinstance(row, dict):
            continue
        node, reason = _table(row.get("node")), _table(row.get("reason"))
        state = state_of(states_of(node.get("state")))
        for name in _names(_table(row.get("nodes")).get("nodes")):
            yield Node(
                name,
                state,
                text_of(reason.get("description"), REASON_MAX_CHARS),
                text_of(reason.get("user"), 64),
                number(reason.get("time")) or None,
                _gpus(_table(row.get("gres")).get("total"), None),
            )


def _names(told: Any) -> Iterator[str]:
    for one in told if isinstance(told, list) else [told]:
        if isinstance(one, str):
            yield from (name[:128] for name in hostlist.expand(one))


def _gpus(gres: Any, tres: Any) -> int | None:
    return gpus(tres, [gres] if isinstance(gres, str) else None)


def _table(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
