"""AMD's GPUs as amd-smi tells them.

In: ``amd-smi list``, ``static`` and ``metric`` as JSON, recorded as commands/amd-smi_NAME.json; live only
where the driver is loaded. Out: samples of ``gpu/<uuid>`` under the names that NVIDIA's GPUs have;
``throttle``, ``ecc`` and ``duplicate_uuid`` as there, ``gpu_lost`` for a GPU that was listed and is not any
more or that the inventory has, ``xgmi_error`` while a GPU tells of errors on its links to the others,
``gpu_read_hung`` where amd-smi gives no answer. amd-smi's index is no name: it changes when a GPU is lost, so
the list is asked again as soon as the indices do not fit. Source: AMD SMI's documentation (command line).
"""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from collectors.minute import MetricSpec
from collectors.sources.base import HOST, Reading, Sample, SourceEvent
from collectors.sources.gpu_amd_fields import (
    SLOWDOWN,
    XGMI,
    XGMI_STATES,
    Entry,
    at,
    cell,
    entries,
    limit_row,
    metric_rows,
)
from collectors.sources.gpu_identity import GPUS_MAX, GpuPlace, inventory, normal_bdf
from collectors.sources.gpu_table import LOST_METRICS, GpuTable, Row
from collectors.sources.tools import output
from collectors.sources.tree import Tree

TOOL: Final = "amd-smi"
BESIDE_PATH: Final = "/opt/rocm/bin/amd-smi"
"""Where ROCm puts it; a service's PATH may not have that folder."""
DRIVER: Final = "sys/module/amdgpu"
METRIC_S: Final = 8.0
LIST_S: Final = 4.0
STATIC_S: Final = 6.0
SLOWLY_S: Final = 3_600.0
"""Limits and the list: one process of amd-smi costs more than the rest of a look."""
HUNG_LOOKS: Final = 2
"""amd-smi is slow to begin on a busy node: one answer that is late is no finding."""
READABLE: Final = "amd_smi_readable_count"
NO_ANSWER: Final = "no_answer"
NOT_SUPPORTED: Final = "not_supported"
UNTOLD_METRICS: Final = (
    "sm_active_ratio", "tensor_active_ratio", "nvlink_tx_bytes_per_s", "nvlink_rx_bytes_per_s",
    "pcie_tx_bytes_per_s", "pcie_rx_bytes_per_s",
)  # fmt: skip
"""What hot frames have of NVIDIA's GPUs and what is asked of amd-smi (list, static, metric) has no equal for:
its activity is that of the whole engine."""
NOT_TOLD: Final = "not_told"
"""The list has the GPU, and the answer about values does not."""
UUID: Final = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


@dataclass(frozen=True, slots=True)
class Place:
    """One GPU of the list. Without a UUID it goes by its PCI address."""

    uuid: str
    bdf: str | None


@dataclass(frozen=True, slots=True)
class _Static:
    """What seldom changes of one GPU."""

    limit: Row
    slowdown_c: float | None


class GpuAmdSource:
    """All GPUs that amd-smi lists."""

    name = "gpu_amd"
    period_s = 15.0
    deadline_s = 20.0
    metrics = (MetricSpec(READABLE, "count", 1.0), MetricSpec(XGMI.metric, "count", 1.0))

    def __init__(self) -> None:
        self._table = GpuTable()
        self._places: dict[int, Place] = {}
        self._indices: frozenset[int] = frozenset()
        """of the list, of GPUs without a name too"""
        self._fit: frozenset[int] = frozenset()
        """indices of the values that came with the list: others mean that it is old"""
        self._listed_s: float | None = None
        self._static: dict[str, _Static] = {}
        self._static_s: float | None = None
        self._seen: dict[str, str | None] = {}
        """UUID -> address of each GPU that was ever listed and is there or lost"""
        self._told: list[Sample] = []
        """of the look before, to be unknown where there is no answer"""
        self._late = 0
        """looks in a row without an answer in time"""

    def read(self, tree: Tree, at_s: float) -> Reading:
        if tree.is_live and not tree.exists(DRIVER):
            return Reading()
        try:
            told = self._asked(tree, at_s)
        except FileNotFoundError:
            return Reading()
        except TimeoutError:
            self._late += 1
            return self._unknown(NO_ANSWER)
        except OSError:
            told = {}
        self._late = 0
        if not told or not self._places:
            return self._unknown("unreadable")
        if not tree.is_paced or (self._listed_s != at_s and tree.is_due(self._static_s, at_s, SLOWLY_S)):
            self._ask_static(tree, at_s)
        return self._reading(tree, told, at_s)

    def _asked(self, tree: Tree, at_s: float) -> dict[int, Entry]:
        """The values of this look, by the indices of the list; none where these do not fit.

        Raises:
            OSError: no answer.
        """
        is_fresh = not self._places
        if is_fresh:
            self._ask_list(tree, at_s)
        elif tree.is_due(self._listed_s, at_s, SLOWLY_S):
            self._listed_s = at_s
            with contextlib.suppress(OSError):  # the list of before may well fit
                self._ask_list(tree, at_s)
                is_fresh = True
        told = entries(_said(tree, "metric", METRIC_S))
        if told and told.keys() != self._fit and not is_fresh:
            self._ask_list(tree, at_s)
            is_fresh = True
        if is_fresh:
            self._fit = frozenset(told)
        return told if told.keys() <= self._indices else {}

    def _ask_list(self, tree: Tree, at_s: float) -> None:
        told = entries(_said(tree, "list", LIST_S))
        places = _places(told)
        if places != self._places:
            self._static, self._static_s = {}, None
        self._places, self._indices, self._listed_s = places, frozenset(told), at_s

    def _ask_static(self, tree: Tree, at_s: float) -> None:
        """Limits; where they are not told, those of before hold."""
        self._static_s = at_s
        try:
            told = entries(_said(tree, "static", STATIC_S))
        except OSError:
            return
        for index, entry in told.items():
            if place := self._places.get(index):
                self._static[place.uuid] = _Static(
                    limit_row(place.uuid, place.bdf, entry), cell(at(entry, SLOWDOWN))[0]
                )

    def _reading(self, tree: Tree, told: Mapping[int, Entry], at_s: float) -> Reading:
        rows: list[Row] = []
        mute: list[Sample] = []
        for index, place in self._places.items():
            entry, static = told.get(index), self._static.get(place.uuid)
            if entry is None:
                mute += [Sample(f"gpu/{place.uuid}", metric, None, NOT_TOLD) for metric in LOST_METRICS]
                continue
            mute += [Sample(f"gpu/{place.uuid}", metric, None, NOT_SUPPORTED) for metric in UNTOLD_METRICS]
            rows += metric_rows(place.uuid, place.bdf, entry, static.slowdown_c if static else None)
            rows += [static.limit] if static else []
        lost = self._lost(tree)
        reading = self._table.reading(rows, lost, at_s)
        self._told = [Sample(HOST, READABLE, 1), *reading.samples, *mute]
        events = [*map(_lost_event, sorted(lost)), *_xgmi_events(reading.samples), *reading.events]
        return Reading(self._told, events)

    def _lost(self, tree: Tree) -> frozenset[str]:
        """GPUs that are gone. One whose board is listed under other UUIDs was divided, and is not lost."""
        there = {place.uuid: place.bdf for place in self._places.values()}
        boards = {_board(bdf) for bdf in there.values()}
        lost: dict[str, str | None] = {
            uuid: bdf
            for uuid, bdf in self._seen.items()
            if uuid not in there and bdf is not None and _board(bdf) not in boards
        }
        self._seen = there | lost
        return frozenset(lost) | (set(expected(tree)) - there.keys())

    def _unknown(self, quality: str) -> Reading:
        told = self._told or [Sample(HOST, READABLE, None)]
        samples = [replace(sample, value=None, quality=quality) for sample in told]
        return Reading(samples, [_hung()] if self._late >= HUNG_LOOKS else [])


def _said(tree: Tree, what: str, timeout_s: float) -> bytes:
    """What amd-smi says. Raises ``OSError``."""
    program = BESIDE_PATH if tree.is_live and shutil.which(TOOL) is None else TOOL
    return output(tree, f"amd-smi_{what}.json", [program, what, "--json"], timeout_s)


def _places(told: Mapping[int, Entry]) -> dict[int, Place]:
    """Index -> GPU, of those that have a name."""
    found = {}
    for index, entry in told.items():
        uuid, address = entry.get("uuid"), entry.get("bdf")
        bdf = normal_bdf(address) if isinstance(address, str) else None
        name = uuid.lower() if isinstance(uuid, str) and UUID.fullmatch(uuid) else bdf
        if name is not None:
            found[index] = Place(name, bdf)
    return found


def _board(bdf: str | None) -> str | None:
    """The address without its function, which tells the parts of a divided GPU apart."""
    return bdf.rpartition(".")[0] if bdf else None


def listed(tree: Tree) -> tuple[GpuPlace, ...]:
    """The GPUs that amd-smi lists now, in its order; none where it does not answer."""
    if tree.is_live and not tree.exists(DRIVER):
        return ()
    try:
        told = _places(entries(_said(tree, "list", LIST_S)))
    except OSError:
        return ()
    places = {place.uuid: GpuPlace(place.uuid, place.bdf, index) for index, place in sorted(told.items())}
    return tuple(places.values())


def expected(tree: Tree) -> tuple[str, ...]:
    """AMD's GPUs of the inventory, in its order."""
    gpu = inventory(tree).get("gpu")
    uuids = gpu.get("uuids") if isinstance(gpu, dict) else None
    told = uuids[:GPUS_MAX] if isinstance(uuids, list) else ()
    uuids = (uuid.lower() for uuid in told if isinstance(uuid, str) and UUID.fullmatch(uuid))
    return tuple(dict.fromkeys(uuids))


def _xgmi_events(samples: Iterable[Sample]) -> Iterator[SourceEvent]:
    for sample in samples:
        if sample.metric == XGMI.metric and sample.value:
            state = XGMI_STATES[int(sample.value)].lower()
            text = "the GPU tells of errors on its links to the other GPUs (XGMI)"
            attributes = {"state": state}
            yield SourceEvent(sample.entity, "xgmi_error", text, attributes=attributes, standing=True)


def _lost_event(uuid: str) -> SourceEvent:
    text = f"GPU {uuid} is missing: it was there or the inventory has it, and amd-smi does not list it"
    return SourceEvent(f"gpu/{uuid}", "gpu_lost", text, "critical", standing=True)


def _hung() -> SourceEvent:
    text = f"amd-smi gave no answer within {METRIC_S:g} s, {HUNG_LOOKS} times or more"
    return SourceEvent(HOST, "gpu_read_hung", text, "critical", standing=True)
