"""One supervised process: its start, its end, its back-off. Holds no policy about the others."""

from __future__ import annotations

import enum
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clusterwatch.ops.errors import OpsError
from clusterwatch.ops.proc import all_processes, read_process, signal_group
from clusterwatch.ops.processes import ProcessSpec

FIRST_BACKOFF_S = 0.5
LONGEST_BACKOFF_S = 30.0
STEADY_S = 60.0  # a process that ran this long starts again at once, and its back-off is forgotten
LOG_LIMIT_BYTES = 10 * 1024 * 1024


class ChildState(enum.StrEnum):
    """Where a process is in its life."""

    WAITING = "waiting"
    STARTING = "starting"
    READY = "ready"
    DONE = "done"
    BACKOFF = "restarting"
    STOPPED = "stopped"


@dataclass(slots=True)
class Child:
    """A process of the table and what became of it. Times are `time.monotonic()` seconds."""

    spec: ProcessSpec
    env: Mapping[str, str]
    log_path: Path
    state: ChildState = ChildState.WAITING
    started_at_s: float = 0.0
    ready_after_s: float | None = None
    retry_at_s: float = 0.0
    restart_count: int = 0
    failures_in_a_row: int = 0
    last_exit: str = ""
    start_ticks: int = 0
    _process: subprocess.Popen[bytes] | None = field(default=None)

    @property
    def pid(self) -> int | None:
        """The process id while it runs."""
        return self._process.pid if self._process else None

    @property
    def is_up(self) -> bool:
        """Whether what depends on it may start."""
        return self.state in (ChildState.READY, ChildState.DONE)

    def start(self) -> None:
        """Starts the process in a session of its own, its output appended to its log."""
        self.started_at_s = time.monotonic()
        try:
            self.spec.prepare()
            self._rotate_log()
            with self.log_path.open("ab") as log:
                self._process = subprocess.Popen(
                    self.spec.command(),
                    env={**self.env, **self.spec.env},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    cwd="/",
                    **self.spec.identity,
                )
        except (OSError, OpsError) as fault:
            self._failed(str(fault))
            return
        found = read_process(self._process.pid)
        self.start_ticks = found.start_ticks if found else 0
        self.state = ChildState.STARTING

    def step(self) -> bool:
        """Looks once at the process; True when its state changed."""
        before = self.state
        if self._process and self._process.poll() is not None:
            self._ended(self._process.returncode)
        elif self.state is ChildState.STARTING and not self.spec.once:
            age_s = time.monotonic() - self.started_at_s
            if age_s >= self.spec.settle_s and self.spec.ready():
                self.state = ChildState.READY
                self.ready_after_s = time.monotonic() - self.started_at_s
        elif self.state is ChildState.READY and time.monotonic() - self.started_at_s > STEADY_S:
            self.failures_in_a_row = 0
        return self.state is not before

    def stop(self) -> None:
        """Asks the process to end; its helpers are its own to stop."""
        self.state = ChildState.STOPPED
        if self._process and self._process.poll() is None:
            self._process.send_signal(self.spec.stop_signal)
            self._process.send_signal(signal.SIGCONT)  # a stopped process would not hear it

    def has_ended(self) -> bool:
        """Whether the process is gone; what it left in its group is killed then."""
        if self._process is None:
            return True
        if self._process.poll() is None:
            return False
        self._kill_group()
        return True

    def kill(self) -> None:
        """Kills the process and its group."""
        if self._process:
            self._kill_group()
            self._process.kill()
            self._process.wait()

    def last_log_line(self) -> str:
        """The last line that says something, for the one line a person reads."""
        try:
            with self.log_path.open("rb") as log:
                log.seek(max(0, self.log_path.stat().st_size - 4096))
                lines = log.read().decode("utf-8", "replace").splitlines()
        except OSError:
            return ""
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    def as_record(self) -> dict[str, Any]:
        """What `status` shows and what the next start needs for recovery."""
        return {
            "state": self.state.value,
            "pid": self.pid,
            "start_ticks": self.start_ticks,
            "restarts": self.restart_count,
            "last_exit": self.last_exit,
            "ready_after_s": self.ready_after_s,
        }

    def _ended(self, code: int) -> None:
        self._kill_group()
        self._process = None
        if self.spec.once and code == 0:
            self.state = ChildState.DONE
            self.ready_after_s = time.monotonic() - self.started_at_s
            return
        self._failed(f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}")

    def _failed(self, reason: str) -> None:
        steady = self.state is ChildState.READY and time.monotonic() - self.started_at_s > STEADY_S
        self.failures_in_a_row = 1 if steady else self.failures_in_a_row + 1
        backoff_s = min(LONGEST_BACKOFF_S, FIRST_BACKOFF_S * 2 ** (self.failures_in_a_row - 1))
        self.last_exit = reason
        self.restart_count += 1
        self.retry_at_s = time.monotonic() + backoff_s
        self.state = ChildState.BACKOFF

    def _kill_group(self) -> None:
        """Kills what is left of the session; the group's id cannot be reused while a member lives."""
        assert self._process is not None
        group_id = self._process.pid
        if any(found.group_id == group_id and found.pid != group_id for found in all_processes()):
            signal_group(group_id, signal.SIGKILL)

    def _rotate_log(self) -> None:
        """Keeps one older log; a process that restarts for days must not fill the disk."""
        if self.log_path.exists() and self.log_path.stat().st_size > LOG_LIMIT_BYTES:
            self.log_path.replace(self.log_path.with_suffix(".log.1"))
