"""Memory errors of the machine's own DIMMs, as its memory controllers count them.

In: sys/devices/system/edac/mc/mcN/{dimm,rank}M/{dimm_ce_count,dimm_ue_count,dimm_label}. Out: samples of
``dimm/<controller>/<dimm>``, labelled with its place on the board; ``ecc`` while it has had uncorrectable
errors since the driver was loaded. Source: admin-guide/RAS and ABI/testing/sysfs-devices-edac of Linux.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from msgspec.structs import replace

from collectors.minute import MetricSpec
from collectors.sources.base import Attribute, Reading, Sample, SourceEvent
from collectors.sources.counters import Count, CounterGroup, parsed, samples
from collectors.sources.tree import Tree, printable, reason

ROOT: Final = "sys/devices/system/edac/mc"
DIMMS_MAX: Final = 128
LABEL_MAX_CHARS: Final = 64
_CONTROLLER: Final = re.compile(r"mc\d{1,3}")
_DIMM: Final = re.compile(r"(dimm|rank)\d{1,3}")
_FILES: Final = {"memory_corrected": "dimm_ce_count", "memory_uncorrected": "dimm_ue_count"}


class EdacSource:
    """Every DIMM that a memory controller tells of."""

    name = "edac"
    period_s = 60.0
    deadline_s = 5.0
    metrics: tuple[MetricSpec, ...] = ()

    def __init__(self) -> None:
        self._groups: dict[str, CounterGroup] = {}

    def read(self, tree: Tree, at_s: float) -> Reading:
        found: list[Sample] = []
        events: list[SourceEvent] = []
        groups: dict[str, CounterGroup] = {}
        for name in _dimms(tree):
            folder, entity = f"{ROOT}/{name}", f"dimm/{name}"
            group = groups[name] = self._groups.get(name) or CounterGroup({})
            counts = {metric: _count(tree, f"{folder}/{file}") for metric, file in _FILES.items()}
            place = _label(tree, f"{folder}/dimm_label")
            labels = {"place": place} if place else {}
            told = samples(entity, group, counts, group.update(counts, at_s))
            found += [replace(sample, labels=labels) for sample in told]
            if errors := counts["memory_uncorrected"].value:
                events.append(_uncorrected(entity, errors, place))
        self._groups = groups
        return Reading(found, events)


def _dimms(tree: Tree) -> Iterator[str]:
    """``mc0/dimm3``, at most ``DIMMS_MAX``."""
    left = DIMMS_MAX
    for controller in tree.list(ROOT):
        if _CONTROLLER.fullmatch(controller):
            dimms = [name for name in tree.list(f"{ROOT}/{controller}") if _DIMM.fullmatch(name)][:left]
            left -= len(dimms)
            yield from (f"{controller}/{name}" for name in dimms)


def _count(tree: Tree, name: str) -> Count:
    try:
        return parsed(tree.read_text(name, 64))
    except OSError as error:
        return Count(None, reason(error))


def _label(tree: Tree, name: str) -> str:
    try:
        return printable(tree.read_text(name, 256).strip())[:LABEL_MAX_CHARS]
    except OSError:
        return ""


def _uncorrected(entity: str, errors: int, place: str) -> SourceEvent:
    text = f"memory {place or entity}: {errors} uncorrectable errors since the driver was loaded"
    told: dict[str, Attribute] = {"fatal": False, "errors": errors, "place": place or None}
    return SourceEvent(entity, "ecc", text, "critical", attributes=told, standing=True)
