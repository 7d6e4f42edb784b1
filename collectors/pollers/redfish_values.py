"""Values of Redfish resources: a BMC's JSON is untrusted, often incomplete and sometimes wrong.

In: decoded JSON of any shape. Out: checked words, numbers and links. Nothing here raises for bad input.
Source: DMTF DSP0266 (Redfish specification), DSP2046 (resource and schema guide).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from collectors.sources.tree import printable

Resource = Mapping[str, Any]
ROWS_MAX: Final = 512
"""of one array or collection"""
WORD_MAX_CHARS: Final = 128
_LINK: Final = re.compile(r"/redfish/[A-Za-z0-9._~%!$&'()*+,;=:@/?-]{0,500}")
_TURNED_OFF: Final = frozenset({"Disabled", "StandbyOffline", "StandbySpare", "Deferring", "Quiesced"})
_NO_LONGER_THERE: Final = frozenset({"UnavailableOffline"})


def child(resource: Resource, *names: str) -> Resource:
    """An object inside an object; empty where it is not there or is something else."""
    found: Any = resource
    for name in names:
        found = found.get(name) if isinstance(found, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def rows(resource: Resource, name: str) -> list[Resource]:
    """The objects of an array, at most ``ROWS_MAX``."""
    found = resource.get(name)
    return [row for row in found[:ROWS_MAX] if isinstance(row, Mapping)] if isinstance(found, list) else []


def link(value: Any) -> str | None:
    """The path that ``{"@odata.id": path}`` or a text points to; None where it does not stay on this BMC."""
    if isinstance(value, Mapping):
        value = value.get("@odata.id")
    if not isinstance(value, str):
        return None
    path = value.partition("#")[0]
    if not _LINK.fullmatch(path) or "//" in path or ".." in path or "%2e" in path.lower():
        return None
    return path


def word(value: Any, max_chars: int = WORD_MAX_CHARS) -> str:
    """A printable text without blanks around it; empty for anything else."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value) if abs(value) < 2**63 else None
    return printable(value[:max_chars]).strip() if isinstance(value, str) else ""


def number(value: Any) -> float | None:
    """A number, one written as text, or the reading of a sensor's excerpt; None for anything else."""
    if isinstance(value, Mapping):
        value = value.get("Reading")
    if isinstance(value, str):
        try:
            value = float(value) if len(value) <= 32 else None
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if math.isfinite(found) else None


def status(resource: Resource) -> tuple[str, str]:
    """(state, health), such as ``Enabled`` and ``OK``; empty: not told."""
    told = child(resource, "Status")
    return word(told.get("State"), 32), word(told.get("Health") or told.get("HealthRollup"), 32)


def reason(state: str) -> str:
    """Why a part in this state gives no value."""
    if state == "Absent":
        return "absent"
    if state in _TURNED_OFF:
        return "off"
    return "lost" if state in _NO_LONGER_THERE else "not_available"


def seconds(value: Any) -> float | None:
    """A point in time of a BMC's clock as seconds since 1970; None for what is none."""
    if not isinstance(value, str) or len(value) > 64:
        return None
    try:
        found = datetime.fromisoformat(value)
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None


def identity(resource: Resource, fallback: str = "") -> str:
    """What a part is called: a member's number alone says nothing, so then its name."""
    member = word(resource.get("MemberId")) or word(resource.get("Id"))
    name = word(resource.get("Name"))
    return (name if member.isdigit() and name else member or name) or fallback
