"""A rack's power: the sum of its shelves, which is known only when each of them is.

In: what each shelf's BMC told. Out: samples of ``rack/<name>``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from collectors.pollers.redfish_parts import Told
from collectors.sources.base import OK, Sample

INCOMPLETE: Final = "incomplete"


def rack_samples(rack: str, shelves: Sequence[Told | None]) -> list[Sample]:
    """``shelves``: None for one that did not answer."""
    entity = f"rack/{rack}"
    powers = [None if told is None else shelf_power_w(told) for told in shelves]
    known = [power for power in powers if power is not None]
    is_whole = len(known) == len(powers)
    answered = [told for told in shelves if told is not None]
    supplies = [value for told in answered for value in _values(told, "psu", "healthy_count")]
    charges = [value for told in answered for value in _values(told, "bbu", "charge_ratio")]
    found = [
        Sample(entity, "shelves_count", len(shelves)),
        Sample(entity, "shelves_answering_count", len(answered)),
        Sample(entity, "power_w", sum(known) if is_whole else None, OK if is_whole else INCOMPLETE),
        Sample(entity, "psu_healthy_count", sum(value == 1 for value in supplies)),
        Sample(entity, "psu_failed_count", sum(value == 0 for value in supplies)),
    ]
    if charges:
        found.append(Sample(entity, "bbu_charge_min_ratio", min(charges)))
    return found


def shelf_power_w(told: Told) -> float | None:
    """What a shelf draws: as it says itself, else the sum of its supplies if each of them tells."""
    whole = [
        sample.value
        for sample in told.samples.values()
        if sample.metric == "power_w" and sample.entity == f"bmc/{told.bmc}" and sample.value is not None
    ]
    if whole:
        return sum(whole)
    inputs = [
        sample.value
        for sample in told.samples.values()
        if sample.metric == "input_power_w" and sample.entity.startswith("psu/")
    ]
    if not inputs or None in inputs:
        return None
    return sum(value for value in inputs if value is not None)


def _values(told: Told, kind: str, metric: str) -> Iterator[float]:
    for sample in told.samples.values():
        if sample.metric == metric and sample.entity.startswith(f"{kind}/") and sample.value is not None:
            yield sample.value
