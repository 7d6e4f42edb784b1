"""Work shared out over the cores: this process and forked copies of it, one fewer than there are cores.

In: tasks by number, their sizes, and ``work``, which yields results of a task. Out: results as they come. A
process that dies (out of memory) costs the result it was at, which is named; the rest is done by others.

Forked, because a copy of a started process costs milliseconds and shares its memory, where a fresh one would
import everything again (0.25 s CPU, 40 MB). This process works too: one copy less in memory.
"""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import pickle  # nosec: results of our own copies only
import signal
import sys
import threading
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from typing import Final, Generic, TypeVar

PROCESSES_MAX: Final = 8
"""More would wait for the disk and for this process, which takes the results."""
SMALL_BYTES: Final = 4 * 1024 * 1024
"""Read within 20 ms by one process: starting a second one costs as much."""
_AHEAD: Final = 16
"""Tasks a copy holds in advance, so that it never waits for the next one."""
_DEATHS_MAX: Final = 16
"""After so many dead copies this process goes on alone."""

Result = TypeVar("Result")
Work = Callable[[int], Iterator[Result]]


@dataclass(frozen=True, slots=True)
class Died:
    """A process ended in the middle of a task."""

    why: str


Told = tuple[int, Result | Died | None]


def processes_for(total_bytes: int, tasks: int) -> int:
    """How many processes a job of this size is worth; 1 where forking is not safe."""
    if total_bytes < SMALL_BYTES or tasks < 2 or sys.platform != "linux" or threading.active_count() > 1:
        return 1
    return max(1, min(PROCESSES_MAX, len(os.sched_getaffinity(0)), tasks))


def run(order: Sequence[int], work: Work[Result], processes: int) -> Iterator[Told[Result]]:
    """Does every task of ``order`` and yields (task, result), in no certain order, and (task, None) at the
    end of each task; a task that costs a process its life ends with ``Died`` instead.

    Args:
        order: numbers of the tasks; earlier ones are begun earlier.
        work: results of one task; it must not raise.
        processes: how many work at a time, this one included.
    """
    collecting = gc.isenabled()
    gc.disable()  # results are trees of plain data: looking for cycles costs a third of the time
    try:
        if processes <= 1:
            for task in order:
                for result in work(task):
                    yield task, result
                yield task, None
        else:
            yield from _Crew(deque(order), work, processes - 1).results()
    finally:
        if collecting:
            gc.enable()


@dataclass(slots=True)
class _Copy(Generic[Result]):
    """A forked copy and the tasks it holds, in the order it does them."""

    process: ForkProcess
    connection: Connection
    held: deque[int] = field(default_factory=deque)


class _Crew(Generic[Result]):
    def __init__(self, queue: deque[int], work: Work[Result], copies: int) -> None:
        self._queue = queue
        self._work = work
        self._deaths = 0
        self._copies: list[_Copy[Result]] = []
        try:
            for _ in range(copies):
                self._start()
        except OSError:  # no memory or no process left for a copy: this process can do it alone
            self._deaths = _DEATHS_MAX

    def results(self) -> Iterator[Told[Result]]:
        try:
            while self._queue or any(copy.held for copy in self._copies):
                for copy in self._copies:
                    self._give(copy)
                yield from self._taken(block=not self._queue)
                if self._queue:
                    task = self._queue.popleft()
                    for result in self._work(task):
                        yield task, result
                    yield task, None
        finally:
            for copy in self._copies:
                copy.process.terminate()
                copy.connection.close()
            for copy in self._copies:
                copy.process.join()

    def _start(self) -> None:
        context = multiprocessing.get_context("fork")
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs, ours, self._work), daemon=True)
        held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # this process takes Ctrl-C for all
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, held)
        theirs.close()
        copy: _Copy[Result] = _Copy(process, ours)
        self._copies.append(copy)

    def _give(self, copy: _Copy[Result]) -> None:
        """Fills up what a copy holds once half of it is done; less towards the end."""
        most = max(1, min(_AHEAD, len(self._queue) // (2 * len(self._copies) + 2)))
        if len(copy.held) * 2 > most:
            return
        given = [self._queue.popleft() for _ in range(min(most - len(copy.held), len(self._queue)))]
        copy.held.extend(given)
        if given:
            with contextlib.suppress(OSError):  # it is dead; ``_taken`` sees that and hands its tasks on
                copy.connection.send_bytes(array("I", given).tobytes())

    def _taken(self, block: bool) -> Iterator[Told[Result]]:
        """Results that lie ready; with ``block`` waits for one."""
        by_connection = {copy.connection: copy for copy in self._copies if copy.held}
        for ready in wait(list(by_connection), None if block else 0):
            copy = by_connection[ready]  # type: ignore[index]
            try:
                result = pickle.loads(copy.connection.recv_bytes())  # noqa: S301  our own copy wrote it
            except (EOFError, OSError):
                yield from self._buried(copy)
                continue
            yield (copy.held.popleft() if result is None else copy.held[0]), result

    def _buried(self, copy: _Copy[Result]) -> Iterator[Told[Result]]:
        copy.process.join()
        copy.connection.close()
        self._copies.remove(copy)
        yield copy.held.popleft(), Died(_ending(copy.process.exitcode))
        self._queue.extendleft(reversed(copy.held))
        self._deaths += 1
        if self._deaths < _DEATHS_MAX:
            with contextlib.suppress(OSError):  # the others and this process go on
                self._start()


def _ending(code: int | None) -> str:
    if code is not None and code < 0:
        memory = ": out of memory?" if -code == signal.SIGKILL else ""
        return f"the process that read it was ended by signal {-code}{memory}"
    return f"the process that read it ended with code {code}"


def _serve(connection: Connection, parents_end: Connection, work: Work[Result]) -> None:
    """Life of a copy: numbers of tasks in, results and a None after each task out, until nobody listens."""
    parents_end.close()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        while True:
            tasks = array("I")
            tasks.frombytes(connection.recv_bytes())
            for task in tasks:
                for result in work(task):
                    connection.send_bytes(pickle.dumps(result, pickle.HIGHEST_PROTOCOL))
                connection.send_bytes(_DONE)
    except (EOFError, OSError):
        return


_DONE: Final = pickle.dumps(None)
