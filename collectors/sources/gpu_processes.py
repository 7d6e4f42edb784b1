"""Which processes hold which GPU, as the driver tells it: the one fact of a rank's GPU that needs no guess.

In: commands/gpu_processes.json of a recorded tree; ``nvidia-smi`` on the live machine. Out: ``Held``. The
driver answers under its lock, so ask rarely. Source: nvidia-smi(1), ``--query-compute-apps``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from collectors.sources import tools
from collectors.sources.gpu_identity import GpuPlace, gpus, listed
from collectors.sources.tree import Tree

RECORDED: Final = "gpu_processes.json"
PIDS_MAX: Final = 4_096
PID_MAX: Final = 2**22
TIMEOUT_S: Final = 20.0
TABLE_AGE_S: Final = 5.0
"""A table of GPUs that old still has the indices of the processes that are listed now."""
DEVICE: Final = re.compile(r"(GPU|MIG)-[0-9a-fA-F-]{2,36}|MIG-GPU-[0-9a-fA-F-]{8,36}/\d{1,3}/\d{1,3}")
"""A GPU or a MIG instance, by the names that NVML and CUDA_VISIBLE_DEVICES use."""


@dataclass(frozen=True, slots=True)
class Held:
    """The GPUs of now and who holds them.

    Attributes:
        by_pid: process -> the GPUs and MIG instances it holds.
        places: the GPUs that are there, by index.
        known: whether the driver told of processes at all; nobody holding a GPU is an answer, too.
    """

    by_pid: dict[int, tuple[str, ...]] = field(default_factory=dict)
    places: tuple[GpuPlace, ...] = ()
    known: bool = False

    @property
    def by_index(self) -> dict[int, str]:
        """NVML's index at this moment -> UUID."""
        return {place.index: place.uuid for place in self.places if place.index is not None}


def held(tree: Tree) -> Held:
    """What the driver says; empty where it says nothing."""
    if tree.is_live:
        return _asked(tree)
    places = gpus(tree)
    try:
        said = json.loads(tree.read_bytes(f"{tools.FOLDER}/{RECORDED}"))
    except (OSError, ValueError, RecursionError):
        return Held(places=places)
    by_uuid = said.get("by_uuid") if isinstance(said, dict) else None
    if not isinstance(by_uuid, dict):
        return Held(places=places)
    pairs = ((uuid, pid) for uuid, pids in by_uuid.items() if isinstance(pids, list) for pid in pids)
    return Held(_by_pid(pairs), places, known=True)


def _asked(tree: Tree) -> Held:
    try:
        places = listed(TABLE_AGE_S)
        holders = _holders(tree)
    except OSError:
        return Held()
    pairs = ((row[0], _integer(row[1])) for row in holders if len(row) == 2)
    return Held(_by_pid(pairs), places, known=True)


def _holders(tree: Tree) -> list[list[str]]:
    argv = ["nvidia-smi", "--query-compute-apps=gpu_uuid,pid", "--format=csv,noheader"]
    text = tools.output(tree, RECORDED, argv, TIMEOUT_S, 1_048_576).decode("utf-8", "replace")
    return [[cell.strip() for cell in line.split(",")] for line in text.splitlines()[:PIDS_MAX]]


def _by_pid(pairs: Iterable[tuple[Any, Any]]) -> dict[int, tuple[str, ...]]:
    found: dict[int, tuple[str, ...]] = {}
    for device, pid in pairs:
        if not isinstance(device, str) or not DEVICE.fullmatch(device):
            continue
        if isinstance(pid, bool) or not isinstance(pid, int) or not 0 < pid <= PID_MAX:
            continue
        if pid in found or len(found) < PIDS_MAX:
            found[pid] = (*found.get(pid, ()), device) if device not in found.get(pid, ()) else found[pid]
    return found


def _integer(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 9 else None
