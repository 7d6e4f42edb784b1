"""The account PostgreSQL runs as: it refuses to run as root, so root lends it an existing, powerless user.

No user is added and no folder that is not ours is opened; where the account cannot reach the state folder or
the binaries, they are put where it can.
"""

from __future__ import annotations

import os
import pwd
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from clusterwatch.ops.errors import OpsError


class SpawnIdentity(TypedDict, total=False):
    """The keyword arguments of `subprocess.Popen` that change who a child is."""

    user: int
    group: int
    extra_groups: list[int]


@dataclass(frozen=True, slots=True)
class Account:
    """An existing user of this machine."""

    name: str
    uid: int
    gid: int

    def identity(self) -> SpawnIdentity:
        """What makes a child run as this account, with no group besides its own."""
        return {"user": self.uid, "group": self.gid, "extra_groups": []}


def server_account() -> Account | None:
    """Who PostgreSQL runs as: None (ourselves) for a plain user; for root `postgres`, else `nobody`.

    Raises:
        OpsError: we are root and neither user exists.
    """
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        if entry.pw_uid != 0:
            return Account(name, entry.pw_uid, entry.pw_gid)
    raise OpsError(
        "PostgreSQL cannot run as root and there is no user postgres or nobody: start as a plain user."
    )


def can_reach(path: Path, account: Account | None) -> bool:
    """Whether the account may enter every folder above `path`; one not there yet will be ours to open."""
    if account is None:
        return True
    return all(_may_enter(folder, account) for folder in path.absolute().parents if folder.exists())


def _may_enter(folder: Path, account: Account) -> bool:
    found = folder.stat()
    if found.st_uid == account.uid:
        return bool(found.st_mode & stat.S_IXUSR)
    if found.st_gid == account.gid:
        return bool(found.st_mode & stat.S_IXGRP)
    return bool(found.st_mode & stat.S_IXOTH)
