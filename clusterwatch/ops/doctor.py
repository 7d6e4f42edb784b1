"""`doctor`: looks at each thing the product stands on and says what is wrong and what to do.

Each check is a function that returns one `Finding`; a check that cannot tell says UNKNOWN, never OK.
"""

from __future__ import annotations

import enum
import importlib.util
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from clusterwatch.ops.account import can_reach, server_account
from clusterwatch.ops.binaries import find_postgres, find_valkey
from clusterwatch.ops.errors import OpsError
from clusterwatch.ops.probes import bind_fault
from clusterwatch.ops.processes import Address
from clusterwatch.ops.recovery import running_supervisor
from clusterwatch.ops.state import StateFolder
from clusterwatch.ops.status import UP_STATES, read_status

OLDEST_PYTHON = (3, 11)
LITTLE_DISK_BYTES = 5 * 2**30
TOO_LITTLE_DISK_BYTES = 500 * 2**20
LITTLE_MEMORY_BYTES = 2 * 2**30


class Level(enum.IntEnum):
    """How bad a finding is; the number is the exit code."""

    OK = 0
    WARN = 1
    CRIT = 2
    UNKNOWN = 3


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check saw."""

    check: str
    level: Level
    text: str


@dataclass(frozen=True, slots=True)
class Subject:
    """What is looked at."""

    state_dir: Path
    web: Address
    gateway: Address
    environ: Mapping[str, str]


def examine(subject: Subject) -> list[Finding]:
    """Runs every check, in the order a start would meet them. Opens nothing and changes nothing."""
    return [_guarded(check, subject) for check in CHECKS]


def exit_code(findings: Iterable[Finding]) -> int:
    """2 if something is CRIT, else 1 for a WARN, else 3 for an UNKNOWN, else 0."""
    levels = {finding.level for finding in findings}
    order = (Level.CRIT, Level.WARN, Level.UNKNOWN)
    return int(next((level for level in order if level in levels), Level.OK))


def check_python(subject: Subject) -> Finding:
    """Version and virtual environment."""
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info < OLDEST_PYTHON:
        return Finding("python", Level.CRIT, f"{version} is too old: 3.11 or newer is needed")
    if sys.prefix == sys.base_prefix:
        return Finding("python", Level.WARN, f"{version}, not in a virtual environment")
    return Finding("python", Level.OK, f"{version} in {sys.prefix}")


def check_packages(subject: Subject) -> Finding:
    """The parts of the server extra that are needed to start."""
    needed = ("django", "uvicorn", "celery", "channels", "psycopg", "redis", "numpy")
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        return Finding("packages", Level.CRIT, f"missing: {', '.join(missing)}; run make setup")
    return Finding("packages", Level.OK, "the server extra is installed")


def check_state(subject: Subject) -> Finding:
    """Owner and rights of the state folder."""
    root = subject.state_dir
    if not root.exists():
        parent = next(folder for folder in root.parents if folder.exists())
        if not os.access(parent, os.W_OK):
            return Finding("state", Level.CRIT, f"{root} cannot be made: {parent} is not writable")
        return Finding("state", Level.OK, f"{root} will be made by the first start")
    StateFolder.open(root)
    return Finding("state", Level.OK, f"{root} is ours and can be written")


def check_disk(subject: Subject) -> Finding:
    """Space where the state folder lies."""
    place = next(folder for folder in (subject.state_dir, *subject.state_dir.parents) if folder.exists())
    free_bytes = shutil.disk_usage(place).free
    text = f"{free_bytes / 2**30:.1f} GiB free at {place}"
    if free_bytes < TOO_LITTLE_DISK_BYTES:
        return Finding("disk", Level.CRIT, f"{text}: free some space")
    if free_bytes < LITTLE_DISK_BYTES:
        return Finding("disk", Level.WARN, f"{text}: enough for a trial, not for history")
    return Finding("disk", Level.OK, text)


def check_memory(subject: Subject) -> Finding:
    """Memory that can be had now (MemAvailable of /proc/meminfo)."""
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            available_bytes = int(line.split()[1]) * 1024
            text = f"{available_bytes / 2**30:.1f} GiB available"
            level = Level.OK if available_bytes > LITTLE_MEMORY_BYTES else Level.WARN
            return Finding("memory", level, text)
    return Finding("memory", Level.UNKNOWN, "the kernel does not tell")


def check_postgres(subject: Subject) -> Finding:
    """Which PostgreSQL would run, and as whom."""
    if subject.environ.get("CLUSTERWATCH_DATABASE_URL") or subject.environ.get(
        "CLUSTERWATCH_DATABASE_URL_FILE"
    ):
        return Finding("postgres", Level.OK, "a server of yours (CLUSTERWATCH_DATABASE_URL)")
    found = find_postgres(subject.environ)
    account = server_account()
    who = f", runs as {account.name}" if account else ""
    if account and not can_reach(subject.state_dir / "postgres", account):
        who += ", data below /var/lib/clusterwatch because it cannot enter the state folder"
    return Finding("postgres", Level.OK, f"{found.version} ({found.origin}: {found.folder}){who}")


def check_valkey(subject: Subject) -> Finding:
    """Which Valkey would run."""
    if subject.environ.get("CLUSTERWATCH_VALKEY_URL") or subject.environ.get("CLUSTERWATCH_VALKEY_URL_FILE"):
        return Finding("valkey", Level.OK, "a server of yours (CLUSTERWATCH_VALKEY_URL)")
    found = find_valkey(subject.environ)
    return Finding("valkey", Level.OK, f"{found.version} ({found.origin}: {found.folder})")


def check_ports(subject: Subject) -> Finding:
    """Whether the two ports are free, or ours."""
    addresses = {"CLUSTERWATCH_BIND": subject.web, "CLUSTERWATCH_GATEWAY_BIND": subject.gateway}
    if subject.state_dir.exists() and running_supervisor(StateFolder(subject.state_dir)):
        return Finding(
            "ports", Level.OK, f"{subject.web} and {subject.gateway} are served by this installation"
        )
    taken = [
        f"{address} is taken, set {variable}=HOST:PORT"
        for variable, address in addresses.items()
        if bind_fault(address.host, address.port) is not None
    ]
    if taken:
        return Finding("ports", Level.CRIT, "; ".join(taken))
    return Finding("ports", Level.OK, f"{subject.web} (web) and {subject.gateway} (gateway) are free")


def check_processes(subject: Subject) -> Finding:
    """What runs of this installation."""
    if not subject.state_dir.exists():
        return Finding("processes", Level.OK, "never started; start with make up")
    phase, rows = read_status(StateFolder(subject.state_dir))
    wrong = [f"{row.name} {row.state}" for row in rows if row.state not in UP_STATES]
    if phase == "killed":
        return Finding(
            "processes", Level.WARN, "the supervisor was killed; the next make up clears what it left"
        )
    if phase == "down":
        return Finding("processes", Level.OK, "not running; start with make up")
    if wrong:
        return Finding("processes", Level.CRIT, f"{', '.join(wrong)}; see clusterwatch status and the logs")
    return Finding("processes", Level.OK, f"{len(rows)} processes are ready")


def check_stacks(subject: Subject) -> Finding:
    """Whether py-spy may read the stacks of training processes (Yama's ptrace_scope, capabilities(7))."""
    if importlib.util.find_spec("py_spy") is None and shutil.which("py-spy", path=_own_path()) is None:
        return Finding("py-spy", Level.WARN, "not installed: stacks come from the hook only")
    if os.geteuid() == 0:
        return Finding("py-spy", Level.OK, "runs as root")
    try:
        scope = int(Path("/proc/sys/kernel/yama/ptrace_scope").read_text(encoding="ascii"))
    except FileNotFoundError:
        scope = 0  # a kernel without Yama allows it within one user
    except (OSError, ValueError):
        return Finding("py-spy", Level.UNKNOWN, "the kernel does not tell ptrace_scope")
    if scope == 0:
        return Finding("py-spy", Level.OK, "may read processes of the same user")
    return Finding("py-spy", Level.WARN, f"ptrace_scope is {scope}: stacks come from the hook only")


def check_extras(subject: Subject) -> Finding:
    """What only the example and the tests need."""
    missing = [] if importlib.util.find_spec("torch") else ["torch (make example)"]
    if not (shutil.which("chromium") or shutil.which("chromium-browser")):
        missing.append("chromium (browser tests)")
    text = f"not installed: {', '.join(missing)}" if missing else "torch and chromium are installed"
    return Finding("extras", Level.OK, text)


CHECKS: tuple[Callable[[Subject], Finding], ...] = (
    check_python,
    check_packages,
    check_state,
    check_disk,
    check_memory,
    check_postgres,
    check_valkey,
    check_ports,
    check_processes,
    check_stacks,
    check_extras,
)


def _guarded(check: Callable[[Subject], Finding], subject: Subject) -> Finding:
    """A check that meets a known fault is CRIT with its line; one that cannot look is UNKNOWN."""
    name = check.__name__.removeprefix("check_")
    try:
        return check(subject)
    except OpsError as fault:
        return Finding(name, Level.CRIT, str(fault))
    except OSError as fault:
        return Finding(name, Level.UNKNOWN, f"cannot look: {fault}")


def _own_path() -> str:
    return f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
