"""The agent's side of the process that polls devices: starts it, takes what it tells, starts it again.

In: ``pollers.toml``. Out: device records and events into the spool; ``poller_failed`` and
``poller_recovered`` once per change. Belongs to the agent's loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from collectors.clock import Clock
from collectors.poller_messages import Message, PollerWord, Reader, TooLarge
from collectors.sources.base import OK
from collectors.spool import Spool
from collectors.wire import records

PAUSE_MAX_S: Final = 60.0
END_S: Final = 3.0
"""How long the process may take to end when it is asked to."""
_CHUNK_BYTES: Final = 262_144

Tell = Callable[[str, str, bool], None]
"""(poller, reason, failed); the poller is empty for all of the file."""


class PollerLink:
    """One file and its process. ``tick`` about once a second."""

    def __init__(self, file: Path, folder: Path, spool: Spool, clock: Clock, tell: Tell) -> None:
        """``folder``: for what pollers remember."""
        self.child_cpu_s = 0.0
        """of processes that have ended: devices are not part of the agent's own budget"""
        self._file, self._folder = file, folder
        self._spool, self._clock, self._tell = spool, clock, tell
        self._words: dict[str, str] = {}
        self._sequences: dict[tuple[str, str], int] = {}
        """device -> its newest record in the spool"""
        self._child: subprocess.Popen[bytes] | None = None
        self._reader = Reader()
        self._mtime_ns: int | None = None
        self._due_s = 0.0
        self._pause_s = 1.0
        self._kill_s: float | None = None

    @property
    def word(self) -> str:
        """``ok``, or the first thing that is wrong."""
        wrong = (f"{name}: {state}" if name else state for name, state in self._words.items() if state != OK)
        return next(wrong, OK if self._words else "starting")

    def tick(self) -> None:
        """Starts the process when it is due, and ends one whose file has changed."""
        self._reap()
        now_s, mtime_ns = self._clock.monotonic_s(), self._file_mtime_ns()
        has_changed, self._mtime_ns = mtime_ns != self._mtime_ns, mtime_ns
        if self._child is None:
            if now_s >= self._due_s or has_changed:
                self._start(now_s)
        elif has_changed and self._kill_s is None:
            self._ask_to_end(now_s)
        elif self._kill_s is not None and now_s >= self._kill_s:
            self._kill()

    async def stop(self) -> None:
        """Asks the process to end, and does not wait long for it."""
        if self._child is None:
            return
        self._ask_to_end(self._clock.monotonic_s())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_S):
                while self._child is not None and not self._has_ended():
                    await asyncio.sleep(0.05)
        self._kill()

    def _start(self, now_s: float) -> None:
        self._due_s, self._kill_s = now_s + self._pause_s, None
        self._pause_s = min(self._pause_s * 2, PAUSE_MAX_S)
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._child = subprocess.Popen(
                [sys.executable, "-m", "collectors.poller_child", str(self._file), str(self._folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,
            )
        except OSError as error:
            self._say("", f"cannot be started: {error.strerror or error}")
            return
        assert self._child.stdout is not None
        self._reader = Reader()
        fd = self._child.stdout.fileno()
        os.set_blocking(fd, False)
        asyncio.get_running_loop().add_reader(fd, self._read, fd)

    def _read(self, fd: int) -> None:
        try:
            chunk = os.read(fd, _CHUNK_BYTES)
            messages = self._reader.feed(chunk)
        except BlockingIOError:
            return
        except TooLarge:
            chunk, messages = b"", []
            self._kill()
        if not chunk:
            asyncio.get_running_loop().remove_reader(fd)
        for message in messages:
            self._take(message)

    def _take(self, message: Message) -> None:
        if isinstance(message, PollerWord):
            self._say(message.poller, message.state)
        if not (isinstance(message, PollerWord) and message.poller == ""):
            self._say("", OK)
            self._pause_s = 1.0 if self._clock.monotonic_s() > self._due_s else self._pause_s
        if isinstance(message, records.Event):
            self._spool.append(message)
        if isinstance(message, records.DeviceReadings):
            self._spool_readings(message)

    def _spool_readings(self, record: records.DeviceReadings) -> None:
        """One of each device at a time, as of the node itself; what is left out comes again each minute."""
        key = record.kind, record.device
        if key in self._sequences and self._spool.is_pending("bulk", self._sequences[key]):
            return
        sequence = self._spool.append(record)
        if sequence is not None:
            self._sequences[key] = sequence

    def _reap(self) -> None:
        """Takes the end of the process, and of all that it started."""
        child = self._child
        if child is None or not self._has_ended():
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        _, status, used = os.wait4(child.pid, 0)
        self.child_cpu_s += used.ru_utime + used.ru_stime
        child.returncode = os.waitstatus_to_exitcode(status)
        self._close_pipes(child)
        self._child = None
        if self._kill_s is not None:
            self._words.clear()
            self._sequences.clear()
            self._due_s, self._pause_s = self._clock.monotonic_s(), 1.0
        elif self._words.get("", OK) == OK:
            self._say("", f"the process ended with {child.returncode}")

    def _has_ended(self) -> bool:
        assert self._child is not None
        return os.waitid(os.P_PID, self._child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def _close_pipes(self, child: subprocess.Popen[bytes]) -> None:
        if child.stdout is not None:
            asyncio.get_running_loop().remove_reader(child.stdout.fileno())
            child.stdout.close()
        if child.stdin is not None:
            child.stdin.close()

    def _ask_to_end(self, now_s: float) -> None:
        assert self._child is not None and self._child.stdin is not None
        self._child.stdin.close()
        self._kill_s = now_s + END_S

    def _kill(self) -> None:
        if self._child is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._child.pid, signal.SIGKILL)

    def _file_mtime_ns(self) -> int | None:
        try:
            return self._file.stat().st_mtime_ns
        except OSError:
            return None

    def _say(self, poller: str, state: str) -> None:
        before, self._words[poller] = self._words.get(poller, OK), state
        if state != before and OK in (state, before):
            self._tell(poller, "gives data again" if state == OK else state, state != OK)
