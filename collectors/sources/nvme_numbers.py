"""NVMe drives, and numbers as ``nvme-cli`` prints them: plain, as text with a locale's separators, in parts.

In: sys/class/nvme; decoded JSON of a drive's log. Out: names; a whole number, or why there is none.
Source: nvme-cli 1.x to 3.x, whose versions print counters of 128 bits in different ways.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from collectors.sources.base import OK
from collectors.sources.tree import Tree

DRIVES_MAX: Final = 64
SMART_TIMEOUT_S: Final = 1.5
_DRIVE: Final = re.compile(r"nvme\d{1,4}")
_OTHER_NAMES: Final = {
    "percent_used": "percentage_used",
    "avail_spare": "available_spare",
    "spare_thresh": "available_spare_threshold",
}
"""As other tools call the fields."""
_NUMBER: Final = re.compile(
    r"(0x[0-9a-f]{1,32}|[0-9]{1,39}|[0-9]{1,3}(?:[.,'\s\u00a0\u202f][0-9]{2,3}){0,18}[.,'\s\u00a0\u202f][0-9]{3})"
    r"\s*(?:%|°?\s?[CK]\b.*|\(.*)?"
)
"""Whole, perhaps grouped by a locale's separators, perhaps with its unit."""


def drives(tree: Tree) -> list[str]:
    """Names of the machine's NVMe drives."""
    return [name for name in tree.list("sys/class/nvme")[:DRIVES_MAX] if _DRIVE.fullmatch(name)]


def smart_number(said: Mapping[str, object], key: str) -> tuple[int | None, str]:
    """A field of the log; newer tools spell it as text with a locale's separators, or as an object."""
    return number(said.get(key, said.get(_OTHER_NAMES.get(key, key))))


def number(value: object) -> tuple[int | None, str]:
    """A whole number of at most 128 bits in any of the spellings."""
    if isinstance(value, dict):
        value = _of_object(value)
    if value is None:
        return None, "not_available"
    if isinstance(value, str):
        value = _grouped(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**128:
        return None, "unreadable"
    return value, OK


def _of_object(value: Mapping[str, object]) -> object:
    """``{"value": 3}``, or the halves of 128 bits."""
    high, low = value.get("hi"), value.get("lo")
    if isinstance(high, int) and isinstance(low, int) and 0 <= high < 2**64 and 0 <= low < 2**64:
        return (high << 64) + low
    return value.get("value")


def _grouped(text: str) -> int | None:
    """A whole number as text, such as ``2.210.450`` or ``42 C (315 Kelvin)``."""
    match = _NUMBER.fullmatch(text.strip())
    if match is None:
        return None
    if match[1].startswith("0x"):
        return int(match[1], 16)
    digits = re.sub(r"[.,'\s\u00a0\u202f]", "", match[1])
    return int(digits) if len(digits) <= 39 else None
