"""The state folder: one place for data, secrets, sockets and logs, with rights that hold on a shared machine.

In: a path. Out: folders (0711 for the state folder, 0700 below), secrets (0600), sockets short enough for the
kernel. Rights of folders that are not ours are never changed.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import stat
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clusterwatch.ops.errors import OpsError
from collectors.hook.socket_path import short_socket_path

STATE_FOLDER_MODE = 0o711
PRIVATE_FOLDER_MODE = 0o700
SECRET_MODE = 0o600
PUBLIC_FILE_MODE = 0o644


@dataclass(frozen=True, slots=True)
class StateFolder:
    """A state folder that exists, belongs to this user and can be written."""

    root: Path

    @classmethod
    def open(cls, root: Path) -> StateFolder:
        """Makes or checks the folder.

        Raises:
            OpsError: it is another user's, no folder, on a read-only or full disk, or the path is too long.
        """
        root = root.absolute()
        with explained(f"the state folder {root}"):
            created = not root.exists()
            root.mkdir(parents=True, exist_ok=True)
            owner_uid = root.stat().st_uid
            if owner_uid != os.geteuid():
                raise OpsError(
                    f"The state folder {root} belongs to user id {owner_uid}, you are {os.geteuid()}: "
                    "start as its owner or set CLUSTERWATCH_STATE_DIR to a folder of your own."
                )
            if created or stat.S_IMODE(root.stat().st_mode) != STATE_FOLDER_MODE:
                root.chmod(STATE_FOLDER_MODE)
            _probe_write(root)
        return cls(root)

    def folder(self, name: str) -> Path:
        """A private child folder (0700), made when missing."""
        path = self.root / name
        with explained(f"the folder {path}"):
            path.mkdir(mode=PRIVATE_FOLDER_MODE, exist_ok=True)
            if path.stat().st_uid == os.geteuid():
                path.chmod(PRIVATE_FOLDER_MODE)
        return path

    def secret_path(self, name: str) -> Path:
        """Where the secret `name` lies, whether it exists or not."""
        return self.folder("secrets") / name

    def secret(self, name: str, make: Callable[[], str] | None = None) -> str:
        """Reads the secret `name`, made once (256 random bits unless `make` is given) and kept 0600."""
        path = self.secret_path(name)
        if path.exists():
            return path.read_text(encoding="utf-8").strip()
        value = make() if make else secrets.token_urlsafe(32)
        write_file(path, value + "\n", SECRET_MODE)
        return value

    def write_json(self, name: str, value: Mapping[str, Any], mode: int = SECRET_MODE) -> Path:
        """Writes one JSON file of the folder so that a reader sees the old or the new one, never half."""
        path = self.root / name
        write_file(path, json.dumps(value, indent=1) + "\n", mode)
        return path

    def read_json(self, name: str) -> dict[str, Any] | None:
        """Reads one JSON object of the folder; None if it is not there or was damaged."""
        try:
            value = json.loads((self.root / name).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return value if isinstance(value, dict) else None


def write_file(path: Path, text: str, mode: int) -> None:
    """Replaces a file at once, with these rights from its first byte on."""
    with explained(f"the file {path}"):
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                os.fchmod(file.fileno(), mode)
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            Path(name).replace(path)
        except OSError:
            Path(name).unlink(missing_ok=True)
            raise


def socket_folder(preferred: Path, longest_name: str, owner: tuple[int, int] | None = None) -> Path:
    """A 0700 folder for a unix socket: `preferred`, or a short one where that path would be too long.

    Args:
        preferred: where the socket should lie.
        longest_name: the longest file name that will be bound there.
        owner: user and group id of the process that binds; None: this process.
    Raises:
        OpsError: the short folder exists and belongs to somebody else.
    """
    folder = short_socket_path(preferred / longest_name).parent
    wanted_uid, wanted_gid = owner or (os.geteuid(), os.getegid())
    with explained(f"the socket folder {folder}"):
        folder.mkdir(mode=PRIVATE_FOLDER_MODE, exist_ok=True)
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid not in (wanted_uid, os.geteuid()):
            raise OpsError(
                f"The socket folder {folder} is not ours: remove it or set a shorter state folder."
            )
        if found.st_uid != wanted_uid:
            os.chown(folder, wanted_uid, wanted_gid, follow_symlinks=False)
        folder.chmod(PRIVATE_FOLDER_MODE)
    return folder


@contextlib.contextmanager
def explained(what: str) -> Any:
    """Turns the usual file-system faults about `what` into one line that says what to do."""
    try:
        yield
    except OSError as fault:
        raise OpsError(_explanation(fault, what)) from fault


def _explanation(fault: OSError, what: str) -> str:
    reasons = {
        errno.EROFS: "is on a read-only disk: set CLUSTERWATCH_STATE_DIR to a folder that can be written",
        errno.ENOSPC: "is on a full disk: free some space or set CLUSTERWATCH_STATE_DIR to another disk",
        errno.EDQUOT: "is over its disk quota: free some space or set CLUSTERWATCH_STATE_DIR to another disk",
        errno.EACCES: "may not be used by this user: set CLUSTERWATCH_STATE_DIR to a folder of your own",
        errno.EPERM: "may not be used by this user: set CLUSTERWATCH_STATE_DIR to a folder of your own",
        errno.ENAMETOOLONG: "has a path that is too long: set CLUSTERWATCH_STATE_DIR to a shorter one",
        errno.ENOTDIR: "lies below something that is no folder: set CLUSTERWATCH_STATE_DIR to another path",
        errno.EEXIST: "is in the way, it is not a folder: remove it or set CLUSTERWATCH_STATE_DIR",
    }
    reason = reasons.get(fault.errno or 0, f"cannot be used: {fault.strerror or fault}")
    return f"{what[0].upper()}{what[1:]} {reason}."


def _probe_write(root: Path) -> None:
    """Writes and removes 4 KiB: an empty file can be made on a full disk, a page cannot."""
    with tempfile.NamedTemporaryFile(dir=root, prefix=".probe.") as file:
        file.write(b"\0" * 4096)
        file.flush()
        os.fsync(file.fileno())
