"""What the process is doing, in the words of the wire's PHASES.

In: ``watch`` and the step counter. Out: phase, since when, and the change as a protocol frame.
Worked out once a second by the hook's thread: a visit to the data loader shows only when it is long enough
to matter, and a phase ends with what it was made of (evaluation: with ``train()`` or an optimizer step).
"""

from __future__ import annotations

import time
from typing import Any

from .steps import StepCounter
from .watch import Watch, now_ns, utc_of

LONG_NS = 500_000_000
"""Shorter visits to the loader, to evaluation or to the compiler stay part of ``train``."""
STARTUP_MAX_NS = 1_800_000_000_000
"""Past half an hour without a counted step the hook does not know what the job does."""


class Phases:
    """The current phase and when it began."""

    def __init__(self, watch: Watch, steps: StepCounter | None, started_ns: int) -> None:
        """Args: ``steps`` is None where nothing counts steps; ``started_ns`` UTC start of the process."""
        self._watch = watch
        self._steps = steps
        self._born_ns = now_ns()
        self.phase = "startup" if steps is not None else "unknown"
        self.since_ns = started_ns

    def update(self) -> dict[str, Any] | None:
        """Looks again. Returns the ``phase`` frame of a change, else None."""
        phase, since = self._current(now_ns())
        if phase == self.phase:
            return None
        began_ns = utc_of(since) if since is not None else time.time_ns()
        began_ns = max(began_ns, self.since_ns)
        frame = {
            "k": "phase",
            "t_ns": began_ns,
            "phase": phase,
            "before": self.phase,
            "before_s": (began_ns - self.since_ns) / 1e9,
            "detail": "",
        }
        self.phase, self.since_ns = phase, began_ns
        return frame

    def _current(self, now: int) -> tuple[str, int | None]:
        """Phase and the ``perf_counter_ns`` moment it began at, where that is known."""
        watch = self._watch
        spans = (
            ("teardown", watch.torn_down, 0),
            ("checkpoint", watch.checkpoint.since_ns, 0),
            ("data_loading", watch.loader.since_ns, LONG_NS),
            ("compile", watch.compiling.since_ns, LONG_NS),
            ("evaluation", watch.evaluating, LONG_NS),
        )
        for phase, since, at_least_ns in spans:
            if since is not None and now - since >= at_least_ns:
                return phase, since
        if self._steps is None:
            return "unknown", None
        if self._steps.step == 0:
            return ("startup" if now - self._born_ns < STARTUP_MAX_NS else "unknown"), None
        return "train", None
