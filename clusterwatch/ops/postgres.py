"""An embedded PostgreSQL: initialised once, on a unix socket only, with scram, checksums and fsync.

In: a state folder and binaries. Out: the command that runs the server in the foreground (a supervisor or a
test owns the process), a readiness check, the URL the product connects with.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import psycopg
from psycopg import sql

from clusterwatch.ops.account import Account, can_reach, server_account
from clusterwatch.ops.binaries import Binaries, find_postgres
from clusterwatch.ops.errors import OpsError, ServerFailed
from clusterwatch.ops.proc import all_processes, process_cwd, send_signal
from clusterwatch.ops.state import SECRET_MODE, StateFolder, explained, socket_folder
from collectors.config import INSTALLED_STATE_DIR

PORT = 5432  # only a part of the socket's name: no TCP port is opened
ADMIN_ROLE = "clusterwatch_admin"
APP_ROLE = "clusterwatch"
DATABASE = "clusterwatch"
SOCKET_NAME = f".s.PGSQL.{PORT}"
STOP_SIGNAL = signal.SIGINT  # "fast" shutdown: SIGTERM would wait for every client (PostgreSQL manual 18.5)
INITDB_TIMEOUT_S = 120
LEFTOVER_GRACE_S = 10.0


@dataclass(frozen=True, slots=True)
class PostgresServer:
    """A planned server: everything needed to run it and to reach it."""

    binaries: Binaries
    home: Path
    socket_dir: Path
    account: Account | None
    admin_password: str
    app_password: str

    @property
    def data_dir(self) -> Path:
        """The data folder (PGDATA)."""
        return self.home / "data"

    def argv(self, shared_buffers_mb: int = 128) -> tuple[str, ...]:
        """The foreground command. Settings are given here, not in a file, so that an upgrade changes them."""
        settings = {
            "listen_addresses": "",
            "unix_socket_directories": str(self.socket_dir),
            "unix_socket_permissions": "0700",
            "port": str(PORT),
            "max_connections": "120",
            "shared_buffers": f"{shared_buffers_mb}MB",
            "fsync": "on",
            "synchronous_commit": "on",
            "full_page_writes": "on",
            "jit": "off",
            "timezone": "UTC",
            "log_timezone": "UTC",
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        return (str(self.binaries.folder / "postgres"), "-D", str(self.data_dir), *options)

    def url(self) -> str:
        """The URL of the product's own database, as its own role."""
        return self._url(APP_ROLE, self.app_password, DATABASE)

    def admin_url(self) -> str:
        """The URL of the maintenance database, as superuser."""
        return self._url(ADMIN_ROLE, self.admin_password, "postgres")

    def _url(self, role: str, password: str, database: str) -> str:
        return f"postgresql://{role}:{quote(password)}@/{database}?host={quote(str(self.socket_dir))}"

    def is_ready(self) -> bool:
        """Whether the server answers a query now."""
        try:
            with psycopg.connect(self.admin_url(), connect_timeout=3) as connection:
                connection.execute("select 1")
        except psycopg.OperationalError:
            return False
        return True

    def bring_up(self) -> bool:
        """Whether the server answers and holds the product's database, which is made when missing."""
        if not self.is_ready():
            return False
        self.ensure_database()
        return True

    def ensure_database(self) -> None:
        """Makes the product's role and database; safe to repeat.

        The role may create databases (a restore and the tests need it) but is no superuser.
        """
        with psycopg.connect(self.admin_url(), autocommit=True, connect_timeout=10) as connection:
            role, database = sql.Identifier(APP_ROLE), sql.Identifier(DATABASE)
            known = connection.execute("select 1 from pg_roles where rolname = %s", (APP_ROLE,)).fetchone()
            verb = sql.SQL("alter" if known else "create")
            connection.execute(
                sql.SQL("{} role {} login createdb password {}").format(
                    verb, role, sql.Literal(self.app_password)
                )
            )
            if not connection.execute("select 1 from pg_database where datname = %s", (DATABASE,)).fetchone():
                connection.execute(sql.SQL("create database {} owner {}").format(database, role))


def plan_postgres(state: StateFolder, environ: Mapping[str, str]) -> PostgresServer:
    """Decides binaries, account, folders and passwords; cheap, initialises and starts nothing.

    Raises:
        OpsError: no binaries or no place.
    """
    binaries = find_postgres(environ)
    account = server_account()
    home = _home(state, account)
    return PostgresServer(
        binaries=_reachable(binaries, home, account),
        home=home,
        socket_dir=socket_folder(home / "run", SOCKET_NAME, (account.uid, account.gid) if account else None),
        account=account,
        admin_password=state.secret("postgres_admin_password"),
        app_password=state.secret("postgres_password"),
    )


def prepare_postgres(server: PostgresServer) -> None:
    """Makes a planned server ready to run: the data folder is there and no leftover is in the way.

    Raises:
        OpsError: the data is of another version, or a server that we may not stop still holds it.
    """
    if (server.data_dir / "PG_VERSION").exists():
        _check_data_version(server.data_dir, server.binaries)
        clear_leftover(server.data_dir)
    else:
        _initialise(server)


def clear_leftover(data_dir: Path, grace_s: float = LEFTOVER_GRACE_S) -> None:
    """Stops what a killed supervisor left running on this data folder and removes a stale lock file.

    A server process of PostgreSQL works inside its data folder, so only processes found there are signalled.
    The lock file alone proves nothing: after a reboot its process id may belong to anybody.

    Raises:
        ServerFailed: a process of that server does not stop.
    """
    lock = data_dir / "postmaster.pid"
    if not lock.exists():
        return
    deadline = time.monotonic() + grace_s
    for pid in _processes_in(data_dir):
        if str(pid) == lock.read_text(encoding="utf-8").partition("\n")[0].strip():
            send_signal(pid, STOP_SIGNAL)
    while running := _processes_in(data_dir):
        if time.monotonic() > deadline + grace_s:
            raise ServerFailed(f"PostgreSQL process {running[0]} on {data_dir} does not stop.")
        if time.monotonic() > deadline:
            for pid in running:
                send_signal(pid, signal.SIGQUIT)  # immediate shutdown; SIGKILL would strand its children
        time.sleep(0.05)
    lock.unlink(missing_ok=True)


def _processes_in(data_dir: Path) -> list[int]:
    """The postmaster and its children; somebody's shell in that folder is none of them."""
    wanted = data_dir.resolve()
    return [p.pid for p in all_processes() if p.name == "postgres" and process_cwd(p.pid) == wanted]


def _home(state: StateFolder, account: Account | None) -> Path:
    """The server's folder: `postgres` in the state folder, else (root's home is closed) below /var/lib."""
    if account is None:
        return state.folder("postgres")
    if can_reach(state.root / "postgres", account):
        home = state.root / "postgres"
    else:
        known = state.read_json("postgres-home.json") or {}
        home = Path(known.get("path") or INSTALLED_STATE_DIR / f"postgres-{secrets.token_hex(6)}")
        with explained(f"the folder {home.parent}"):
            home.parent.mkdir(parents=True, exist_ok=True, mode=0o711)
        if not can_reach(home, account):
            raise OpsError(f"User {account.name} can reach neither {state.root} nor {home.parent}.")
        state.write_json("postgres-home.json", {"path": str(home)})
    with explained(f"the folder {home}"):
        home.mkdir(mode=0o700, exist_ok=True)
        os.chown(home, account.uid, account.gid)
    return home


def _reachable(binaries: Binaries, home: Path, account: Account | None) -> Binaries:
    """The same binaries, copied beside the data where the account may not read the virtual environment."""
    if can_reach(binaries.folder / "postgres", account):
        return binaries
    install = binaries.folder.parent
    copy = home / f"postgresql-{binaries.version}"
    if not copy.exists():
        partial = copy.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        with explained(f"the copy of PostgreSQL in {copy}"):
            shutil.copytree(install, partial, symlinks=True)
            partial.chmod(0o755)
            partial.rename(copy)
    return Binaries(copy / "bin", binaries.origin, binaries.version)


def _check_data_version(data_dir: Path, binaries: Binaries) -> None:
    written = (data_dir / "PG_VERSION").read_text(encoding="utf-8").strip()
    if written != str(binaries.major):
        raise OpsError(
            f"{data_dir} was written by PostgreSQL {written}, the binaries are {binaries.version}: "
            f"set CLUSTERWATCH_PG_BIN to a PostgreSQL {written}, or move the folder away to start empty."
        )


def _initialise(server: PostgresServer) -> None:
    """Runs initdb beside the final place and renames, so that a kill half-way leaves nothing half-made."""
    home = server.home
    partial = home / "data.partial"
    password_file = home / "initial-password"
    shutil.rmtree(partial, ignore_errors=True)
    shutil.rmtree(server.data_dir, ignore_errors=True)
    with explained(f"the folder {home}"):
        password_file.touch(mode=SECRET_MODE)
        password_file.write_text(server.admin_password, encoding="utf-8")
        if server.account:
            os.chown(password_file, server.account.uid, server.account.gid)
    command = [
        str(server.binaries.folder / "initdb"),
        *("-D", str(partial), "-U", ADMIN_ROLE, "--pwfile", str(password_file)),
        *("--auth=scram-sha-256", "--encoding=UTF8", "--locale=C", "--data-checksums"),
    ]
    identity = server.account.identity() if server.account else {}
    try:
        subprocess.run(
            command,
            check=True,
            capture_output=True,
            text=True,
            timeout=INITDB_TIMEOUT_S,
            cwd=home,
            **identity,
        )
        partial.rename(server.data_dir)
    except subprocess.CalledProcessError as fault:
        lines = [line for line in fault.stderr.splitlines() if "error" in line.lower()] or [
            fault.stderr.strip()
        ]
        raise ServerFailed(f"PostgreSQL could not be initialised in {home}: {lines[-1][:300]}") from fault
    except (OSError, subprocess.TimeoutExpired) as fault:
        raise ServerFailed(f"PostgreSQL could not be initialised in {home}: {fault}") from fault
    finally:
        with contextlib.suppress(FileNotFoundError):
            password_file.unlink()
