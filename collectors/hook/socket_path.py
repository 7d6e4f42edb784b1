"""Where a unix socket lies when its own path would be too long. Standard library only; both ends use it."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

SOCKET_PATH_MAX_BYTES = 90
"""sun_path holds 108 bytes with its closing zero (unix(7)); some clients append a suffix."""


def short_socket_path(path: Path) -> Path:
    """``path``, or one in a short folder of this user's when a unix socket could not be bound there.

    Both ends must compute the same: the folder is named by user id and a hash of the long folder.
    """
    if len(os.fsencode(path)) <= SOCKET_PATH_MAX_BYTES:
        return path
    digest = hashlib.sha256(os.fsencode(path.parent)).hexdigest()[:12]
    return _short_base() / f"clusterwatch-{os.geteuid()}-{digest}" / path.name


def _short_base() -> Path:
    """/run for root, the user's own runtime folder, else /tmp."""
    if os.geteuid() == 0 and os.access("/run", os.W_OK):
        return Path("/run")
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if runtime and len(runtime) < 40 and os.access(runtime, os.W_OK):
        return Path(runtime)
    return Path("/tmp")  # noqa: S108  the owner and kind of the folder are checked before use
