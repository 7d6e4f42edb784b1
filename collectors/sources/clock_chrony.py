"""What chrony says of the clock and of the servers it follows.

In: the output of ``chronyc -c -n tracking`` and ``sources``; never a name is looked up. Out: ``Tracking``,
``Servers``. Source: chronyc(1); client.c of chrony for the order of the columns and the sign of the offset.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

TRACKING: Final = "chronyc_tracking.csv"
SOURCES: Final = "chronyc_sources.csv"
TRACKING_ARGV: Final = ("chronyc", "-c", "-n", "tracking")
SOURCES_ARGV: Final = ("chronyc", "-c", "-n", "sources")
LINES_MAX: Final = 64
SECONDS_MAX: Final = 1e10
"""More is no offset of a clock."""
STRATUM_MAX: Final = 16
_COLUMNS: Final = 14
_SOURCE_COLUMNS: Final = 10
_NO_LEAP: Final = "Not synchronised"
_LEAPS: Final = frozenset({"Normal", "Insert second", "Delete second", _NO_LEAP})
_OWN_CLOCK: Final = "7F7F0101"
"""The reference of a clock that follows nobody but itself (``local`` of chrony.conf)."""


@dataclass(frozen=True, slots=True)
class Tracking:
    """How the clock follows its source.

    Attributes:
        offset_s: positive: the clock is behind.
        frequency_ppm: by how much the clock would run fast if it were left alone.
    """

    is_synchronised: bool
    stratum: int
    offset_s: float
    rms_offset_s: float
    frequency_ppm: float
    root_delay_s: float
    root_dispersion_s: float


@dataclass(frozen=True, slots=True)
class Servers:
    """Counts of servers: all, those that answered one of the last eight questions, those in disagreement."""

    all: int
    reachable: int
    false: int


def tracking(text: str) -> Tracking | None:
    """None: no line of chrony's."""
    cells = text.splitlines()[0].split(",") if text.strip() else []
    if len(cells) != _COLUMNS or cells[13] not in _LEAPS:
        return None
    stratum = cells[2]
    numbers = [_number(cells[place]) for place in (4, 6, 7, 10, 11)]
    known = [number for number in numbers if number is not None]
    if len(known) < len(numbers) or not (stratum.isascii() and stratum.isdigit() and len(stratum) <= 2):
        return None
    follows = cells[13] != _NO_LEAP and cells[0] != _OWN_CLOCK
    return Tracking(follows, min(int(stratum), STRATUM_MAX), *known)


def servers(text: str) -> Servers:
    """Counts of the lines that are servers' or reference clocks'."""
    states: list[tuple[str, bool]] = []
    for line in text.splitlines()[:LINES_MAX]:
        cells = line.split(",")
        if len(cells) != _SOURCE_COLUMNS or cells[0] not in ("^", "=", "#") or len(cells[1]) != 1:
            continue
        reach = cells[5]
        if reach.isascii() and reach.isdigit() and len(reach) <= 3:
            states.append((cells[1], reach.strip("0") != ""))
    return Servers(
        len(states), sum(reached for _, reached in states), sum(state == "x" for state, _ in states)
    )


def _number(text: str) -> float | None:
    try:
        value = float(text) if len(text) <= 32 and text.isascii() and "_" not in text else math.nan
    except ValueError:
        return None
    return value if abs(value) <= SECONDS_MAX else None
