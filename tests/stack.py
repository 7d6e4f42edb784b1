"""The embedded PostgreSQL and Valkey of a test run: one pair per process, in a temporary folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from clusterwatch.ops.postgres import STOP_SIGNAL, PostgresServer, plan_postgres, prepare_postgres
from clusterwatch.ops.proc import read_process
from clusterwatch.ops.state import StateFolder
from clusterwatch.ops.valkey import ValkeyServer, plan_valkey

START_TIMEOUT_S = 30.0


@dataclass(slots=True)
class Stack:
    """A running pair of servers; tests may kill and start each of them."""

    postgres: PostgresServer
    valkey: ValkeyServer
    folder: Path
    _running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def database_url(self) -> str:
        """The URL of the product's database (pytest-django puts `test_` before its name)."""
        return self.postgres.url()

    @property
    def valkey_url(self) -> str:
        """The URL of database 0 of Valkey."""
        return self.valkey.url()

    def pid(self, name: str) -> int:
        """The process id of `postgres` or `valkey`."""
        return self._running[name].pid

    def is_running(self, name: str) -> bool:
        """Whether `postgres` or `valkey` was started here and still runs."""
        return name in self._running and self._running[name].poll() is None

    def start_postgres(self) -> None:
        """Starts PostgreSQL and waits until it answers."""
        prepare_postgres(self.postgres)
        identity = self.postgres.account.identity() if self.postgres.account else {}
        self._start("postgres", self.postgres.argv(), self.postgres.is_ready, **identity)
        self.postgres.ensure_database()

    def start_valkey(self) -> None:
        """Starts Valkey and waits until it answers."""
        self._start("valkey", self.valkey.argv(max_memory_mb=256), self.valkey.is_ready)

    def kill(self, name: str) -> None:
        """kill -9, as a crash does it."""
        process = self._running.pop(name)
        process.kill()
        process.wait()

    def stop(self) -> None:
        """Stops what still runs."""
        for name, process in self._running.items():
            process.send_signal(STOP_SIGNAL if name == "postgres" else 15)
        for process in self._running.values():
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._running.clear()

    def _start(self, name: str, argv: tuple[str, ...], ready: Callable[[], bool], **identity: object) -> None:
        log = StateFolder(self.folder).folder("logs") / f"{name}.log"
        with log.open("ab") as out:
            process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out, **identity)  # type: ignore[call-overload]
        self._running[name] = process
        deadline = time.monotonic() + START_TIMEOUT_S
        while not ready():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{name} did not start:\n{log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.02)


def plan_stack(folder: Path) -> Stack:
    """Plans a pair of servers below `folder`; nothing is started."""
    state = StateFolder.open(folder)
    return Stack(plan_postgres(state, os.environ), plan_valkey(state, os.environ), folder)


def remove_old_runs(base: Path, prefix: str) -> None:
    """Removes folders of test runs that were killed: their name ends in a process id and its start time."""
    for folder in base.glob(f"{prefix}*"):
        pid, _, ticks = folder.name.removeprefix(prefix).partition("-")
        found = read_process(int(pid)) if pid.isdigit() else None
        if found is None or str(found.start_ticks) != ticks:
            shutil.rmtree(folder, ignore_errors=True)


def own_folder(prefix: str) -> Path:
    """A folder for this process, named so that a later run can tell whether we are gone."""
    found = read_process(os.getpid())
    assert found is not None
    base = Path(tempfile.gettempdir())
    remove_old_runs(base, prefix)
    return base / f"{prefix}{found.pid}-{found.start_ticks}"
