"""Which processes hold GPU memory, as the source that asks the driver was told, for those that must not ask.

In: lists of processes of the NVML worker; commands/gpu_processes.json of a recorded tree. Out: ``Holders``.
The driver lists processes under its lock, so there is one who asks and others who look here.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from collectors.sources.gpu_identity import GPUS_MAX, UUID
from collectors.sources.gpu_processes import PID_MAX, PIDS_MAX, RECORDED
from collectors.sources.tools import FOLDER
from collectors.sources.tree import Tree

BYTES_MAX: Final = 2**50
"""More is no memory of a GPU; a driver that cannot tell says all ones."""
STALE_S: Final = 120.0
"""Four times the time between two lists of the worker; an older one says nothing of now."""


@dataclass(frozen=True, slots=True)
class Held:
    """One process on one GPU. ``used_bytes`` None: not told, as with MIG and without root."""

    uuid: str
    pid: int
    used_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Holders:
    """All of them at one moment of CLOCK_MONOTONIC."""

    at_s: float
    held: tuple[Held, ...] = ()


@dataclass(slots=True)
class Board:
    """The newest list. Written by one thread, read by others: an answer is replaced, never changed."""

    _newest: Holders | None = field(default=None)

    def tell(self, answer: Mapping[str, Any]) -> None:
        """Keeps an answer of the worker; one without any list is none."""
        if isinstance(answer.get("by_uuid"), dict):
            self._newest = Holders(time.monotonic(), parsed(answer))

    def newest(self) -> Holders | None:
        """None where nobody asks, or where the driver has stopped to answer."""
        newest = self._newest
        return newest if newest is not None and time.monotonic() - newest.at_s < STALE_S else None


BOARD: Final = Board()


def holders(tree: Tree, at_s: float) -> Holders | None:
    """Who holds GPU memory at ``at_s``; None: not told."""
    if tree.is_live:
        return BOARD.newest()
    try:
        said = json.loads(tree.read_bytes(f"{FOLDER}/{RECORDED}"))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(said, dict) or not isinstance(said.get("by_uuid"), dict):
        return None
    return Holders(at_s, parsed(said))


def parsed(said: Mapping[str, Any]) -> tuple[Held, ...]:
    """``by_uuid``: GPU -> processes, and beside it ``used_bytes``: GPU -> bytes in the same order."""
    found: dict[tuple[str, int], Held] = {}
    used = said.get("used_bytes")
    sizes = used if isinstance(used, dict) else {}
    for uuid, pids in list(said["by_uuid"].items())[:GPUS_MAX]:
        if not isinstance(uuid, str) or not UUID.fullmatch(uuid) or not isinstance(pids, list):
            continue
        own = sizes.get(uuid)
        own = own if isinstance(own, list) and len(own) == len(pids) else [None] * len(pids)
        for pid, size in zip(pids[:PIDS_MAX], own, strict=False):
            if _is_count(pid, PID_MAX) and pid > 0:
                found[uuid, pid] = Held(uuid, pid, size if _is_count(size, BYTES_MAX) else None)
    return tuple(found.values())


def _is_count(value: Any, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most
