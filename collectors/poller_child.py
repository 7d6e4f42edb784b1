"""The process that polls devices for its agent: ``python -m collectors.poller_child FILE FOLDER``.

In: ``pollers.toml``, a folder to remember things in. Out: ``poller_messages`` on stdout. It ends when stdin
does, at SIGTERM and with its parent. Each poller has a thread of its own and its own period; one that
overruns is told when its deadline has passed, and at ``HANGS_AFTER`` deadlines it is taken for hung: its
thread cannot be ended, so it is left alone and the poller is made anew. With more than ``LEFT_MAX`` such
threads the process ends, and the agent starts it again.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from collectors import poll
from collectors.__main__ import log_to_stderr
from collectors.clock import SystemClock
from collectors.poller_devices import Devices
from collectors.poller_messages import Message, PollerWord, TooLarge, packed
from collectors.pollers.device import ConfigError, DeviceReading, Poller
from collectors.sources.base import OK, Resuming

log = logging.getLogger(__name__)

BAD_CONFIG: Final = 78
HANGS: Final = 75
"""Too many threads hang."""
HANGS_AFTER: Final = 2.0
"""Deadlines; one that is only slow still comes back within two."""
LEFT_MAX: Final = 4
"""Threads that hang cost their stack and connections, and a cause that stays would make one each deadline."""
CLOSE_S: Final = 1.5
_WAITING_MAX: Final = 256
"""Answers that wait to be handed on; a poller that is ahead of the agent waits."""
_PR_SET_PDEATHSIG: Final = 1


class Runner(threading.Thread):
    """One poller and its thread."""

    def __init__(self, poller: Poller, place: int, answers: queue.Queue[Told], stop: threading.Event) -> None:
        """``place``: in the file; pollers begin a second apart."""
        super().__init__(name=f"poller-{poller.name}", daemon=True)
        self.poller = poller
        self.began_s: float | None = None
        """of the poll that runs now, monotonic"""
        self.is_left = False
        """it hangs, and another has taken its place: nothing that it still tells counts"""
        self._place_s = float(place)
        self._answers = answers
        self._stop_event = stop

    def run(self) -> None:
        due_s = time.monotonic() + self._place_s
        while not self.is_left and not self._stop_event.wait(max(0.0, due_s - time.monotonic())):
            self.began_s = time.monotonic()
            self._answers.put((self, self._polled(self.began_s)))
            self.began_s = None
            missed = max(0.0, time.monotonic() - due_s) // self.poller.period_s
            due_s += (missed + 1) * self.poller.period_s
        self.poller.close()

    def _polled(self, at_s: float) -> str:
        try:
            for told in self.poller.poll(at_s):
                if self.is_left:
                    break
                self._answers.put((self, told))
        except Exception as error:  # noqa: BLE001  a poller may fail in any way; the others must go on
            return f"{type(error).__name__}: {error}"
        return OK


Again = Callable[[str], Poller]
"""A poller's name -> a new one. Raises ``ConfigError``."""
Told = tuple[Runner, DeviceReading | str]
"""Who tells it, and a device or how the poll ended."""


class Child:
    """All pollers of a file. All methods belong to the main thread."""

    def __init__(self, pollers: list[Poller], out: int, stop: threading.Event, again: Again) -> None:
        """``again``: makes a poller of the file anew."""
        self._out = out
        self._again = again
        self._left: list[Runner] = []
        """threads that hung when they were looked at last"""
        self._stop = stop
        self._answers: queue.Queue[Told] = queue.Queue(_WAITING_MAX)
        self._runners = [Runner(one, place, self._answers, stop) for place, one in enumerate(pollers)]
        self._devices = Devices(SystemClock())
        self._words: dict[str, str] = {}

    def run(self) -> int:
        """Until it is told to stop, or too many pollers hang. Returns the exit code.

        Raises:
            OSError: the agent has gone.
        """
        self.start()
        while not self._stop.is_set():
            if not self.step(1.0):
                return HANGS
        for runner in self._runners:
            runner.join(CLOSE_S / len(self._runners))
        return 0

    def start(self) -> None:
        for runner in self._runners:
            runner.start()

    def step(self, wait_s: float) -> bool:
        """Takes an answer that comes within ``wait_s``, sends what is due. False: too many threads hang."""
        with contextlib.suppress(queue.Empty):
            self._take(*self._answers.get(timeout=wait_s))
        self._see_deadlines()
        for record in self._devices.due():
            send(self._out, record)
        return len(self._left) <= LEFT_MAX

    def _take(self, runner: Runner, told: DeviceReading | str) -> None:
        if runner.is_left:
            return
        if isinstance(told, str):
            self._say(runner.poller.name, told)
            return
        for event in self._devices.take(runner.poller.name, runner.poller.period_s, told):
            send(self._out, event)

    def _see_deadlines(self) -> None:
        now_s = time.monotonic()
        for place, runner in enumerate(self._runners):
            began_s, limit_s = runner.began_s, runner.poller.deadline_s
            if began_s is None or now_s - began_s <= limit_s:
                continue
            self._say(runner.poller.name, f"not done within {limit_s:g} s")
            if now_s - began_s > HANGS_AFTER * limit_s:
                self._replace(place)

    def _replace(self, place: int) -> None:
        """Leaves a thread that hangs and begins anew."""
        hung = self._runners[place]
        try:
            poller = self._again(hung.poller.name)
        except ConfigError:
            return  # the file has changed just now: the agent ends this process for that
        hung.is_left = True
        self._left = [*(one for one in self._left if one.is_alive()), hung]
        log.warning("poller_replaced poller=%s threads_left=%d", poller.name, len(self._left))
        self._runners[place] = Runner(poller, 0, self._answers, self._stop)
        self._runners[place].start()

    def _say(self, poller: str, state: str) -> None:
        if state != OK:
            self._devices.fail(poller, state)
        if self._words.get(poller) != state:
            self._words[poller] = state
            send(self._out, PollerWord(poller, state[:1_000]))


def send(out: int, message: Message) -> None:
    """Writes a whole message; one that the wire does not take is left out. Raises ``OSError``."""
    try:
        left = memoryview(packed(message))
    except TooLarge as error:
        log.warning("poller_message_left_out reason=%s", error)
        return
    while left:
        left = left[os.write(out, left) :]


def _watch_stdin(stop: threading.Event) -> None:
    while os.read(0, 4_096):
        pass
    stop.set()


def main(argv: list[str]) -> int:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    # Whatever a library prints must not come between the messages.
    out = os.dup(1)
    os.dup2(2, 1)
    log_to_stderr()
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    threading.Thread(target=_watch_stdin, args=(stop,), daemon=True).start()
    file, folder = Path(argv[0]), Path(argv[1])
    try:
        pollers = made(file, folder)
    except ConfigError as error:
        send(out, PollerWord("", str(error)[:1_000]))
        return BAD_CONFIG
    return Child(pollers, out, stop, lambda name: _again(file, folder, name)).run()


def made(file: Path, folder: Path) -> list[Poller]:
    """The pollers of a file, going on where they were. Raises ``ConfigError``."""
    pollers = poll.load(file)
    for poller in pollers:
        if isinstance(poller, Resuming):
            poller.keep_in(folder)
    return pollers


def _again(file: Path, folder: Path, name: str) -> Poller:
    for poller in made(file, folder):
        if poller.name == name:
            return poller
    raise ConfigError(f"{file} names no {name} any more")


if __name__ == "__main__":
    try:
        code = main(sys.argv[1:])
    except BrokenPipeError:
        code = 0
    sys.stderr.flush()
    os._exit(code)  # a poller that hangs must not keep the process
