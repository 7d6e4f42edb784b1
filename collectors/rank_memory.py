"""Which training processes the agent watched, kept over its own death.

In: the ranks of the agent. Out: after a restart, the ranks that still live (watched again at once, under
their old numbers) and an end without a status for those that died meanwhile: else nobody would ever tell
it. A pid alone is no process: it is taken together with its start time and the kernel's boot id.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from pathlib import Path

import msgspec

from collectors import processes
from collectors.wire.records import RankInventory

log = logging.getLogger(__name__)


class Remembered(msgspec.Struct, frozen=True):
    """One process that was watched."""

    inventory: RankInventory
    start_ticks: int
    """/proc/PID/stat field 22"""


class _File(msgspec.Struct, frozen=True):
    boot_id: str
    ranks: list[Remembered]


class RankMemory:
    """One file, replaced as a whole. A damaged or missing one remembers nothing."""

    def __init__(self, path: Path, boot_id: str) -> None:
        self._path = path
        self._boot_id = boot_id
        self._start_ticks: dict[int, int] = {}

    def save(self, inventories: Iterable[RankInventory]) -> None:
        """Raises ``OSError``. Not flushed: a power cut ends the ranks as well."""
        ranks = []
        for inventory in inventories:
            ticks = self._start_ticks.get(inventory.pid) or processes.start_ticks(inventory.pid)
            if ticks is not None:
                self._start_ticks[inventory.pid] = ticks
                ranks.append(Remembered(inventory, ticks))
        self._start_ticks = {found.inventory.pid: found.start_ticks for found in ranks}
        temporary = self._path.with_suffix(".new")
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(msgspec.msgpack.encode(_File(self._boot_id, ranks)))
        temporary.replace(self._path)

    def load(self) -> tuple[list[RankInventory], list[RankInventory]]:
        """(still living, gone since)."""
        try:
            content = msgspec.msgpack.decode(self._path.read_bytes(), type=_File)
        except FileNotFoundError:
            return [], []
        except (OSError, msgspec.MsgspecError) as error:
            log.warning("rank_memory_unreadable error=%s", error)
            return [], []
        same_boot = content.boot_id == self._boot_id
        living: list[RankInventory] = []
        gone: list[RankInventory] = []
        for found in content.ranks:
            alive = same_boot and processes.start_ticks(found.inventory.pid) == found.start_ticks
            (living if alive else gone).append(found.inventory)
        return living, gone
