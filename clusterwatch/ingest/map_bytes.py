"""One byte per slot and colour mode, as maps are kept every 10 s. Pure.

| byte | meaning |
| --- | --- |
| 0 to 250 | a value on its mode's scale, ``SCALES``; ``lateness``: calls behind; ``job``: 1 + id mod 250 |
| 254 | nothing is known of the slot |
| 255 | the slot is closed |

``state`` has the bytes of the live map (``fleet.overview``). ``link_errors`` counts what the port had to
repair or repeat since the map before: 10 x log2(1 + count).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]
Floats = NDArray[np.float32]

TOP: Final = 250
UNKNOWN: Final = 254
CLOSED: Final = 255
SCALES: Final = {
    "power": ("gpu_power_w", 0.0, 1_000.0),
    "temperature": ("gpu_temperature_c", 0.0, 125.0),
    "sm_activity": ("gpu_sm_activity_ratio", 0.0, 1.0),
}
"""mode -> (metric, value of byte 0, value of byte 250)"""
LINK_ERRORS: Final = ("nic_out_of_sequence_total", "nic_fec_corrected_total")


def scaled(values: Floats, low: float, high: float) -> Bytes:
    """Values on a scale; what is no number is unknown."""
    known = np.isfinite(values)
    steps = np.clip((np.where(known, values, low) - low) / (high - low), 0.0, 1.0) * TOP
    return np.where(known, np.rint(steps), UNKNOWN).astype(np.uint8)


def link_errors(now: Floats, before: Floats) -> Bytes:
    """Growth of a counter; a counter that was reset counts from 0."""
    count = min(len(now), len(before))
    grown = np.full(len(now), np.nan, np.float64)
    grown[:count] = now[:count].astype(np.float64) - before[:count]
    grown = np.where(grown < 0, now, grown)
    known = np.isfinite(grown)
    steps = np.minimum(10 * np.log2(1 + np.where(known, grown, 0.0)), TOP)
    return np.where(known, np.rint(steps), UNKNOWN).astype(np.uint8)


def jobs(slot_count: int, slots_of: Mapping[int, Ints]) -> Bytes:
    """Which job uses a slot; 0 where none does."""
    found = np.zeros(slot_count, np.uint8)
    for job_id, slots in slots_of.items():
        found[slots[slots >= 0]] = 1 + job_id % TOP
    return found


def lateness(slot_count: int, ranks: Sequence[tuple[Ints, Ints]]) -> Bytes:
    """Calls behind the furthest waiter, the worst of a slot's ranks; ``ranks`` are (slots, calls behind)."""
    found = np.full(slot_count, -1, np.int64)
    for slots, behind in ranks:
        used = slots >= 0
        np.maximum.at(found, slots[used], np.minimum(behind[used], TOP))
    return np.where(found < 0, UNKNOWN, found).astype(np.uint8)
