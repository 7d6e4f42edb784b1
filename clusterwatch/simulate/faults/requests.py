"""``NAME[:TARGET][@START[+DURATION]]`` as somebody asks for a fault."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

DEFAULT_START_S: Final = 60.0
_NUMBER: Final = r"\d+(?:\.\d+)?"
_FORM: Final = re.compile(
    rf"(?P<name>[a-z0-9_]+)(?::(?P<target>[^@+]+))?(?:@(?P<start>{_NUMBER})(?:\+(?P<duration>{_NUMBER}))?)?"
)


class FaultError(ValueError):
    """A fault that does not exist, or has no place in this cluster; the text says why."""


@dataclass(frozen=True, slots=True)
class Request:
    """One fault as it was asked for; times in seconds after the start of the simulator."""

    name: str
    target: str | None
    start_s: float
    duration_s: float | None


def parse(text: str) -> Request:
    """Reads one request. Raises ``FaultError``."""
    found = _FORM.fullmatch(text.strip())
    if found is None:
        raise FaultError(f"{text!r} is no fault: NAME[:TARGET][@START[+DURATION]], seconds after the start")
    start, duration = found["start"], found["duration"]
    return Request(
        found["name"],
        found["target"],
        float(start) if start else DEFAULT_START_S,
        float(duration) if duration else None,
    )
