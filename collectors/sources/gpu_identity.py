"""Which GPUs a node has: UUID, PCI address and index, from whatever of the node tells it.

In: the exporter's text, nvidia-smi's table, the process list, the driver's files in /proc, the expected
inventory. Out: ``GpuPlace``. An index is a label only: it changes when a GPU is lost and at boot; the UUID is
the name.
"""

from __future__ import annotations

import csv
import functools
import json
import re
import threading
import time
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from collectors.sources.gpu_pause import Paused
from collectors.sources.node_class import with_mounts
from collectors.sources.tools import output
from collectors.sources.tree import Tree

GPUS_MAX: Final = 128
ASKED_EVERY_S: Final = 60.0
ANSWER_S: Final = 8.0
UUID: Final = re.compile(r"GPU-[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_BDF: Final = re.compile(
    r"(?:PCI:)?(?:0{4})?(?:([0-9a-fA-F]{4}):)?([0-9a-fA-F]{2}):([0-9a-fA-F]{2})(?:\.([0-7]))?"
)
_LABEL: Final = re.compile(r'(UUID|pci_bus_id|gpu)="([^"]*)"')
_FILES: Final = {
    "dcgm": "commands/dcgm_metrics.prom",
    "smi": "commands/nvidia-smi_query-gpu.csv",
    "processes": "commands/gpu_processes.json",
    "inventory": "etc/clusterwatch/agent.toml",
}
_PROC: Final = "proc/driver/nvidia/gpus"
_PROC_KNOWN: Final[dict[str, str]] = {}
"""Path of a GPU's file of the live driver -> UUID: read once, since a driver that hangs keeps its readers."""
_NAMES: Final = frozenset(
    {"timestamp", "index", "name", "gpu_name", "uuid", "gpu_uuid", "serial", "gpu_serial"}
)
_ADDRESSES: Final = frozenset({"pci.bus_id", "gpu_bus_id", "driver_version", "count", "gpu_serial"})
"""Columns of nvidia-smi that say which GPU it is, not how it is."""


@dataclass(frozen=True, slots=True)
class GpuPlace:
    """One GPU. ``bdf`` as ``0000:12:00.0``; None = not told. ``index``: NVML's at this moment."""

    uuid: str
    bdf: str | None = None
    index: int | None = None


def normal_bdf(text: str) -> str | None:
    """A PCI address in any spelling (``0000:4e:00``, ``00000000:4E:00.0``) as ``0000:4e:00.0``."""
    match = _BDF.fullmatch(text.strip())
    if match is None:
        return None
    domain, bus, device, function = match.groups()
    return f"{domain or '0000'}:{bus}:{device}.{function or '0'}".lower()


def gpus(tree: Tree) -> tuple[GpuPlace, ...]:
    """The GPUs that are there now, by index, then UUID. Empty where nothing tells."""
    found: dict[str, GpuPlace] = {}
    for place in (*_of_processes(tree), *_of_smi(tree), *_of_dcgm(tree), *_of_proc(tree)):
        if place.uuid not in found and len(found) >= GPUS_MAX:
            break
        known = found.get(place.uuid, place)
        index = place.index if known.index is None else known.index
        found[place.uuid] = GpuPlace(place.uuid, known.bdf or place.bdf, index)
    return tuple(sorted(found.values(), key=lambda gpu: (gpu.index is None, gpu.index or 0, gpu.uuid)))


def expected_uuids(tree: Tree) -> tuple[str, ...]:
    """The node's GPUs by its inventory, in index order."""
    gpu = inventory(tree).get("gpu")
    uuids = gpu.get("uuids") if isinstance(gpu, dict) else None
    if not isinstance(uuids, list):
        return ()
    return tuple(uuid for uuid in uuids[:GPUS_MAX] if isinstance(uuid, str) and UUID.fullmatch(uuid))


def lost_uuids(tree: Tree) -> frozenset[str]:
    """GPUs of the inventory that are not listed: by the driver's table, where it lists none by its process
    list, and where that lists none by the exporter, which goes on telling of a lost GPU for a while.

    Empty where no tool lists any GPU: then it is the tool that is gone.
    """
    present = (
        _answering(tree)
        or {place.uuid for place in _of_processes(tree)}
        or {place.uuid for place in _of_dcgm(tree)}
    )
    return frozenset(expected_uuids(tree)) - present if present else frozenset()


def told_twice(tree: Tree, tool: str) -> frozenset[str]:
    """UUIDs that ``tool`` (``smi`` or ``dcgm``) tells at more than one address."""
    addresses: dict[str, set[str]] = {}
    for place in _of_smi(tree) if tool == "smi" else _of_dcgm(tree):
        if place.bdf:
            addresses.setdefault(place.uuid, set()).add(place.bdf)
    return frozenset(uuid for uuid, found in addresses.items() if len(found) > 1)


def inventory(tree: Tree) -> dict[str, Any]:
    """What the node is expected to have; no more than its class where the file cannot be read."""
    try:
        told = _parsed_inventory(tree.read_text(_FILES["inventory"], 1_048_576))
    except (OSError, ValueError, RecursionError):
        told = {}
    return with_mounts(tree, told)


@functools.lru_cache(maxsize=4)
def _parsed_inventory(text: str) -> dict[str, Any]:
    """Read at every look, and the same for months."""
    return tomllib.loads(text)


def uuid_of(tree: Tree, bdf: str) -> str | None:
    """The GPU at a PCI address in any spelling."""
    wanted = normal_bdf(bdf)
    return next((gpu.uuid for gpu in gpus(tree) if wanted is not None and gpu.bdf == wanted), None)


def _of_dcgm(tree: Tree) -> Iterator[GpuPlace]:
    try:
        text = tree.read_text(_FILES["dcgm"])
    except OSError:
        return
    seen: set[tuple[str, str]] = set()
    for line in text.splitlines():
        if line.startswith("#") or "UUID=" not in line:
            continue
        labels = dict(_LABEL.findall(line))
        uuid, address = labels.get("UUID", ""), labels.get("pci_bus_id", "")
        if (uuid, address) in seen or len(seen) > GPUS_MAX or not UUID.fullmatch(uuid):
            continue
        seen.add((uuid, address))
        yield GpuPlace(uuid, normal_bdf(address), _index(labels.get("gpu", "")))


def smi_rows(text: str) -> list[dict[str, str]]:
    """Rows of ``nvidia-smi --query-gpu=... --format=csv``, by column name without unit; no damaged ones."""
    lines = csv.reader(text.splitlines()[: GPUS_MAX + 1], skipinitialspace=True)
    try:
        rows = [[cell.strip() for cell in row] for row in lines]
    except csv.Error:
        return []
    if not rows:
        return []
    header = [name.split(" [")[0] for name in rows[0]]
    return [dict(zip(header, row, strict=True)) for row in rows[1:] if len(row) == len(header)]


def _of_smi(tree: Tree) -> Iterator[GpuPlace]:
    try:
        text = _TABLE.text(ASKED_EVERY_S) if tree.is_live else tree.read_text(_FILES["smi"])
    except OSError:
        return
    yield from _places_of(text)


def _places_of(text: str) -> Iterator[GpuPlace]:
    for row in smi_rows(text):
        if UUID.fullmatch(uuid := row.get("uuid", row.get("gpu_uuid", ""))):
            yield GpuPlace(uuid, normal_bdf(row.get("pci.bus_id", "")), _index(row.get("index", "")))


class _DriverTable:
    """The live driver's list of GPUs, asked once a while for all who want it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asked_s = float("-inf")
        self._text = ""
        self._error: OSError | None = None

    def text(self, max_age_s: float) -> str:
        """The table, asked anew where it is older than that. While the driver is released: the last one.

        Raises:
            OSError: the driver told none.
        """
        with self._lock:
            if time.monotonic() - self._asked_s >= max_age_s:
                self._ask()
            if self._error is not None:
                raise self._error
            return self._text

    def _ask(self) -> None:
        argv = ["nvidia-smi", "--query-gpu=index,uuid,pci.bus_id", "--format=csv"]
        try:
            said = output(Tree(), "nvidia-smi_query-gpu.csv", argv, ANSWER_S)
            self._text, self._error = said.decode("utf-8", "replace"), None
        except Paused as paused:
            self._error = None if self._text else paused
            return
        except OSError as error:
            self._error = error
        self._asked_s = time.monotonic()


_TABLE: Final = _DriverTable()


def listed(max_age_s: float) -> tuple[GpuPlace, ...]:
    """The live driver's GPUs. Raises ``OSError`` where it tells none."""
    return tuple(_places_of(_TABLE.text(max_age_s)))


def _answering(tree: Tree) -> set[str]:
    """UUIDs of nvidia-smi's table, of damaged rows too, but not where the driver has nothing but errors."""
    try:
        text = tree.read_text(_FILES["smi"])
    except OSError:
        return set()
    head, *lines = text.splitlines()[: GPUS_MAX + 1] or [""]
    columns = [name.strip().split(" [")[0] for name in head.split(",")]
    found = set()
    for line in lines:
        cells = dict(zip(columns, line.lower().split(","), strict=False))
        wrong = ["unknown error" in cell or "gpu is lost" in cell for cell in cells.values()]
        told = [name not in _NAMES | _ADDRESSES and not bad for name, bad in zip(cells, wrong, strict=True)]
        if (match := UUID.search(line)) and (any(told) or not any(wrong)):
            found.add(match[0])
    return found


def _of_proc(tree: Tree) -> Iterator[GpuPlace]:
    """By the driver's own files; a GPU that nobody has used yet has no UUID there."""
    for name in tree.list(_PROC)[:GPUS_MAX]:
        path, bdf = f"{_PROC}/{name}/information", normal_bdf(name)
        uuid = _PROC_KNOWN.get(path) if tree.is_live else None
        if bdf is None:
            continue
        if uuid is None:
            try:
                match = UUID.search(tree.read_text(path, 4_096))
            except OSError:
                continue
            if match is None:
                continue
            uuid = match[0]
            if tree.is_live:
                _PROC_KNOWN[path] = uuid
        yield GpuPlace(uuid, bdf)


def _of_processes(tree: Tree) -> Iterator[GpuPlace]:
    try:
        said = json.loads(tree.read_bytes(_FILES["processes"]))
    except (OSError, ValueError, RecursionError):
        return
    order = said.get("nvml_index") if isinstance(said, dict) else None
    for index, uuid in (order if isinstance(order, dict) else {}).items():
        if isinstance(uuid, str) and UUID.fullmatch(uuid):
            yield GpuPlace(uuid, None, _index(index))


def _index(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 3 else None
