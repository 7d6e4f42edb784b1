"""Writing a report's file: whole or not at all, and never over anything but a plain file."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import IO

MODE = 0o666
"""Before the umask, as a shell's ``>`` would make it."""


class TargetError(Exception):
    """A file that cannot be written. ``missing``: its folder does not exist."""

    def __init__(self, path: Path, reason: str, missing: bool = False) -> None:
        super().__init__(f"{path} cannot be written: {reason}")
        self.missing = missing


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """A file that takes the place of ``path`` when the block ends well, and leaves nothing behind otherwise.

    Raises:
        TargetError: the folder is missing, the place is taken by something else, or the disk is full.
    """
    target = path.resolve()
    if target.exists() and not target.is_file():
        raise TargetError(path, "that place is a folder, pipe or device, not a file")
    if not target.parent.is_dir():
        raise TargetError(path, f"there is no folder {path.parent}", missing=True)
    part = target.with_name(f".{target.name[:100]}.{secrets.token_hex(6)}.part")
    try:
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, MODE)
        with os.fdopen(descriptor, "wb") as file:
            yield file
        part.replace(target)
    except OSError as error:
        raise TargetError(path, error.strerror or str(error)) from error
    finally:
        part.unlink(missing_ok=True)
