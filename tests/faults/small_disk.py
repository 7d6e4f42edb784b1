"""A disk of a chosen size for PostgreSQL's data, which a test can fill up and free again."""

from __future__ import annotations

import errno
import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CHUNK = bytes(64 * 1024)


class CannotMount(Exception):
    """This process may not mount a file system of its own."""


class SmallDisk:
    """A tmpfs below ``state/postgres``."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self._place = state / "postgres"
        self._filler = self._place / "filler"

    @property
    def free_bytes(self) -> int:
        found = os.statvfs(self._place)
        return found.f_bavail * found.f_frsize

    def fill(self) -> None:
        """Takes every free byte; again: those that were freed since."""
        with self._filler.open("ab", buffering=0) as file:
            try:
                while True:
                    file.write(CHUNK)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise

    def free(self) -> None:
        """Gives back what ``fill`` took."""
        self._filler.unlink()


@contextmanager
def small_disk(size_mb: int) -> Iterator[SmallDisk]:
    """Mounts one for as long as the caller is inside. Raises ``CannotMount``."""
    with tempfile.TemporaryDirectory(prefix="cw-disk-", ignore_cleanup_errors=True) as folder:
        # The server's own account must get through to its data.
        Path(folder).chmod(0o711)
        disk = SmallDisk(Path(folder) / "state")
        place = disk.state / "postgres"
        place.mkdir(parents=True)
        mount = ["mount", "-t", "tmpfs", "-o", f"size={size_mb}m,mode=0700", "tmpfs", str(place)]
        done = subprocess.run(mount, capture_output=True, text=True)
        if done.returncode != 0:
            raise CannotMount(done.stderr.strip())
        try:
            yield disk
        finally:
            subprocess.run(["umount", "--lazy", str(place)], check=True)
