"""CPU time of other processes as the kernel counts it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_UTIME: Final = 11
"""Index of utime in /proc/PID/stat behind the name; stime, cutime and cstime follow. Source: proc(5)."""


def cpu_s(pid: int) -> float:
    """User and system time of a process and of its ended children, seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[_UTIME : _UTIME + 4])) / _TICKS_PER_S


def tree_cpu_s(pid: int) -> float:
    """The same of a process and its living children (PostgreSQL's backends)."""
    total = cpu_s(pid)
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            try:
                total += cpu_s(int(child))
            except (FileNotFoundError, ProcessLookupError):
                continue  # it ended before or while it was read; its time is with its parent's
    return total


def memory_mb(pid: int) -> float:
    """Resident memory of a process, MiB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0
