"""The agent's own budget: it measures itself and gives up its own work before it costs the job anything.

In: the process's processor time (children included) and memory. Out: a factor by which sources are slowed,
and a sentence at each change. Hook listening, exits and captures are never slowed: they are what the agent
is for. Source of the bounds: DESIGN section 9.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Final

from collectors.clock import Clock

CPU_MAX_RATIO: Final = 0.005
PSS_MAX_BYTES: Final = 60 * 1024 * 1024
WINDOW_S: Final = 60.0
WARM_UP_S: Final = 30.0
"""Imports and the first connection are not the cost of running."""
SLOWDOWN_MAX: Final = 16.0
CALM_RATIO: Final = 0.6
"""Below this share of the budget the agent dares to be faster again."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The end of a window. ``sentence`` is empty when nothing changed."""

    slowdown: float
    sentence: str = ""


class Guard:
    """Call ``tick`` about once a second."""

    def __init__(
        self, clock: Clock, cpu_max_ratio: float = CPU_MAX_RATIO, pss_max_bytes: int = PSS_MAX_BYTES
    ) -> None:
        self._clock = clock
        self._cpu_max_ratio = cpu_max_ratio
        self._pss_max_bytes = pss_max_bytes
        self._window_from_s = clock.monotonic_s() + WARM_UP_S
        self._cpu_from_s: float | None = None
        self._slowdown = 1.0
        self.cpu_ratio: float | None = None
        """share of one core over the last whole window"""
        self.pss_bytes: int | None = None
        self.excused_s = 0.0
        """processor time of finished children that is not the agent's: of those that poll devices"""

    def tick(self) -> Verdict | None:
        """None inside a window."""
        now_s = self._clock.monotonic_s()
        if now_s < self._window_from_s:
            return None
        if self._cpu_from_s is None:
            self._cpu_from_s = cpu_seconds() - self.excused_s
            self.pss_bytes = own_pss_bytes()
            return None
        if now_s - self._window_from_s < WINDOW_S:
            return None
        spent_s = cpu_seconds() - self.excused_s
        self.cpu_ratio = (spent_s - self._cpu_from_s) / (now_s - self._window_from_s)
        self.pss_bytes = own_pss_bytes()
        self._cpu_from_s, self._window_from_s = spent_s, now_s
        return self._judge(self.cpu_ratio, self.pss_bytes or 0)

    def _judge(self, cpu_ratio: float, pss_bytes: int) -> Verdict:
        worst = max(cpu_ratio / self._cpu_max_ratio, pss_bytes / self._pss_max_bytes)
        before = self._slowdown
        if worst > 1.0:
            self._slowdown = min(before * 2, SLOWDOWN_MAX)
        elif worst < CALM_RATIO:
            self._slowdown = max(before / 2, 1.0)
        if self._slowdown == before:
            return Verdict(before)
        return Verdict(
            self._slowdown,
            f"the agent used {cpu_ratio:.2%} of a core and {pss_bytes / 2**20:.0f} MiB: "
            f"its sources run at 1/{self._slowdown:g} of their rate",
        )


def cpu_seconds() -> float:
    """Processor time of this process and of its finished children."""
    times = os.times()
    return time.process_time() + times.children_user + times.children_system


def own_pss_bytes() -> int | None:
    """Proportional set size of this process; None where the kernel does not tell."""
    return pss_bytes(os.getpid())


def pss_bytes(pid: int) -> int | None:
    """Proportional set size of a process. Cost: about 1 ms, the kernel walks its pages."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
            for line in file:
                if line.startswith("Pss:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        return None
    return None
