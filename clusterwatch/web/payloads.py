"""Frozen evidence as a small table, whatever its JSON looks like: bounded, flat, never trusted as HTML."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from clusterwatch.web.numbers import DASH, clock, rank_runs, size

TABLES = ("ranks", "groups", "rows")
"""Keys under which a piece of evidence holds its rows."""
COLUMNS = {
    "process": (
        ("rank", "host", "pid", "process", "process_since_s", "step")
        + ("phase", "phase_s", "exit_code", "exit_signal", "hook_silent_s")
    ),
    "exception": ("rank", "host", "type", "message"),
    "collective_state": ("desc", "name", "sequence", "waiting", "behind"),
    "cause": ("at_ns", "text", "host", "part", "taken", "reason"),
    "signals": ("at_ns", "text", "host", "part", "until_ns", "kind", "code"),
}
"""What is worth showing of each kind, in this order; the raw piece has the rest."""
ROWS_MAX = 24
COLUMNS_MAX = 9
CELL_MAX_CHARS = 240
_MOMENTS = ("at_ns", "until_ns")
_HEADS = {"at_ns": "UTC", "until_ns": "until"}
_NS_MAX = 2**63


@dataclass(frozen=True, slots=True)
class PayloadTable:
    head: list[str] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)
    more: int = 0
    """rows that are only in the raw piece"""


def payload_table(payload: Any, kind: str = "") -> PayloadTable:
    """Objects become name and value, lists of objects become a table, plain lists one column."""
    if isinstance(payload, Mapping):
        if kind == "trace":
            return _packed(payload)
        if kind == "signals" and _is_table(payload.get("held")):
            return _signals(payload["held"])
        rows = next((payload[key] for key in TABLES if _is_table(payload.get(key))), None)
        if rows is not None:
            return _table(rows, kind)
        pairs = [[_name(key), _cell(value)] for key, value in payload.items()]
        return PayloadTable([], pairs[:ROWS_MAX], max(0, len(pairs) - ROWS_MAX))
    if _is_table(payload):
        return _table(payload, kind)
    if isinstance(payload, list):
        return PayloadTable(
            [], [[_cell(item)] for item in payload[:ROWS_MAX]], max(0, len(payload) - ROWS_MAX)
        )
    return PayloadTable([], [] if payload is None else [[_cell(payload)]])


def _packed(payload: Mapping[str, Any]) -> PayloadTable:
    """Recorder rings travel packed; here only whose and how large they are."""
    rings = payload.get("ranks")
    rows = [
        [str(rank)[:CELL_MAX_CHARS], size(len(ring) * 3 // 4)]
        for rank, ring in (rings.items() if isinstance(rings, Mapping) else ())
        if isinstance(ring, str)
    ]
    return PayloadTable(["rank", "packed ring"], rows[:ROWS_MAX], max(0, len(rows) - ROWS_MAX))


def _signals(held: list[Mapping[str, Any]]) -> PayloadTable:
    """What a standing fault keeps is around its signal; the signal is what was told."""
    told = [one["signal"] if isinstance(one.get("signal"), Mapping) else one for one in held]
    return _table(told, "signals")


def _is_table(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, Mapping) for item in value)


def _table(items: list[Mapping[str, Any]], kind: str) -> PayloadTable:
    names = list(dict.fromkeys(key for item in items[:ROWS_MAX] for key in item))
    wanted = COLUMNS.get(kind, ())
    names = [name for name in wanted if name in names] or names
    kept = [n for n in names if any(item.get(n) not in (None, "", []) for item in items[:ROWS_MAX])]
    kept = kept[:COLUMNS_MAX]
    rows = [[_named_cell(name, item.get(name)) for name in kept] for item in items[:ROWS_MAX]]
    return PayloadTable([_name(name) for name in kept], rows, max(0, len(items) - ROWS_MAX))


def _name(key: object) -> str:
    return _HEADS.get(str(key)) or str(key).replace("_", " ")[:CELL_MAX_CHARS]


def _named_cell(name: str, value: Any) -> str:
    """Moments in ns become times of day; what is no moment stays as it is."""
    if name in _MOMENTS and type(value) is int and 0 < value < _NS_MAX:
        return clock(datetime.fromtimestamp(value / 1e9, UTC))
    return _cell(value)


def _cell(value: Any) -> str:
    if value is None or value == "":
        return DASH
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.3g}"
    if isinstance(value, list):
        if value and all(isinstance(item, int) for item in value):
            return rank_runs(value)
        return " > ".join(_cell(item) for item in value[:12])[:CELL_MAX_CHARS] or DASH
    if isinstance(value, Mapping):
        text = ", ".join(f"{_name(key)} {_cell(item)}" for key, item in list(value.items())[:12])
        return text[:CELL_MAX_CHARS] or DASH
    text = str(value)
    return text if len(text) <= CELL_MAX_CHARS else text[: CELL_MAX_CHARS - 1] + "\u2026"
