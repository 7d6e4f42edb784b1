"""PCIe links: width and speed of each device against what it can do and what the node should have.

In: sys/bus/pci/devices, the expected inventory, and for GPUs what the exporter or nvidia-smi says of theirs.
Out: samples of ``pci/<bdf>``; ``pcie_degraded`` for a device that is narrower or slower than the inventory
says. Without an inventory a device below its own maximum is only shown: a slot may be narrower on purpose.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from collectors.minute import MetricSpec
from collectors.sources.base import OK, Attribute, Reading, Sample, SourceEvent
from collectors.sources.gpu_identity import gpus, inventory, smi_rows
from collectors.sources.pci_places import device_bdf
from collectors.sources.tree import Tree, reason

ROOT: Final = "sys/bus/pci/devices"
DEVICES_MAX: Final = 512
WIDTHS: Final = frozenset({1, 2, 4, 8, 12, 16, 32})
GEN_GTS: Final = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0}
"""Generation -> giga transfers per second of a lane."""
BUSY_PERCENT: Final = 10.0
"""Idle GPUs lower their generation, so it is judged only on one that works."""
METRICS: Final = (
    MetricSpec("pcie_width_count", "count", 1.0),
    MetricSpec("pcie_width_max_count", "count", 1.0),
    MetricSpec("pcie_speed_gts", "gts", 0.5),
    MetricSpec("pcie_speed_max_gts", "gts", 0.5),
)

_FILES: Final = (
    ("pcie_width_count", "current_link_width"),
    ("pcie_width_max_count", "max_link_width"),
    ("pcie_speed_gts", "current_link_speed"),
    ("pcie_speed_max_gts", "max_link_speed"),
)
_SPEED: Final = re.compile(r"(\d{1,3}(?:\.\d)?) GT/s")
_BDF: Final = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_BRIDGE: Final = "0x0604"
_DCGM_LINE: Final = re.compile(
    r'DCGM_FI_DEV_(PCIE_LINK_WIDTH|PCIE_LINK_GEN|GPU_UTIL)\{[^}]*UUID="([^"]+)"[^}]*\} (\d+)'
)


@dataclass(frozen=True, slots=True)
class Link:
    """A PCIe link. None = not told."""

    width: int | None = None
    speed_gts: float | None = None
    busy: bool = True
    """False where a low speed may be rest"""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the inventory says of a link."""

    width: int | None = None
    gen: int | None = None


class PcieSource:
    """Every device with a link, bridges left out."""

    name = "pcie"
    period_s = 10.0
    deadline_s = 5.0
    metrics = METRICS

    def __init__(self) -> None:
        self._listed: list[str] = []
        self._devices: list[str] = []

    def read(self, tree: Tree, at_s: float) -> Reading:
        found: list[Sample] = []
        links: dict[str, Link] = {}
        for bdf in self._with_link(tree):
            samples = list(_device(tree, bdf))
            found += samples
            links[bdf] = _link_of(samples)
        events = [*self._nics(tree, links), *self._gpus(tree, links)]
        return Reading(found, events)

    def _with_link(self, tree: Tree) -> list[str]:
        """Devices that have a link of their own, looked for again only when the bus has changed."""
        listed = tree.list(ROOT)[:DEVICES_MAX]
        if listed != self._listed:
            has_link = (
                name
                for name in listed
                if _BDF.fullmatch(name) and tree.exists(f"{ROOT}/{name}/max_link_width")
            )
            self._devices = [name for name in has_link if not _is_bridge(tree, name)]
            self._listed = listed
        return self._devices

    def _nics(self, tree: Tree, links: Mapping[str, Link]) -> Iterator[SourceEvent]:
        for row in _rows(inventory(tree), "rdma"):
            device = row.get("device")
            if not isinstance(device, str) or not re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", device):
                continue
            bdf = device_bdf(tree, f"sys/class/infiniband/{device}")
            if bdf is not None and bdf in links:
                told = {"bdf": bdf, "rdma_device": device}
                yield from _judged(f"pci/{bdf}", device, links[bdf], _wanted(row), told)

    def _gpus(self, tree: Tree, links: Mapping[str, Link]) -> Iterator[SourceEvent]:
        row = inventory(tree).get("gpu")
        if not isinstance(row, dict):
            return
        own = gpu_links(tree)
        for gpu in gpus(tree):
            link = own.get(gpu.uuid) or _at_rest(links.get(gpu.bdf or ""))
            if link is not None:
                told = {"bdf": gpu.bdf} if gpu.bdf else {}
                yield from _judged(f"gpu/{gpu.uuid}", f"GPU {gpu.uuid}", link, _wanted(row), told)


def _judged(
    entity: str, name: str, link: Link, wanted: Wanted, told: Mapping[str, str]
) -> Iterator[SourceEvent]:
    """A fault that stands while a link is worse than wanted."""
    faults = list(faults_of(link, wanted))
    if not faults:
        return
    numbers = {
        "width": link.width,
        "expected_width": wanted.width,
        "speed_gts": link.speed_gts,
        "expected_speed_gts": GEN_GTS.get(wanted.gen or 0),
    }
    attributes: dict[str, Attribute] = {**told, **{key: number for key, number in numbers.items() if number}}
    text = f"{name}: PCIe {' and '.join(faults)}"
    yield SourceEvent(entity, "pcie_degraded", text, "warning", attributes=attributes, standing=True)


def faults_of(link: Link, wanted: Wanted) -> Iterator[str]:
    """What is worse than wanted, in words."""
    if link.width is not None and wanted.width is not None and link.width < wanted.width:
        yield f"x{link.width} instead of x{wanted.width}"
    speed = GEN_GTS.get(wanted.gen or 0)
    if link.busy and link.speed_gts is not None and speed is not None and link.speed_gts < speed:
        yield f"{link.speed_gts:g} GT/s instead of {speed:g} GT/s"


def gpu_links(tree: Tree) -> dict[str, Link]:
    """UUID -> link, as the exporter or nvidia-smi tells it."""
    found: dict[str, dict[str, float]] = {}
    for source in (_smi_numbers, _dcgm_numbers):
        for uuid, name, value in source(tree):
            found.setdefault(uuid, {})[name] = value
    return {uuid: _gpu_link(numbers) for uuid, numbers in found.items()}


def _gpu_link(numbers: Mapping[str, float]) -> Link:
    width = int(numbers.get("width", 0))
    gen = int(numbers.get("gen", 0))
    busy = numbers.get("util", 0.0) >= BUSY_PERCENT
    return Link(width if width in WIDTHS else None, GEN_GTS.get(gen), busy)


def _at_rest(link: Link | None) -> Link | None:
    """A GPU's link as the kernel tells it, which does not say whether it works: only the width counts."""
    return None if link is None else replace(link, busy=False)


def _smi_numbers(tree: Tree) -> Iterator[tuple[str, str, float]]:
    columns = {"pcie.link.width.current": "width", "pcie.link.gen.current": "gen", "utilization.gpu": "util"}
    try:
        rows = smi_rows(tree.read_text("commands/nvidia-smi_query-gpu.csv"))
    except OSError:
        return
    for row in rows:
        for column, name in columns.items():
            if match := re.match(r"\d{1,3}\b", row.get(column, "")):
                yield row.get("uuid", ""), name, float(match[0])


def _dcgm_numbers(tree: Tree) -> Iterator[tuple[str, str, float]]:
    names = {"PCIE_LINK_WIDTH": "width", "PCIE_LINK_GEN": "gen", "GPU_UTIL": "util"}
    try:
        text = tree.read_text("commands/dcgm_metrics.prom")
    except OSError:
        return
    for field, uuid, value in _DCGM_LINE.findall(text):
        if len(value) <= 3:
            yield uuid, names[field], float(value)


def _device(tree: Tree, bdf: str) -> Iterator[Sample]:
    for metric, name in _FILES:
        try:
            text = tree.read_text(f"{ROOT}/{bdf}/{name}", 4_096).strip()
        except OSError as error:
            yield Sample(f"pci/{bdf}", metric, None, reason(error))
            continue
        value, quality = _width(text) if metric.endswith("_count") else _speed(text)
        yield Sample(f"pci/{bdf}", metric, value, quality)


def _width(text: str) -> tuple[float | None, str]:
    """0 is a link that is down; 63 and 255 are what a device gives that no longer answers."""
    if not text:
        return None, "empty"
    if not (text.isascii() and text.isdigit()):
        return None, "unreadable"
    if text == "0":
        return None, "link_down"
    return (int(text), OK) if len(text) < 4 and int(text) in WIDTHS else (None, "out_of_range")


def _speed(text: str) -> tuple[float | None, str]:
    if not text:
        return None, "empty"
    if text.startswith("Unknown"):
        return None, "not_available"
    match = _SPEED.match(text)
    return (float(match[1]), OK) if match else (None, "unreadable")


def link_at(tree: Tree, bdf: str) -> Link:
    """The link of one device as the kernel tells it now."""
    return _link_of(_device(tree, bdf))


def _link_of(samples: Iterable[Sample]) -> Link:
    values = {sample.metric: sample.value for sample in samples}
    width = values["pcie_width_count"]
    return Link(None if width is None else int(width), values["pcie_speed_gts"])


def _is_bridge(tree: Tree, bdf: str) -> bool:
    try:
        return tree.read_text(f"{ROOT}/{bdf}/class", 64).startswith(_BRIDGE)
    except OSError:
        return False


def _rows(told: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    rows = told.get(name)
    return [row for row in rows[:64] if isinstance(row, dict)] if isinstance(rows, list) else []


def _wanted(row: Mapping[str, Any]) -> Wanted:
    width, gen = row.get("pcie_width"), row.get("pcie_gen")
    return Wanted(width if isinstance(width, int) else None, gen if isinstance(gen, int) else None)
