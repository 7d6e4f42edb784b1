"""Which RDMA device is nearest to each GPU of a node.

In: ``nvidia-smi topo -m`` (commands/nvidia-smi_topo_-m.txt); for GPUs of which it says nothing, the PCI paths
of sysfs. Out: device by GPU. What NCCL chose may differ: it may go through another GPU, or by its own file.
Source: nvidia-smi(1), "Topology"; Documentation/PCI of Linux.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from collectors.sources import tools
from collectors.sources.gpu_identity import GpuPlace, expected_uuids, normal_bdf
from collectors.sources.pci_places import device_bdf
from collectors.sources.tree import Tree

RECORDED: Final = "nvidia-smi_topo_-m.txt"
RDMA: Final = "sys/class/infiniband"
TIMEOUT_S: Final = 20.0
DEVICES_MAX: Final = 256
LOCAL: Final = ("PIX", "PXB", "PHB")
"""Below the same host bridge, nearest first. NODE and SYS cross from one host bridge to another."""

_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")
_GPU: Final = re.compile(r"GPU(\d{1,3})")
_NIC: Final = re.compile(r"NIC\d{1,3}")
_DEVICE: Final = re.compile(r"[a-z][A-Za-z0-9_.-]{1,63}")
"""Older tools head the columns with the devices' own names, such as ``mlx5_0``."""
_HEADS: Final = re.compile(r"GPU\d{1,3}\b|NIC\d{1,3}\b|[a-z][a-z0-9]*_[a-z0-9_]*\d\b")
_LEGEND: Final = re.compile(r"(NIC\d{1,3})\s*:\s*(\S{1,64})")
_CELL: Final = re.compile(r"X|NV\d{1,3}|PIX|PXB|PHB|NODE|SYS|SOC|PSB|N/A")
_HOST_BRIDGE: Final = re.compile(r"pci[0-9a-f]{4}:[0-9a-f]{2}")


def nearest_rdma(tree: Tree, places: Iterable[GpuPlace]) -> dict[str, str | None]:
    """UUID of a GPU -> the RDMA device nearest to it; None where none is below the same host bridge.

    A device that the table has and the kernel no longer has is not there. A table of more GPUs than are there
    was made before one was lost: its rows are the slots of the inventory.
    """
    table, places = _table(tree), list(places)
    expected = expected_uuids(tree)
    if len(places) < len(table) == len(expected):
        addresses = {gpu.uuid: gpu.bdf for gpu in places}
        places = [GpuPlace(uuid, addresses.get(uuid), slot) for slot, uuid in enumerate(expected)]
    present = [name for name in tree.list(RDMA)[:DEVICES_MAX] if _DEVICE.fullmatch(name)]
    found: dict[str, str | None] = {}
    for gpu in places:
        row = table.get(gpu.index) if gpu.index is not None else None
        if row:
            known = {name: level for name, level in row.items() if name in present or not present}
            found[gpu.uuid] = nearest(known)
        else:
            found[gpu.uuid] = _nearest_by_path(tree, gpu.bdf, present)
    return found


def nearest(levels: dict[str, str]) -> str | None:
    """The first device at the nearest local level."""
    near = [(LOCAL.index(level), name) for name, level in levels.items() if level in LOCAL]
    return min(near, key=lambda one: one[0])[1] if near else None


def parse(text: str) -> dict[int, dict[str, str]]:
    """GPU index -> device -> level (PIX, PXB, PHB, NODE, SYS).

    Columns that the legend does not name are left out. Empty without a table.
    """
    lines = _COLOUR.sub("", text).splitlines()[: 4 * DEVICES_MAX]
    legend = {nic: name for nic, name in _LEGEND.findall(text) if _DEVICE.fullmatch(name)}
    heads: list[str] = []
    rows: dict[int, dict[str, str]] = {}
    for line in lines:
        if not heads:
            heads = _HEADS.findall(line) if line.lstrip().startswith("GPU0") else []
            continue
        words = line.split()
        if not words or not (gpu := _GPU.fullmatch(words[0])):
            continue
        cells = _cells(line, words, len(heads))
        rows[int(gpu[1])] = {
            name: level
            for head, level in zip(heads, cells, strict=False)
            if not _GPU.fullmatch(head) and (name := legend.get(head, head)) and not _NIC.fullmatch(name)
        }
    return rows


def _cells(line: str, words: list[str], columns: int) -> list[str]:
    """The levels of a row; between tabs where there are some, for a cell may be empty."""
    if "\t" in line:
        cells = [cell.strip() for cell in line.strip().split("\t")[1:]]
        if len(cells) >= columns and all(not cell or _CELL.fullmatch(cell) for cell in cells[:columns]):
            return cells[:columns]
    cells = words[1 : columns + 1]
    return cells if all(_CELL.fullmatch(cell) for cell in cells) else []


def _table(tree: Tree) -> dict[int, dict[str, str]]:
    try:
        said = tools.output(tree, RECORDED, ["nvidia-smi", "topo", "-m"], TIMEOUT_S, 1_048_576)
    except OSError:
        return {}
    return parse(said.decode("utf-8", "replace"))


# --- by sysfs ----------------------------------------------------------------------------------------------


def _nearest_by_path(tree: Tree, bdf: str | None, devices: list[str]) -> str | None:
    path = bridges(_target(tree, bdf)) if bdf else []
    if not path:
        return None
    levels = {}
    for device in devices:
        other = device_bdf(tree, f"{RDMA}/{device}")
        levels[device] = level(path, bridges(_target(tree, other))) if other else "SYS"
    return nearest(levels)


def bridges(target: str) -> list[str]:
    """The way from the host bridge down to a device, ``[pci0000:00, 0000:00:01.0, ...]``; empty: not told."""
    parts = target.strip().split("/")
    start = next((at for at, part in enumerate(parts) if _HOST_BRIDGE.fullmatch(part)), None)
    return [] if start is None else [parts[start], *(part for part in parts[start + 1 :] if normal_bdf(part))]


def level(one: list[str], other: list[str]) -> str:
    """How far two devices are apart, by the bridges above each.

    PIX: at most a single switch between them, so that each is right below one of its ports.
    """
    shared = 0
    for mine, theirs in zip(one, other, strict=False):
        if mine != theirs:
            break
        shared += 1
    if shared == 0:
        return "SYS"
    if shared == 1:
        return "PHB"
    # Below what both share: the switch's own port, and the device itself.
    return "PIX" if max(len(one), len(other)) - shared <= 2 else "PXB"


def _target(tree: Tree, bdf: str) -> str:
    """Where the entry of a PCI device points to; in a copied tree it may be a file with the link's text."""
    name = f"sys/bus/pci/devices/{bdf}"
    try:
        return str((tree.root / name).readlink())
    except OSError:
        pass
    try:
        return tree.read_text(name, 4_096)
    except OSError:
        return ""
