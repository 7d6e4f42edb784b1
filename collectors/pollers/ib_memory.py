"""What a fabric's poller knows of its switches, kept over its own end: switches, and ports that had a link.

In: switches by GUID. Out: one file in the folder of the poller, replaced as a whole. What it says is not
trusted: a file that is damaged, too long or of another fabric remembers nothing, a switch of a wrong form is
left out, and one that was not seen for a day is forgotten.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from collectors.pollers.ib_topology import PORT_MAX, SWITCHES_MAX

FORGET_S: Final = 86_400.0
FILE_MAX_BYTES: Final = 4 * 1024 * 1024
"""``SWITCHES_MAX`` switches with names of a usual length and 254 ports have 1.5 MB."""
NAME_MAX_CHARS: Final = 255
_GUID: Final = re.compile(r"[0-9a-f]{16}")
_PORTS: Final = re.compile(r"[0-9a-f]{1,64}")


@dataclass(frozen=True, slots=True)
class Remembered:
    """One switch. ``seen_s``: seconds since 1970; ``ports``: those that had a link, a bit for each."""

    guid: str
    name: str
    seen_s: float
    ports: int


class FabricMemory:
    """One file."""

    def __init__(self, path: Path, fabric: str) -> None:
        self._path = path
        self._fabric = fabric

    def load(self, now_s: float) -> list[Remembered]:
        """Switches of this fabric that were there within a day before ``now_s``."""
        try:
            with self._path.open("rb") as file:
                data = file.read(FILE_MAX_BYTES + 1)
            kept = json.loads(data) if len(data) <= FILE_MAX_BYTES else None
        except (OSError, ValueError, RecursionError):
            return []
        if not isinstance(kept, dict) or kept.get("fabric") != self._fabric:
            return []
        rows = kept.get("switches")
        found = map(_switch, rows[:SWITCHES_MAX]) if isinstance(rows, list) else ()
        # One from the future was written before the clock was set back.
        return [one for one in found if one is not None and 0 <= now_s - one.seen_s <= FORGET_S]

    def save(self, switches: Iterable[Remembered]) -> None:
        """A full disk costs the memory only."""
        rows = [(one.guid, one.name, one.seen_s, f"{one.ports:x}") for one in switches]
        aside = self._path.with_suffix(".new")
        with contextlib.suppress(OSError):
            aside.write_text(
                json.dumps({"fabric": self._fabric, "switches": rows[:SWITCHES_MAX]}), encoding="ascii"
            )
            aside.replace(self._path)


def _switch(row: Any) -> Remembered | None:
    if not isinstance(row, list) or len(row) != 4:
        return None
    guid, name, seen_s, ports = row
    if not (isinstance(guid, str) and _GUID.fullmatch(guid)):
        return None
    if not (isinstance(name, str) and 0 < len(name) <= NAME_MAX_CHARS and name.isprintable()):
        return None
    if isinstance(seen_s, bool) or not isinstance(seen_s, int | float):
        return None
    if not (isinstance(ports, str) and _PORTS.fullmatch(ports)):
        return None
    return Remembered(guid, name, float(seen_s), int(ports, 16) & (1 << (PORT_MAX + 1)) - 1)
