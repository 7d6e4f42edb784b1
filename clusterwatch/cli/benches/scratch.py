"""A PostgreSQL and a Valkey of a bench's own: embedded, in a temporary folder, gone afterwards.

The figures do not depend on what else the installation does, and nothing of it is touched.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from clusterwatch.ops.errors import OpsError
from clusterwatch.ops.postgres import STOP_SIGNAL, PostgresServer, plan_postgres, prepare_postgres
from clusterwatch.ops.state import StateFolder
from clusterwatch.ops.valkey import plan_valkey

START_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Scratch:
    """Running servers; the environment of this process names them, so ``django.setup()`` may follow."""

    folder: Path
    postgres: PostgresServer
    shared_buffers_mb: int


@contextlib.contextmanager
def servers(base: Path | None, shared_buffers_mb: int) -> Iterator[Scratch]:
    """Starts both, points ``CLUSTERWATCH_*`` at them, and removes everything at the end.

    Args:
        base: where the folder is made (it holds the bench's data); None: the system's temporary folder.

    Raises:
        OpsError: a server does not start.
    """
    with contextlib.ExitStack() as undo:
        undo.enter_context(_ended_in_order())
        folder = Path(tempfile.mkdtemp(prefix="cw-bench-", dir=base))
        undo.callback(shutil.rmtree, folder, ignore_errors=True)
        folder.chmod(0o711)
        state = StateFolder.open(folder)
        postgres, valkey = plan_postgres(state, os.environ), plan_valkey(state, os.environ)
        if folder not in postgres.home.parents:
            undo.callback(shutil.rmtree, postgres.home, ignore_errors=True)
        prepare_postgres(postgres)
        identity = postgres.account.identity() if postgres.account else {}
        undo.enter_context(
            _running(postgres.argv(shared_buffers_mb), postgres.bring_up, folder, int(STOP_SIGNAL), identity)
        )
        undo.enter_context(_running(valkey.argv(), valkey.is_ready, folder, 15, {}))
        os.environ |= {
            "CLUSTERWATCH_STATE_DIR": str(folder),
            "CLUSTERWATCH_SECRET_KEY": state.secret("secret_key"),
            "CLUSTERWATCH_DATABASE_URL": postgres.url(),
            "CLUSTERWATCH_VALKEY_URL": valkey.url(),
            "DJANGO_SETTINGS_MODULE": "clusterwatch.project.settings",
        }
        yield Scratch(folder, postgres, shared_buffers_mb)


@contextlib.contextmanager
def _ended_in_order() -> Iterator[None]:
    """A SIGTERM ends the bench like an error: servers are stopped, and their gigabytes deleted."""
    before = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _running(
    argv: tuple[str, ...], ready: Callable[[], bool], folder: Path, stop: int, identity: object
) -> Iterator[None]:
    log = folder / f"{Path(argv[0]).name}.log"
    options = identity if isinstance(identity, dict) else {}
    with log.open("ab") as out:
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out, **options)
    try:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not ready():
            if process.poll() is not None or time.monotonic() > deadline:
                last = log.read_text(errors="replace").strip().splitlines()[-1:]
                raise OpsError(f"{Path(argv[0]).name} did not start: {' '.join(last)}")
            time.sleep(0.05)
        yield
    finally:
        process.send_signal(stop)
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
