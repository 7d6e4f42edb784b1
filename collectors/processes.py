"""What /proc says of one process: state letter, where it waits in the kernel, its parent, how it ended.

Every function gives None (or an empty text) for a process that is gone or may not be looked at.
Source: proc(5), fields of /proc/PID/stat.
"""

from __future__ import annotations

import os
import pwd
from pathlib import Path
from typing import Final

STATE_WORDS: Final = {
    "R": "running",
    "S": "running",
    "I": "running",
    "D": "blocked",
    "T": "stopped",
    "t": "stopped",
    "Z": "dead",
    "X": "dead",
}
"""State letter -> the word shown. Sleeping is normal for a waiting process, so it counts as running."""

_START_TIME_FIELD: Final = 22
_EXIT_CODE_FIELD: Final = 52
_READ_MAX_BYTES: Final = 16_384


def state(pid: int) -> str | None:
    """The state letter (R, S, D, T, Z, ...)."""
    fields = _stat_fields(pid)
    return fields[0] if fields else None


def parent(pid: int) -> int | None:
    fields = _stat_fields(pid)
    return int(fields[1]) if len(fields) > 1 else None


def start_ticks(pid: int) -> int | None:
    """When the process started, in clock ticks after boot; None for one that is gone or has ended."""
    fields = _stat_fields(pid)
    if len(fields) <= _START_TIME_FIELD - 3 or fields[0] in ("Z", "X"):
        return None
    return int(fields[_START_TIME_FIELD - 3])


def zombie_wait_status(pid: int) -> int | None:
    """The wait status of a process that has ended and was not yet collected by its parent.

    0 is not told apart from "may not be read" by the kernel, hence None unless it is a zombie we may read:
    the field is 0 for everybody who could not trace the process.
    """
    fields = _stat_fields(pid)
    if not fields or fields[0] != "Z" or len(fields) < _EXIT_CODE_FIELD - 2:
        return None
    status = int(fields[_EXIT_CODE_FIELD - 3])
    return status or None


def wchan(pid: int) -> str:
    """The kernel function the main thread sleeps in, empty when it runs or the kernel does not tell."""
    text = _read(pid, "wchan")
    return "" if text in ("", "0") else text[:255]


def kernel_stack(pid: int) -> list[str]:
    """Kernel frames of the main thread, outermost first; empty without the right to see them (root)."""
    frames = []
    for line in _read(pid, "stack").splitlines():
        frames.append(line.rpartition("] ")[2].strip()[:255])
    return frames[::-1]


def command(pid: int) -> str:
    return _read(pid, "comm").strip()


def _stat_fields(pid: int) -> list[str]:
    """/proc/PID/stat from the third field (state) on: the second, the name, may hold blanks and brackets."""
    return _read(pid, "stat").rpartition(") ")[2].split()


def _read(pid: int, name: str) -> str:
    try:
        with Path(f"/proc/{pid}/{name}").open("rb") as file:
            return file.read(_READ_MAX_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""


def user_name() -> str:
    """The name of the user this process runs as, its number where it has none."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())
