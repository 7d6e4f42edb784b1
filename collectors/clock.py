"""The two clocks the agent reads, behind one protocol so that tests decide what time it is.

Wall time (ns UTC) stamps what leaves the node; monotonic time (s) measures intervals, since wall time steps.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What the agent needs to know about time."""

    def now_ns(self) -> int:
        """Wall time, ns UTC."""
        ...

    def monotonic_s(self) -> float:
        """Seconds on a clock that never steps; only differences mean anything."""
        ...


class SystemClock:
    """The machine's own clocks."""

    def now_ns(self) -> int:
        return time.time_ns()

    def monotonic_s(self) -> float:
        return time.monotonic()
