"""Runs each source in a thread of its own, so that one that hangs or raises costs its own data only.

In: sources and a tree. Out: the latest samples, and events ``source_failed`` and ``source_recovered``, said
once per change. A thread that hangs (a driver in state D) cannot be ended: it is left alone, said, and used
again when it comes back.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from collectors.clock import Clock
from collectors.sources.base import Reading, Source
from collectors.sources.tree import Tree

log = logging.getLogger(__name__)

FAILED_PAUSE_MAX_S: Final = 60.0

Tell = Callable[[str, str, bool], None]
"""(source, reason, failed): a source changed between giving data and not."""


class SourceRunner:
    """One source and its thread. All methods but ``_work`` belong to the agent's loop."""

    def __init__(self, source: Source, tree: Tree, clock: Clock, tell: Tell) -> None:
        self.source = source
        self.status = "starting"
        self.slowdown = 1.0
        """the guard's factor on the period"""
        self._tree = tree
        self._clock = clock
        self._tell = tell
        self._begin = threading.Event()
        self._stopping = False
        self._lock = threading.Lock()
        self._started_s: float | None = None
        self._result: Reading | Exception | None = None
        self._due_s = 0.0
        self._failures = 0
        self._thread = threading.Thread(target=self._work, name=f"source-{source.name}", daemon=True)
        self._thread.start()

    def tick(self) -> Reading | None:
        """Collects what the thread has finished and begins the next look when it is due."""
        now_s = self._clock.monotonic_s()
        with self._lock:
            result, self._result = self._result, None
            started_s = self._started_s
        reading = self._take(result) if result is not None else None
        if started_s is None:
            if now_s >= self._due_s:
                self._look(now_s)
        elif now_s - started_s > self.source.deadline_s:
            self._failed(
                f"no answer for {now_s - started_s:.0f} s",
                f"hangs since {self.source.deadline_s:g} s or more",
            )
        return reading

    def stop(self) -> None:
        """Ends the thread unless it hangs; it is a daemon, so it never keeps the agent from ending."""
        self._stopping = True
        self._begin.set()
        self._thread.join(timeout=0.2)

    def _look(self, now_s: float) -> None:
        pause_s = self.source.period_s * self.slowdown
        if self._failures:
            pause_s = max(pause_s, min(2.0**self._failures, FAILED_PAUSE_MAX_S))
        # A little early rather than late: ticks and periods are both whole seconds.
        self._due_s = now_s + pause_s - 0.25
        with self._lock:
            self._started_s = now_s
        self._begin.set()

    def _take(self, result: Reading | Exception) -> Reading | None:
        if isinstance(result, Exception):
            self._failures += 1
            self._failed(f"{type(result).__name__}: {result}"[:500], "raises")
            return None
        self._failures = 0
        if self.status not in ("ok", "starting"):
            log.info("source_recovered source=%s", self.source.name)
            self._tell(self.source.name, "gives data again", False)
        self.status = "ok"
        return result

    def _failed(self, reason: str, status: str) -> None:
        if self.status != status:
            log.warning("source_failed source=%s reason=%s", self.source.name, reason)
            self._tell(self.source.name, reason, True)
        self.status = status

    def _work(self) -> None:
        while True:
            self._begin.wait()
            self._begin.clear()
            if self._stopping:
                return
            result: Reading | Exception
            try:
                result = self.source.read(self._tree, self._clock.monotonic_s())
            except Exception as error:  # noqa: BLE001  a source may fail in any way; the agent must not
                result = error
            with self._lock:
                self._result = result
                self._started_s = None


class Supervisor:
    """All sources of an agent."""

    def __init__(self, chosen: Sequence[Source], tree: Tree, clock: Clock, tell: Tell) -> None:
        self._runners = [SourceRunner(source, tree, clock, tell) for source in chosen]

    def tick(self) -> Iterator[tuple[Source, Reading]]:
        """What came in since the last tick."""
        for runner in self._runners:
            reading = runner.tick()
            if reading is not None:
                yield runner.source, reading

    def status(self) -> dict[str, str]:
        return {runner.source.name: runner.status for runner in self._runners}

    def slow_down(self, factor: float) -> None:
        """Looks at everything ``factor`` times more rarely than the sources ask for."""
        for runner in self._runners:
            runner.slowdown = factor

    def stop(self) -> None:
        for runner in self._runners:
            runner.stop()
