"""Processes by /proc: who is alive, since when, in which group. A bare process id is never trusted.

A process is identified by its id and its start time (clock ticks since boot, proc(5) field 22): an id is used
again by the kernel, the pair is not.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """What the kernel says about one process."""

    pid: int
    name: str
    state: str
    parent_pid: int
    group_id: int
    start_ticks: int

    @property
    def is_running(self) -> bool:
        """Whether it can still run (not a zombie, not dead)."""
        return self.state not in "ZXx"


def read_process(pid: int) -> ProcessInfo | None:
    """The process with this id, or None."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The command name may hold blanks and parentheses; the fields start after the last one.
    head, _, rest = text.rpartition(")")
    fields = rest.split()
    return ProcessInfo(
        pid, head.partition("(")[2], fields[0], int(fields[1]), int(fields[2]), int(fields[19])
    )


def is_same_process(pid: int, start_ticks: int) -> bool:
    """Whether the process of this id and start time still runs."""
    found = read_process(pid)
    return found is not None and found.start_ticks == start_ticks and found.is_running


def all_processes() -> list[ProcessInfo]:
    """Every process that can be seen."""
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [found for pid in pids if (found := read_process(pid)) is not None]


def process_cwd(pid: int) -> Path | None:
    """The working folder of a process, None where it is gone or not ours to see."""
    try:
        return Path(f"/proc/{pid}/cwd").readlink()
    except OSError:
        return None


def process_variable(pid: int, name: str) -> str | None:
    """A variable of the environment a process was started with, None where it is unset or not ours to see."""
    try:
        data = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return None
    prefix = name.encode() + b"="
    for entry in data.split(b"\0"):
        if entry.startswith(prefix):
            return entry[len(prefix) :].decode("utf-8", "replace")
    return None


def send_signal(pid: int, number: int) -> bool:
    """Sends a signal to one process; False when it is gone."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def signal_group(group_id: int, number: int) -> None:
    """Sends a signal to a whole process group; a group that is gone is no fault."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group_id, number)
