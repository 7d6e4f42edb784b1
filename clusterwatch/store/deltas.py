"""The difference between two states of a live topic, and its application. Pure; the format is in ``frames``.

In: states as a reader holds them (JSON values, bytes allowed at the top level). Out: deltas of ``set``,
``gone``, ``rows`` and ``cells``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import orjson

Json = Any
"""dict, list, str, int, float, bool, None; ``bytes`` as a value of the state itself."""
State = Mapping[str, Json]

_CELLS_WORTH: Final = 4
"""Cells are sent one by one when fewer than 1/4 changed; an (index, value) pair costs about four values."""
_SORTED: Final = orjson.OPT_SORT_KEYS


def make_delta(before: State, after: State) -> dict[str, Json]:
    """What turns ``before`` into ``after``; parts without content are left out. Cost: one pass over both."""
    delta: dict[str, Json] = {}
    for key, value in after.items():
        if key not in before:
            delta.setdefault("set", {})[key] = value
            continue
        part, change = _change(before[key], value)
        if part:
            delta.setdefault(part, {})[key] = change
    if gone := sorted(before.keys() - after.keys()):
        delta["gone"] = gone
    return delta


def _change(old: Json, new: Json) -> tuple[str, Json]:
    """The part of a delta that holds this key's change, and the change; ("", None) without one."""
    if old is new:
        return "", None
    if isinstance(new, (bytes, list)) and type(old) is type(new) and len(old) == len(new):
        return _cells(old, new)
    if _is_table(old) and _is_table(new):
        put = {row_id: row for row_id, row in new.items() if not _same(old.get(row_id), row)}
        gone = sorted(old.keys() - new.keys())
        change = {name: part for name, part in (("put", put), ("gone", gone)) if part}
        return ("rows", change) if change else ("", None)
    return ("", None) if _same(old, new) else ("set", new)


def _cells(old: Any, new: Any) -> tuple[str, Json]:
    if isinstance(new, bytes):
        places = np.flatnonzero(np.frombuffer(old, np.uint8) != np.frombuffer(new, np.uint8)).tolist()
    elif _same(old, new):
        return "", None
    else:
        places = [i for i, (a, b) in enumerate(zip(old, new, strict=True)) if not _same(a, b)]
        if any(isinstance(new[i], (dict, list)) or isinstance(old[i], (dict, list)) for i in places):
            return "set", new
    if not places:
        return "", None
    if len(places) * _CELLS_WORTH > len(new):
        return "set", new
    return "cells", [item for i in places for item in (i, new[i])]


def _is_table(value: Json) -> bool:
    return isinstance(value, dict) and all(isinstance(row, dict) for row in value.values())


def _same(a: Json, b: Json) -> bool:
    """Equal as JSON: Python holds True == 1 == 1.0, a page does not."""
    if isinstance(a, (dict, list)):
        return bool(a == b) and orjson.dumps(a, option=_SORTED) == orjson.dumps(b, option=_SORTED)
    return type(a) is type(b) and bool(a == b)


def apply_delta(state: State, delta: Mapping[str, Json]) -> dict[str, Json]:
    """The state after ``delta``; the given state is left as it was."""
    result = dict(state)
    for key in delta.get("gone", ()):
        result.pop(key, None)
    result.update(delta.get("set", {}))
    for key, change in delta.get("rows", {}).items():
        rows = {i: row for i, row in result[key].items() if i not in change.get("gone", ())}
        result[key] = rows | change.get("put", {})
    for key, pairs in delta.get("cells", {}).items():
        cells = bytearray(result[key]) if isinstance(result[key], bytes) else list(result[key])
        for place, value in zip(pairs[::2], pairs[1::2], strict=True):
            cells[place] = value
        result[key] = bytes(cells) if isinstance(cells, bytearray) else cells
    return result
