"""What a gNMI server answers -> leaves of one tree, in whatever pieces and spellings it came. Pure.

In: notifications of a GetResponse. Out: ``Leaf`` per value: the elements of its path without module names,
the key of a list's entry as an element of its own. Servers give whole trees or single leaves, repeat the
last element inside the value, or keep a wildcard in the path: all are the same leaves here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

Path = tuple[str, ...]
Leaf = tuple[Path, Any]

LEAVES_MAX: Final = 1_000_000
DEPTH_MAX: Final = 32
_KEYS: Final = ("name", "interface-id", "id", "index", "dot1p", "port-id")
"""what an entry of a list may be known by, the likeliest first"""
_MODULE: Final = re.compile(r"[a-z][a-z0-9_.-]{0,63}:(?=[A-Za-z_])")


def leaves(notifications: Iterable[Any]) -> Iterator[Leaf]:
    """Bounded; what is no JSON is left out."""
    left = LEAVES_MAX
    for notification in notifications:
        prefix = _elements(notification.prefix)
        for update in notification.update:
            path = (*prefix, *_elements(update.path))
            for leaf in _flat(path, _unwrapped(path, _value(update.val)), 0):
                yield leaf
                left -= 1
                if left <= 0:
                    return


def local(name: str) -> str:
    """``state`` of ``openconfig-interfaces:state``; a name such as ``Ethernet68:3`` has no module."""
    match = _MODULE.match(name)
    return name[match.end() :] if match else name


def _elements(path: Any) -> Path:
    found: list[str] = []
    for element in path.elem:
        found.append(local(element.name))
        found += [value for _, value in sorted(element.key.items()) if value != "*"]
    return tuple(found)


def _value(said: Any) -> Any:
    kind = said.WhichOneof("value")
    raw: Any = getattr(said, kind) if kind else None
    if kind not in ("json_val", "json_ietf_val"):
        return raw if isinstance(raw, str | int | float | bool) else None
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        return None


def _unwrapped(path: Path, value: Any) -> Any:
    """The value without its own name around it."""
    if isinstance(value, dict) and len(value) == 1:
        name, inner = next(iter(value.items()))
        if local(name) in path[-2:] and isinstance(inner, dict | list):
            return inner
    return value


def _flat(path: Path, value: Any, depth: int) -> Iterator[Leaf]:
    if depth > DEPTH_MAX:
        return
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _flat((*path, local(name)), inner, depth + 1)
    elif isinstance(value, list):
        for entry in value:
            if isinstance(entry, dict) and (key := _key(entry)) is not None:
                yield from _flat((*path, key), entry, depth + 1)
            elif not isinstance(entry, dict | list):
                yield path, entry
    elif value is not None:
        yield path, value


def _key(entry: dict[str, Any]) -> str | None:
    named = {local(name): value for name, value in entry.items()}
    for key in _KEYS:
        if isinstance(value := named.get(key), str | int) and not isinstance(value, bool):
            return str(value)
    return None
