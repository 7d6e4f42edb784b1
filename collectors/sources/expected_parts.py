"""The parts of a node against its class: too few, too many, slower than the class.

In: sys/bus/pci/devices, sys/class/{infiniband,nvme}, ``nvidia-smi nvlink -e`` once an hour. Out: standing
events ``gpu_missing``, ``rdma_missing``, ``nvme_missing``, ``..._too_many``, ``pcie_degraded``,
``rate_degraded``, ``link_down``, ``nvlink_missing``. A missing part is named by its slot, else by where it
was seen before. What cannot be read proves nothing: a bus that lists no device, a device of an unknown kind.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from collectors.sources.base import HOST, Attribute, SourceEvent
from collectors.sources.infiniband import ROOT as RDMA
from collectors.sources.infiniband import expected_ports, rate_of
from collectors.sources.node_class import NodeClass, Parts, RdmaDevices
from collectors.sources.nvlink import RECORDING as NVLINKS
from collectors.sources.nvlink import parse as nvlinks_of
from collectors.sources.pci_places import device_bdf
from collectors.sources.pcie import DEVICES_MAX, GEN_GTS, Link, Wanted, faults_of, link_at
from collectors.sources.pcie import ROOT as BUS
from collectors.sources.tools import output
from collectors.sources.tree import Tree

KINDS: Final = ("gpu", "rdma", "nvme")
RATE_SHARE_MIN: Final = 0.99
NVLINK_EVERY_S: Final = 3_600.0
NVLINK_TIMEOUT_S: Final = 4.0
NAMED_MAX: Final = 32
_GPU_CLASSES: Final = ("0x0300", "0x0302", "0x0380", "0x1200")
_GPU_VENDORS: Final = ("0x10de", "0x1002")
"""NVIDIA and AMD. The BMC's own display adapter is of the same class."""
_NVME_CLASS: Final = "0x010802"
_WORDS: Final = {"gpu": "GPU", "rdma": "RDMA device", "nvme": "NVMe drive"}


@dataclass(frozen=True, slots=True)
class Part:
    """One that is there. ``name``: the kernel's, else its address."""

    bdf: str
    name: str


@dataclass(slots=True)
class Bus:
    """What the bus holds by kind; ``unknown``: devices of which it cannot be read what they are."""

    parts: dict[str, list[Part]] = field(default_factory=dict)
    unknown: int = 0


class ClassJudge:
    """Compares a node with its class. Keeps where parts were last seen, all of them being there."""

    def __init__(self) -> None:
        self.seen: dict[str, list[str]] = {}
        """kind -> addresses of its parts when none was missing"""
        self._kinds: dict[str, str | None] = {}
        """address -> kind, or empty for what is none of them; a device that is listed stays what it is"""
        self._nvlinks: tuple[float | None, list[SourceEvent]] = None, []

    def events(self, tree: Tree, node: NodeClass, told: Mapping[str, Any], at_s: float) -> list[SourceEvent]:
        """Every fault that stands. ``told``: the node's inventory, which goes before its class."""
        bus = self._bus(tree)
        if bus is None:
            return []
        found: list[SourceEvent] = []
        for kind in KINDS:
            wanted: Parts | None = getattr(node, kind)
            if wanted is None:
                continue
            parts = [part for part in bus.parts.get(kind, []) if _counts(tree, part, wanted)]
            if not _is_listed(kind, told) and (kind != "rdma" or tree.exists(RDMA)):
                found += self._number(kind, parts, wanted, bus.unknown)
            found += _links(tree, kind, parts, wanted, told)
        if node.rdma is not None and node.rdma.rate_gbps:
            found += _ports(
                tree, [p for p in bus.parts.get("rdma", []) if _counts(tree, p, node.rdma)], node.rdma
            )
        if node.gpu is not None and node.gpu.nvlinks:
            found += self._linked(tree, node.gpu.nvlinks, at_s)
        return found

    def _bus(self, tree: Tree) -> Bus | None:
        listed = tree.list(BUS)[:DEVICES_MAX]
        if not listed:
            return None
        self._kinds = {bdf: self._kinds.get(bdf) or _kind(tree, bdf) for bdf in listed}
        bus = Bus(unknown=sum(kind is None for kind in self._kinds.values()))
        drives = _names(tree, "sys/class/nvme")
        for kind, names in (("gpu", {}), ("nvme", drives)):
            bus.parts[kind] = [Part(bdf, names.get(bdf, bdf)) for bdf in listed if self._kinds[bdf] == kind]
        bus.parts["rdma"] = [Part(bdf, name) for bdf, name in sorted(_names(tree, RDMA).items())]
        return bus

    def _number(self, kind: str, parts: list[Part], wanted: Parts, unknown: int) -> Iterator[SourceEvent]:
        """Too few or too many, each by name as far as it is known."""
        there = {part.bdf for part in parts}
        least = wanted.wanted
        gone = [slot for slot in wanted.slots if slot.address not in there]
        if not wanted.slots and least is not None and len(parts) >= least:
            self.seen[kind] = sorted(there)
        lacking = len(gone) if wanted.slots else max(0, (least or 0) - len(parts))
        found = len(wanted.slots) - lacking if wanted.slots else len(parts)
        if lacking and unknown < lacking:
            names = {slot.address: slot.name for slot in gone}
            before = sorted(set(self.seen.get(kind, ())) - there)
            where = list(names) or before
            # Addresses may have been given anew at boot: then it is not known which of them is missing.
            if len(where) == lacking:
                for address in where[:NAMED_MAX]:
                    yield _missing(kind, address, names.get(address, ""), found, least or 0)
            else:
                yield _fewer(kind, found, least or 0)
        extra = _extra(parts, wanted)
        if extra is not None:
            yield _too_many(kind, parts, wanted, extra)

    def _linked(self, tree: Tree, wanted: int, at_s: float) -> list[SourceEvent]:
        """GPUs with fewer active NVLinks than their class. The tool opens the driver: asked once an hour."""
        if tree.is_due(self._nvlinks[0], at_s, NVLINK_EVERY_S):
            try:
                said = output(tree, NVLINKS, ["nvidia-smi", "nvlink", "-e"], NVLINK_TIMEOUT_S)
            except OSError:
                said = b""
            self._nvlinks = at_s, list(_nvlink_faults(said.decode("utf-8", "replace"), wanted))
        return self._nvlinks[1]


def _kind(tree: Tree, bdf: str) -> str | None:
    """``gpu``, ``nvme``, another word for what is neither; None where it cannot be read."""
    try:
        of_class = tree.read_text(f"{BUS}/{bdf}/class", 64).strip()
        if of_class.startswith(_NVME_CLASS):
            kind = "nvme"
        elif (
            of_class.startswith(_GPU_CLASSES)
            and tree.read_text(f"{BUS}/{bdf}/vendor", 64).strip() in _GPU_VENDORS
        ):
            kind = "gpu"
        else:
            return "other" if of_class.startswith("0x") else None
    except OSError:
        return None
    return "virtual" if tree.exists(f"{BUS}/{bdf}/physfn") else kind


def _names(tree: Tree, folder: str) -> dict[str, str]:
    """Address -> name of a class's device, virtual functions left out."""
    found: dict[str, str] = {}
    for name in tree.list(folder)[:DEVICES_MAX]:
        bdf = device_bdf(tree, f"{folder}/{name}")
        if bdf is not None and name.isprintable() and not tree.exists(f"{BUS}/{bdf}/physfn"):
            found.setdefault(bdf, name[:64])
    return found


def _counts(tree: Tree, part: Part, wanted: Parts) -> bool:
    """Whether the class means this part."""
    if part.name in wanted.ignore or part.bdf in wanted.ignore:
        return False
    if not wanted.ids:
        return True
    try:
        pair = [tree.read_text(f"{BUS}/{part.bdf}/{name}", 64).strip()[2:] for name in ("vendor", "device")]
    except OSError:
        return True
    return ":".join(pair) in wanted.ids


def _is_listed(kind: str, told: Mapping[str, Any]) -> bool:
    """Whether the inventory itself says which parts of the kind there are."""
    if kind == "gpu":
        gpu = told.get("gpu")
        return isinstance(gpu, dict) and bool(gpu.get("uuids"))
    return kind == "rdma" and bool(told.get("rdma"))


def _extra(parts: list[Part], wanted: Parts) -> list[Part] | None:
    """Parts that should not be there; empty: there are too many, and it is not known which; None: none."""
    if wanted.count_max is None or len(parts) <= wanted.count_max:
        return None
    places = {slot.address for slot in wanted.slots}
    return [part for part in parts if places and part.bdf not in places]


def _missing(kind: str, address: str, slot: str, found: int, expected: int) -> SourceEvent:
    name = f"{_WORDS[kind]} {slot} at {address}" if slot else f"{_WORDS[kind]} at {address}"
    text = f"{name} is missing: {found} of {expected} are there"
    told: dict[str, Attribute] = {"bdf": address, "slot": slot or None, "found": found, "expected": expected}
    return SourceEvent(f"pci/{address}", f"{kind}_missing", text, "critical", attributes=told, standing=True)


def _fewer(kind: str, found: int, expected: int) -> SourceEvent:
    text = f"{found} of {expected} {_WORDS[kind]}s are there; the node's class does not say where each sits"
    told: dict[str, Attribute] = {"found": found, "expected": expected}
    return SourceEvent(HOST, f"{kind}_missing", text, "critical", attributes=told, standing=True)


def _too_many(kind: str, parts: list[Part], wanted: Parts, extra: list[Part]) -> SourceEvent:
    named = [f"{part.name} at {part.bdf}" if part.name != part.bdf else part.bdf for part in extra or parts]
    text = (
        f"{len(parts)} {_WORDS[kind]}s instead of at most {wanted.count_max}: {', '.join(named[:NAMED_MAX])}"
    )
    bdfs = [part.bdf for part in extra or parts][:NAMED_MAX]
    told: dict[str, Attribute] = {"found": len(parts), "expected": wanted.count_max, "bdfs": bdfs}
    return SourceEvent(HOST, f"{kind}_too_many", text, "warning", attributes=told, standing=True)


def _links(
    tree: Tree, kind: str, parts: Iterable[Part], wanted: Parts, told: Mapping[str, Any]
) -> Iterator[SourceEvent]:
    """PCIe narrower or slower than the class; not where the inventory itself says how it should be."""
    if wanted.pcie_width is None and wanted.pcie_gen is None:
        return
    judged = _judged_by_inventory(kind, told)
    for part in parts:
        if judged is None or part.name in judged:
            continue
        link = link_at(tree, part.bdf)
        if kind == "gpu":
            link = Link(link.width, None)
        faults = list(faults_of(link, Wanted(wanted.pcie_width, wanted.pcie_gen)))
        if faults:
            numbers = {
                "width": link.width, "expected_width": wanted.pcie_width,
                "speed_gts": link.speed_gts, "expected_speed_gts": GEN_GTS.get(wanted.pcie_gen or 0),
            }  # fmt: skip
            known: dict[str, Attribute] = {name: number for name, number in numbers.items() if number}
            text = f"{_WORDS[kind]} {part.name}: PCIe {' and '.join(faults)}"
            yield SourceEvent(
                f"pci/{part.bdf}", "pcie_degraded", text, "warning",
                attributes={"bdf": part.bdf, **known}, standing=True,
            )  # fmt: skip


def _judged_by_inventory(kind: str, told: Mapping[str, Any]) -> set[str] | None:
    """Names of RDMA devices whose links the inventory has; None: the whole kind."""
    row = told.get("gpu") if kind == "gpu" else None
    if isinstance(row, dict) and ("pcie_width" in row or "pcie_gen" in row):
        return None
    rows = told.get("rdma") if kind == "rdma" else None
    found = rows if isinstance(rows, list) else []
    return {str(one.get("device")) for one in found if isinstance(one, dict)}


def _ports(tree: Tree, parts: Iterable[Part], wanted: RdmaDevices) -> Iterator[SourceEvent]:
    """Ports that carry no link or a slower one than the class; those of the inventory are judged by it."""
    listed, gbps = expected_ports(tree), wanted.rate_gbps or 0.0
    for part in parts:
        for number in tree.list(f"{RDMA}/{part.name}/ports")[:8]:
            if not number.isdecimal() or (part.name, int(number)) in listed:
                continue
            folder, entity = f"{RDMA}/{part.name}/ports/{number}", f"port/{part.name}/{number}"
            try:
                state = tree.read_text(f"{folder}/state", 256).split()[-1:]
                rate, _ = rate_of(tree.read_text(f"{folder}/rate", 256))
            except OSError:
                continue
            told: dict[str, Attribute] = {"rdma_device": part.name, "bdf": part.bdf}
            if state == ["DOWN"]:
                text = f"{part.name} port {number}: DOWN; its class has a link of {gbps:g} Gb/s there"
                yield SourceEvent(entity, "link_down", text, "warning", attributes=told, standing=True)
            elif state == ["ACTIVE"] and rate is not None and rate < gbps * RATE_SHARE_MIN:
                text = f"{part.name} port {number} runs at {rate:g} Gb/s instead of {gbps:g}"
                told |= {"rate_gbps": rate, "expected_rate_gbps": gbps}
                yield SourceEvent(entity, "rate_degraded", text, "warning", attributes=told, standing=True)


def _nvlink_faults(text: str, wanted: int) -> Iterator[SourceEvent]:
    for uuid, links in nvlinks_of(text).items():
        active = len(links.counts) - len(links.down)
        # A tool that lists no link at all says nothing of them; inactive ones are told by the source nvlink.
        if links.headings == 1 and links.counts and active < wanted:
            said = f"GPU {uuid} has {active} active NVLinks instead of {wanted}"
            told: dict[str, Attribute] = {"found": active, "expected": wanted}
            yield SourceEvent(
                f"gpu/{uuid}", "nvlink_missing", said, "warning", attributes=told, standing=True
            )
