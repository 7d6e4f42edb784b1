"""How far reading is, for whoever shows it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Progress:
    """How far reading is. A packed archive counts when it is done."""

    files_done: int
    files: int
    bytes_done: int
    bytes: int


Show = Callable[[Progress], None]
