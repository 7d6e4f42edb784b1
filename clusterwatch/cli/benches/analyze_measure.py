"""One tool in a process of its own, watched: wall time, CPU time and memory of it and all its children.

In: a command. Out: ``Figures``. Memory is the largest sum, over the process and its descendants, of
proportional set sizes (PSS, proc(5) ``smaps_rollup``), sampled; so pages that forked copies share count once.
"""

from __future__ import annotations

import resource
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

_SAMPLE_S: Final = 0.05
_SHARE_MAX: Final = 0.04
"""Reading a process's page tables holds it up: of its time, sampling takes no more than this."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What one run cost."""

    wall_s: float
    cpu_s: float
    peak_bytes: int
    exit_code: int
    output: str
    errors: str

    def to_dict(self, entries: int) -> dict[str, float | int]:
        """For the line of figures. ``entries``: how many the run had to go through."""
        return {
            "wall_s": round(self.wall_s, 3),
            "cpu_s": round(self.cpu_s, 3),
            "cpu_us_per_entry": round(self.cpu_s * 1e6 / entries, 3),
            "peak_bytes": self.peak_bytes,
            "exit_code": self.exit_code,
        }


def measured(command: list[str], timeout_s: float, environment: dict[str, str] | None = None) -> Figures:
    """Runs a command to its end.

    Raises:
        subprocess.TimeoutExpired: it took longer than ``timeout_s``; it is killed.
    """
    before, started = _children_cpu_s(), time.perf_counter()
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    with MemoryWatch(process.pid) as watch:
        try:
            output, errors = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise
        wall_s = time.perf_counter() - started
    return Figures(wall_s, _children_cpu_s() - before, watch.peak_bytes, process.returncode, output, errors)


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class MemoryWatch:
    """Samples the memory of a process and its descendants in a thread while the ``with`` block runs."""

    def __init__(self, pid: int) -> None:
        self.peak_bytes = 0
        self._pid = pid
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="memory-watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        pause_s = 0.0
        while not self._over.wait(pause_s):
            started = time.perf_counter()
            self.peak_bytes = max(self.peak_bytes, sum(map(pss_bytes, family(self._pid))))
            pause_s = max(_SAMPLE_S, (time.perf_counter() - started) / _SHARE_MAX)


def family(pid: int) -> list[int]:
    """A process and its living descendants."""
    found, asked = [pid], [pid]
    while asked:
        for listing in Path(f"/proc/{asked.pop()}/task").glob("*/children"):
            try:
                children = [int(word) for word in listing.read_text().split()]
            except OSError:  # it ended while we looked
                continue
            found += children
            asked += children
    return found


def pss_bytes(pid: int) -> int:
    """Proportional set size; 0 for a process that is gone."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)
