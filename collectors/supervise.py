"""Runs sources in threads beside the agent's loop, so that one that hangs or raises costs its own data only.

In: sources and a tree. Out: the latest samples, and events ``source_failed`` and ``source_recovered``, said
once per change. The looks of one tick share a thread, since waking one costs as much as a look; those behind
a look that lasts go on in another at the next tick. A thread that hangs (a driver in state D) cannot be
ended: it is left alone, said, and used again when it comes back.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
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
    """One source. All methods but ``look`` belong to the agent's loop."""

    def __init__(self, source: Source, tree: Tree, clock: Clock, tell: Tell) -> None:
        self.source = source
        self.status = "starting"
        self.slowdown = 1.0
        """the guard's factor on the period"""
        self._tree = tree
        self._clock = clock
        self._tell = tell
        self._lock = threading.Lock()
        self._is_asked = False
        """a look was asked for and has not ended"""
        self._started_s: float | None = None
        self._result: Reading | Exception | None = None
        self._due_s = 0.0
        self._failures = 0

    def collect(self) -> Reading | None:
        """What a look has given since the last call, if one has ended."""
        with self._lock:
            result, self._result = self._result, None
            started_s = self._started_s
        if result is not None:
            return self._take(result)
        if started_s is not None:
            lasts_s = self._clock.monotonic_s() - started_s
            if lasts_s > self.source.deadline_s:
                self._failed(
                    f"no answer for {lasts_s:.0f} s", f"hangs since {self.source.deadline_s:g} s or more"
                )
        return None

    def is_due(self) -> bool:
        """Whether a look is to begin; if so, the caller has to see to it."""
        now_s = self._clock.monotonic_s()
        if self._is_asked or now_s < self._due_s:
            return False
        pause_s = self.source.period_s * self.slowdown
        if self._failures:
            pause_s = max(pause_s, min(2.0**self._failures, FAILED_PAUSE_MAX_S))
        # A little early rather than late: ticks and periods are both whole seconds.
        self._due_s = now_s + pause_s - 0.25
        self._is_asked = True
        return True

    def look(self) -> None:
        """One look, in the caller's thread."""
        self._started_s = at_s = self._clock.monotonic_s()
        result: Reading | Exception
        try:
            result = self.source.read(self._tree, at_s)
        except Exception as error:  # noqa: BLE001  a source may fail in any way; the agent must not
            result = error
        with self._lock:
            self._result = result
            self._started_s = None
            self._is_asked = False

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


class Worker:
    """A thread that makes one look after the other."""

    def __init__(self, number: int) -> None:
        self._wake = threading.Condition()
        self._waiting: deque[SourceRunner] = deque()
        self._is_looking = self._is_stopping = False
        self._thread = threading.Thread(target=self._work, name=f"sources-{number}", daemon=True)
        self._thread.start()

    @property
    def is_free(self) -> bool:
        with self._wake:
            return not (self._is_looking or self._waiting)

    def give(self, runners: Sequence[SourceRunner]) -> None:
        with self._wake:
            self._waiting.extend(runners)
            self._wake.notify()

    def take_back(self) -> list[SourceRunner]:
        """Looks that have not begun."""
        with self._wake:
            left = list(self._waiting)
            self._waiting.clear()
        return left

    def stop(self) -> None:
        """Ends after the look that goes on; a daemon never keeps the agent from ending."""
        with self._wake:
            self._is_stopping = True
            self._wake.notify()

    def join(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)

    def _work(self) -> None:
        while True:
            with self._wake:
                self._is_looking = False
                while not (self._waiting or self._is_stopping):
                    self._wake.wait()
                if self._is_stopping:
                    return
                runner = self._waiting.popleft()
                self._is_looking = True
            runner.look()


class Supervisor:
    """All sources of an agent."""

    def __init__(self, chosen: Sequence[Source], tree: Tree, clock: Clock, tell: Tell) -> None:
        self._runners = [SourceRunner(source, tree, clock, tell) for source in chosen]
        # What is looked at often and answers at once goes first: it never waits for what asks a tool.
        self._in_turn = sorted(self._runners, key=lambda one: (one.source.period_s, one.source.deadline_s))
        self._workers: list[Worker] = []

    def tick(self) -> Iterator[tuple[Source, Reading]]:
        """What came in since the last tick."""
        for runner in self._runners:
            reading = runner.collect()
            if reading is not None:
                yield runner.source, reading

    def begin(self) -> None:
        """Begins the looks that are due, and those that wait behind one that lasts since the tick before."""
        waiting = [runner for worker in self._workers for runner in worker.take_back()]
        waiting += [runner for runner in self._in_turn if runner.is_due()]
        if not waiting:
            return
        free = next((worker for worker in self._workers if worker.is_free), None)
        if free is None:
            free = Worker(len(self._workers))
            self._workers.append(free)
        free.give(waiting)

    def status(self) -> dict[str, str]:
        return {runner.source.name: runner.status for runner in self._runners}

    def slow_down(self, factor: float) -> None:
        """Looks at everything ``factor`` times more rarely than the sources ask for."""
        for runner in self._runners:
            runner.slowdown = factor

    def stop(self) -> None:
        for worker in self._workers:
            worker.stop()
        for worker in self._workers:
            worker.join(0.2)
