"""A pause in which the agent lets go of the GPU driver: any process that has it open blocks a GPU's reset.

In: ``gpu-pause.json`` of the agent's folder, written by ``clusterwatch-agent pause-gpu`` or by the agent
itself when the driver asks for a reset. Out: whether a pause stands, and ``gpu-released.json``, which says
what of the agent still has the driver. A pause ends by itself, after ``LONGEST_S`` at most, and with the boot
it began in. Times are of CLOCK_BOOTTIME, which no setting of the clock changes.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import math
import os
import re
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

log = logging.getLogger(__name__)

PAUSED: Final = "paused"
"""Why a value of the driver is unknown while a pause stands."""
LONGEST_S: Final = 3_600.0
SHORTEST_S: Final = 10.0
USUAL_S: Final = 600.0
RESETS: Final = frozenset({"GPU_RESET", "DRAIN_AND_RESET", "BUS_RESET"})
"""Recovery actions that a process with the driver open would block."""
OPERATOR: Final = "operator"
RECOVERY_ACTION: Final = "recovery_action"
_FILE: Final = "gpu-pause.json"
_ANSWER: Final = "gpu-released.json"
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_DURATION: Final = re.compile(r"(\d{1,6})(s|m|h)?")
_UNIT_S: Final = {"": 1, "s": 1, "m": 60, "h": 3_600}
_FILE_MAX_BYTES: Final = 4_096
_STOP_AFTER_S: Final = 10.0
"""Holders that were asked to end so long ago are killed: they would block the reset for the whole pause."""


class Paused(OSError):
    """The driver is not to be asked now."""

    def __init__(self) -> None:
        super().__init__(errno.EBUSY, "the driver is released for a reset")


@dataclass(frozen=True, slots=True)
class Pause:
    """One pause. Times in s of CLOCK_BOOTTIME."""

    boot_id: str
    since_s: float
    until_s: float
    by: str
    """who asked: ``operator`` or ``recovery_action``"""


def duration_s(text: str) -> float:
    """Seconds of ``600``, ``90s``, ``10m`` or ``1h``. Raises ``ValueError`` with words for people."""
    match = _DURATION.fullmatch(text.strip()) if text.isascii() else None
    seconds = float(match[1]) * _UNIT_S[match[2] or ""] if match else 0.0
    if not SHORTEST_S <= seconds <= LONGEST_S:
        raise ValueError(
            f"{text!r} is no time between {SHORTEST_S:g}s and {LONGEST_S / 3600:g}h, such as 10m"
        )
    return seconds


def begin(folder: Path, seconds: float, by: str = OPERATOR) -> Pause:
    """Begins a pause, or puts a new one in the place of that which stands. Raises ``OSError``."""
    now_s = _now_s()
    pause = Pause(_boot_id(), now_s, now_s + min(max(seconds, SHORTEST_S), LONGEST_S), by)
    _write(folder / _FILE, asdict(pause))
    return pause


def end(folder: Path) -> bool:
    """Ends the pause; False where none stood. Raises ``OSError``."""
    stood = standing(folder) is not None
    (folder / _FILE).unlink(missing_ok=True)
    (folder / _ANSWER).unlink(missing_ok=True)
    return stood


def standing(folder: Path) -> Pause | None:
    """The pause that stands now; None where there is none or its file says nothing sane."""
    pause = _pause_of(_read(folder / _FILE))
    if pause is None or pause.boot_id != _boot_id():
        return None
    return pause if pause.since_s - 1.0 <= _now_s() < min(pause.until_s, pause.since_s + LONGEST_S) else None


def left_s(pause: Pause) -> float:
    """Seconds until it ends by itself."""
    return max(0.0, min(pause.until_s, pause.since_s + LONGEST_S) - _now_s())


def held_by(folder: Path, pause: Pause) -> list[int] | None:
    """The agent's processes that still have the driver in this pause; None until the agent has said."""
    said = _read(folder / _ANSWER)
    pids = said.get("pids")
    if said.get("since_s") != pause.since_s or not isinstance(pids, list):
        return None
    return [pid for pid in pids if isinstance(pid, int)]


class PauseWatch:
    """The agent's view of the pause. ``tick`` belongs to its loop, ``is_on`` to the threads of its sources.

    Whoever has processes with the driver open says so with ``watch``.
    """

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._holders: list[Callable[[], list[int]]] = []
        self._releases: list[Callable[[bool], None]] = []
        self._pause: Pause | None = None
        self._said: tuple[float, list[int]] | None = None

    def keep_in(self, folder: Path) -> None:
        """``folder`` is the agent's own; without one there is never a pause."""
        self._folder = folder
        self._pause = standing(folder)

    def watch(self, holders: Callable[[], list[int]], release: Callable[[bool], None] | None = None) -> None:
        """``holders`` gives the processes that have the driver; ``release(gently)`` has them end."""
        self._holders.append(holders)
        if release is not None:
            self._releases.append(release)

    @property
    def pause(self) -> Pause | None:
        """The pause that stands. One that ran out is over at once, not at the next tick."""
        pause = self._pause
        return pause if pause is not None and left_s(pause) > 0 else None

    @property
    def is_on(self) -> bool:
        return self.pause is not None

    def tick(self) -> None:
        """Sees whether a pause began or ended, and has what holds the driver let go of it."""
        if self._folder is None:
            return
        before, self._pause = self._pause, self._read()
        pause = self._pause
        if pause is None:
            if before is not None or self._said is not None:
                log.info("gpu_resumed")
                with contextlib.suppress(OSError):
                    end(self._folder)
            self._said = None
            return
        if before is None or before.since_s != pause.since_s:
            log.info("gpu_paused by=%s for_s=%.0f", pause.by, left_s(pause))
        held = [pid for holders in self._holders for pid in holders()]
        if held:
            gently = _now_s() - pause.since_s < _STOP_AFTER_S
            for release in self._releases:
                release(gently)
        self._answer(pause, held)

    def ask(self, seconds: float) -> bool:
        """A pause by the agent itself, unless one stands already."""
        if self._folder is None or self.is_on:
            return False
        self._pause = begin(self._folder, seconds, RECOVERY_ACTION)
        log.info("gpu_paused by=%s for_s=%.0f", RECOVERY_ACTION, seconds)
        return True

    def _read(self) -> Pause | None:
        assert self._folder is not None
        return standing(self._folder) if (self._folder / _FILE).exists() else None

    def _answer(self, pause: Pause, held: list[int]) -> None:
        if self._folder is not None and self._said != (pause.since_s, held):
            _write(self._folder / _ANSWER, {"since_s": pause.since_s, "pids": held})
            self._said = pause.since_s, held


WATCH: Final = PauseWatch()
"""Of this process: sources, tools and the agent share it."""


def _now_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _boot_id() -> str:
    try:
        return _BOOT.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return "unknown"


def _pause_of(said: dict[str, Any]) -> Pause | None:
    boot_id, by = said.get("boot_id"), said.get("by")
    since_s, until_s = said.get("since_s"), said.get("until_s")
    if not isinstance(since_s, int | float) or not isinstance(until_s, int | float):
        return None
    if not (math.isfinite(since_s) and math.isfinite(until_s)) or not isinstance(boot_id, str):
        return None
    return Pause(boot_id, since_s, until_s, by if by == RECOVERY_ACTION else OPERATOR)


def _read(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            said = json.loads(file.read(_FILE_MAX_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}


def _write(path: Path, said: dict[str, Any]) -> None:
    """Whole or not at all. The folder is the agent's own, so the file may be read by whoever reads that."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(said) + "\n", encoding="utf-8")
    temporary.chmod(0o644)
    temporary.replace(path)
