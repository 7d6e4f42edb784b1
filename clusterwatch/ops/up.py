"""`clusterwatch up`: from a state folder and a few settings to a running product.

Takes the lock, clears what an earlier run left, plans the servers, writes `endpoints.json`, runs the table.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from clusterwatch.ops.errors import OpsError
from clusterwatch.ops.postgres import STOP_SIGNAL, PostgresServer, plan_postgres, prepare_postgres
from clusterwatch.ops.probes import bind_fault
from clusterwatch.ops.processes import Address, ProcessSpec, product_processes
from clusterwatch.ops.recovery import running_supervisor, stop_leftovers
from clusterwatch.ops.stamp import is_bootstrapped
from clusterwatch.ops.state import PUBLIC_FILE_MODE, SECRET_MODE, StateFolder, write_file
from clusterwatch.ops.supervisor import Supervisor
from clusterwatch.ops.valkey import ValkeyServer, plan_valkey
from collectors.config import default_hook_socket

ENDPOINTS_FILE = "endpoints.json"
LOCK_FILE = "supervisor.lock"
DETACHED_START_LIMIT_S = 150.0
# What is kept in files of the state folder and must not stand in a process environment as well.
SECRET_VARIABLES = frozenset(
    f"CLUSTERWATCH_{name}" for name in ("DATABASE_URL", "VALKEY_URL", "SECRET_KEY", "ADMIN_PASSWORD", "TOKEN")
)
STOP_LIMIT_S = 60.0


@dataclass(frozen=True, slots=True)
class Settings:
    """What a person may choose. The URLs are those clients use, the addresses those we bind.

    `database_url`, `valkey_url`: servers of their own, "" for the embedded ones. `secrets`: values given for
    `secret_key` and `admin_password`; what is not given is made once and kept.
    """

    web: Address
    gateway: Address
    public_url: str
    gateway_url: str
    demo_gpus: int
    database_url: str = ""
    valkey_url: str = ""
    secrets: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything decided before the first process is started."""

    specs: tuple[ProcessSpec, ...]
    env: Mapping[str, str]


def make_plan(state: StateFolder, settings: Settings, environ: Mapping[str, str]) -> Plan:
    """Decides servers, URLs, secrets and the environment of every process.

    Secrets go into files of the state folder; no process carries one in its environment.
    """
    postgres = None if settings.database_url else plan_postgres(state, environ)
    valkey = None if settings.valkey_url else plan_valkey(state, environ)
    _write_secret(state, "database_url", settings.database_url or (postgres.url() if postgres else ""))
    _write_secret(state, "valkey_url", settings.valkey_url or (valkey.url() if valkey else ""))
    for name, size_bytes in (("secret_key", 48), ("admin_password", 12)):
        given = settings.secrets.get(name)
        if given:
            _write_secret(state, name, given)
        else:
            state.secret(name, partial(secrets.token_urlsafe, size_bytes))
    servers = _server_specs(postgres, valkey)
    product = product_processes(settings.web, settings.gateway, settings.demo_gpus)
    if postgres and is_bootstrapped(state, postgres.home):
        product = tuple(spec for spec in product if spec.name != "bootstrap")
    names = tuple(spec.name for spec in servers)
    specs = servers + tuple(replace(spec, after=(*names, *spec.after)) for spec in product)
    return Plan(specs, _environment(state, settings, environ, postgres))


def run_foreground(state: StateFolder, settings: Settings, environ: Mapping[str, str]) -> int:
    """Runs the product until it is told to stop.

    Raises:
        OpsError: a port is taken, another start is going on, or a required process cannot be started.
    """
    with _lock(state):
        count = stop_leftovers(state)
        if count:
            print(f"Stopped {count} processes that an earlier run had left.", flush=True)
        _check_ports(settings)
        plan = make_plan(state, settings, environ)
        _write_endpoints(state, settings)
        supervisor = Supervisor(state, plan.specs, plan.env, secrets.token_hex(16), say=_say)
        supervisor.extra = {"web_url": settings.public_url}
        supervisor.install_signals()
        try:
            if supervisor.start():
                print(welcome(state, settings.public_url), flush=True)
                supervisor.watch()
        finally:
            if supervisor.phase not in ("failed", "stopped"):
                print("Stopping ...", flush=True)
                supervisor.stop()
        print("Stopped.", flush=True)
    return 0


def run_detached(state: StateFolder, argv: list[str]) -> int:
    """Starts the same in the background and returns when it is ready.

    Raises:
        OpsError: it ended before it was ready; the line is its own.
    """
    log_path = state.folder("logs") / "supervisor.log"
    with log_path.open("ab") as log:
        start = log.tell()
        child = subprocess.Popen(
            [sys.executable, "-m", "clusterwatch.cli.main", "up", *argv],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1", "CLUSTERWATCH_STATE_DIR": str(state.root)},
        )
    deadline_s = time.monotonic() + DETACHED_START_LIMIT_S
    while time.monotonic() < deadline_s:
        if child.poll() is not None:
            with log_path.open("rb") as log:
                log.seek(start)
                lines = log.read().decode("utf-8", "replace").strip().splitlines()
            raise OpsError(
                lines[-1].removeprefix("clusterwatch: ") if lines else f"It ended at once: {log_path}"
            )
        status = running_supervisor(state)
        if status and status["phase"] == "ready" and status["supervisor"]["pid"] == child.pid:
            print(welcome(state, str(status["web_url"])))
            return 0
        time.sleep(0.1)
    raise OpsError(
        f"Not ready after {DETACHED_START_LIMIT_S:.0f} s; see `clusterwatch status` and {log_path}."
    )


def await_ready(state: StateFolder) -> dict[str, Any]:
    """The status of the supervisor that already runs, once it is ready.

    Raises:
        OpsError: it is not ready in time, or ended meanwhile.
    """
    deadline_s = time.monotonic() + DETACHED_START_LIMIT_S
    while time.monotonic() < deadline_s:
        status = running_supervisor(state)
        if status is None:
            raise OpsError("The supervisor that was running has just ended: start again.")
        if status["phase"] == "ready":
            return status
        time.sleep(0.1)
    raise OpsError("It runs, but is not ready: see `clusterwatch status`.")


def welcome(state: StateFolder, url: str) -> str:
    """What a person needs after the start."""
    return (
        f"clusterwatch runs at {url}\n"
        f"  user admin, password {state.secret('admin_password')}\n"
        f"  state and logs in {state.root}; stop with Ctrl-C or `make down`"
    )


def stop_running(state: StateFolder) -> int:
    """Stops the supervisor of this state folder and everything it left.

    Returns:
        How many supervisors and leftovers were stopped.
    Raises:
        OpsError: it does not end.
    """
    status = running_supervisor(state)
    if status is None:
        return stop_leftovers(state)
    pid = int(status["supervisor"]["pid"])
    os.kill(pid, 15)
    deadline_s = time.monotonic() + STOP_LIMIT_S
    while running_supervisor(state) is not None:
        if time.monotonic() > deadline_s:
            raise OpsError(f"The supervisor (process {pid}) does not stop.")
        time.sleep(0.05)
    return 1 + stop_leftovers(state)


def _server_specs(postgres: PostgresServer | None, valkey: ValkeyServer | None) -> tuple[ProcessSpec, ...]:
    specs: list[ProcessSpec] = []
    if postgres:
        server = postgres
        specs.append(
            ProcessSpec(
                "postgres",
                server.argv(_shared_buffers_mb()),
                ready=server.bring_up,
                prepare=lambda: prepare_postgres(server),
                identity=server.account.identity() if server.account else {},
                required=True,
                stop_signal=STOP_SIGNAL,
                stop_grace_s=30.0,
            )
        )
    if valkey:
        specs.append(ProcessSpec("valkey", valkey.argv(), ready=valkey.is_ready, required=True))
    return tuple(specs)


def _environment(
    state: StateFolder, settings: Settings, environ: Mapping[str, str], postgres: PostgresServer | None
) -> dict[str, str]:
    """The environment of every process: ours without secrets and without what would lead it elsewhere."""
    inherited = {
        name: value
        for name, value in environ.items()
        if not name.startswith(("PG", "DJANGO_")) and name not in SECRET_VARIABLES
    }
    own = {
        "STATE_DIR": str(state.root),
        "DATABASE_URL_FILE": str(state.secret_path("database_url")),
        "VALKEY_URL_FILE": str(state.secret_path("valkey_url")),
        "SECRET_KEY_FILE": str(state.secret_path("secret_key")),
        "ADMIN_PASSWORD_FILE": str(state.secret_path("admin_password")),
        "URL": settings.public_url,
        "BIND": str(settings.web),
        "GATEWAY_BIND": str(settings.gateway),
        "GATEWAY_URL": settings.gateway_url,
        "POSTGRES_HOME": str(postgres.home) if postgres else "",
    }
    return (
        inherited | {f"CLUSTERWATCH_{name}": value for name, value in own.items()} | {"PYTHONUNBUFFERED": "1"}
    )


def _write_endpoints(state: StateFolder, settings: Settings) -> None:
    """Where a node agent, a training job and a browser of this machine find us; holds no secret."""
    endpoints = {
        "web_url": settings.public_url,
        "gateway_url": settings.gateway_url,
        "hook_socket": str(default_hook_socket(state.root)),
        "enrolment_token_file": str(state.secret_path("enrolment_token")),
    }
    state.write_json(ENDPOINTS_FILE, endpoints, PUBLIC_FILE_MODE)


def _write_secret(state: StateFolder, name: str, value: str) -> None:
    path = state.secret_path(name)
    if not path.exists() or path.read_text(encoding="utf-8").strip() != value:
        write_file(path, value + "\n", SECRET_MODE)


def _check_ports(settings: Settings) -> None:
    """Says in one line which port is taken, before anything is started."""
    for variable, address in (("BIND", settings.web), ("GATEWAY_BIND", settings.gateway)):
        fault = bind_fault(address.host, address.port)
        if fault is None:
            continue
        why = {
            errno.EADDRINUSE: "is in use by another program",
            errno.EACCES: "may not be bound by this user",
            errno.EADDRNOTAVAIL: "is no address of this machine",
        }.get(fault, os.strerror(fault))
        raise OpsError(
            f"Port {address.port} ({address}) {why}: set CLUSTERWATCH_{variable}=HOST:PORT to another one."
        )


def _shared_buffers_mb() -> int:
    """A sixteenth of the memory, between 128 MiB and 1 GiB: the product shares the machine."""
    memory_mb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20
    return max(128, min(1024, memory_mb // 16))


@contextmanager
def _lock(state: StateFolder) -> Iterator[None]:
    """Held while a supervisor lives; the kernel releases it however the supervisor ends."""
    path: Path = state.root / LOCK_FILE
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OpsError("Another start or stop of this state folder is going on.") from None
        yield


def _say(line: str) -> None:
    print(line, flush=True)
