"""Where the agent of this host listens, for ``clusterwatch-run`` and ``attach()``.

In: environment, ``endpoints.json`` in a state folder. Out: path of the hook socket.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from .socket_path import short_socket_path

INSTALLED_STATE = Path("/var/lib/clusterwatch")
FILE = "endpoints.json"
FILE_MAX_BYTES = 65_536


def hook_socket(environ: Mapping[str, str]) -> str | None:
    """CLUSTERWATCH_HOOK_SOCKET, else the ``hook_socket`` of the first state folder that names one.

    Folders: CLUSTERWATCH_STATE_DIR alone where it is set; else the checkout's ``.clusterwatch`` and
    ``/var/lib/clusterwatch``.
    """
    given = environ.get("CLUSTERWATCH_HOOK_SOCKET", "")
    if given:
        return str(short_socket_path(Path(given)))  # where the agent listens when that path is too long
    for folder in state_folders(environ):
        found = _read(folder / FILE)
        if found is not None:
            return found
    return None


def state_folders(environ: Mapping[str, str]) -> list[Path]:
    """Folders that may hold ``endpoints.json``, the most particular first."""
    chosen = environ.get("CLUSTERWATCH_STATE_DIR", "")
    if chosen:
        return [Path(chosen)]
    root = checkout()
    return [*([root / ".clusterwatch"] if root is not None else []), INSTALLED_STATE]


def checkout() -> Path | None:
    """The checkout this file lies in, None when installed."""
    root = Path(__file__).resolve().parents[2]
    return root if (root / "pyproject.toml").is_file() else None


def _read(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            found = json.loads(file.read(FILE_MAX_BYTES))
    except (OSError, ValueError):
        return None
    socket_path = found.get("hook_socket") if isinstance(found, dict) else None
    return socket_path if isinstance(socket_path, str) and socket_path and os.sep in socket_path else None
