"""The files a source reads: the live machine, or a recorded tree that must fail where the machine failed.

A recorded tree may hold ``read_errors.json`` (path -> errno name): reading that path fails with that error. A
path that gave EINVAL is not opened again by this process, also not in a later snapshot of the same node: some
drivers answer EINVAL slowly, for ever, and write to the kernel's log each time.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

READ_MAX_BYTES: Final = 4 * 1024 * 1024
LIVE_ROOT: Final = Path("/")
_EINVAL: Final[dict[str, set[str]]] = {}
"""root -> names of files that gave EINVAL"""
_SYSFS: Final = ("sys/class/", "sys/bus/")
"""Attributes of devices; what else lies below sys (control groups, debugfs) may come in pieces."""
_PAGE_BYTES: Final = 4_096
_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
KEPT_OPEN_MAX: Final = 160
"""Descriptors of one source: the state of 64 network devices, or of 128 ports."""
_ERROR_WORDS: Final = {errno.ENOENT: "not_available", errno.EOPNOTSUPP: "eopnotsupp"}
"""Where the errno's own word is another: EOPNOTSUPP has the number of ENOTSUP."""


class Tree:
    """Files below one root. Names are relative, without a leading slash."""

    def __init__(self, root: Path = LIVE_ROOT, earlier: Tree | None = None) -> None:
        """``earlier``: the same node before, whose files that gave EINVAL are not opened again."""
        self.root = root
        self._prefix = f"{root}/" if root != LIVE_ROOT else "/"
        """joined by hand: thousands of small files are read a minute"""
        self._real_root = os.path.realpath(root)
        self._errors = self._recorded_errors()
        self.refused: set[str] = _EINVAL.setdefault(str(root), set()) if earlier is None else earlier.refused
        """names of files that gave EINVAL"""

    @property
    def is_live(self) -> bool:
        return self.root == LIVE_ROOT

    @property
    def is_paced(self) -> bool:
        """Whether looks come once a period, so that what changes slowly need not be read at each."""
        return self.is_live

    def is_due(self, last_s: float | None, at_s: float, period_s: float) -> bool:
        """Whether what is read every ``period_s``, last at ``last_s``, is read now; always without pace."""
        return last_s is None or not self.is_paced or at_s - last_s >= period_s

    def read_bytes(self, name: str, max_bytes: int = READ_MAX_BYTES) -> bytes:
        """The start of a file. Raises ``OSError``."""
        if name in self.refused:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), name)
        try:
            fd = self.open(name)
            try:
                return _read_up_to(fd, max_bytes, name.startswith(_SYSFS))
            finally:
                os.close(fd)
        except OSError as error:
            if error.errno == errno.EINVAL:
                self.refused.add(name)
            raise

    def open(self, name: str) -> int:
        """A descriptor, the caller's to close, for who reads a file in pieces. Raises ``OSError``."""
        path = self.path(name)
        if name in self._errors:
            number = self._errors[name]
            raise OSError(number, os.strerror(number), path)
        return os.open(path, _FLAGS)

    def read_text(self, name: str, max_bytes: int = READ_MAX_BYTES) -> str:
        """The start of a file as text, bad bytes replaced. Raises ``OSError``."""
        return self.read_bytes(name, max_bytes).decode("utf-8", "replace")

    def texts(self, folder: str, count_max: int, wanted: Callable[[str], bool]) -> dict[str, str | OSError]:
        """Small files of one folder of sysfs by name, in order; an error where one cannot be read.

        Of a machine they are opened beside each other, without the way to the folder each time.
        """
        names = [name for name in self.list(folder)[:count_max] if wanted(name)]
        found: dict[str, str | OSError] = {}
        try:
            at = os.open(self.path(folder), os.O_PATH | os.O_CLOEXEC) if self.is_paced else None
        except OSError:
            at = None
        try:
            for name in names:
                try:
                    found[name] = self._text_at(at, folder, name)
                except OSError as error:
                    found[name] = error
        finally:
            if at is not None:
                os.close(at)
        return found

    def _text_at(self, at: int | None, folder: str, name: str) -> str:
        """Args: ``at`` the folder's descriptor; None: by its path."""
        path = f"{folder}/{name}"
        if at is None or path in self.refused or path in self._errors:
            return self.read_text(path, _PAGE_BYTES)
        fd = os.open(name, _FLAGS, dir_fd=at)
        try:
            return os.read(fd, _PAGE_BYTES).decode("utf-8", "replace")
        except OSError as error:
            if error.errno == errno.EINVAL:
                self.refused.add(path)
            raise
        finally:
            os.close(fd)

    def list(self, name: str) -> list[str]:
        """Entries of a folder, sorted; empty when it is not there or may not be read."""
        try:
            return sorted(os.listdir(self.path(name)))  # noqa: PTH208
        except OSError:
            return []

    def exists(self, name: str) -> bool:
        """For files of /proc and /sys only: never ask this of a mount."""
        try:
            return os.path.lexists(self.path(name))
        except OSError:
            return False

    def path(self, name: str) -> str:
        """The path of a name. A link that leads out of a recorded tree is not there: never this machine.

        Raises:
            FileNotFoundError: it leads out.
        """
        path = self._prefix + name
        if not self.is_live:
            real = os.path.realpath(path)
            if not real.startswith(f"{self._real_root}/"):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return path

    def host_name(self) -> str:
        """The machine's name as the tree tells it."""
        try:
            return self.read_text("proc/sys/kernel/hostname", 1_024).strip() or "unknown"
        except OSError:
            return "unknown"

    def boot_id(self) -> str | None:
        """Which boot of the machine this is; None where it is not told."""
        try:
            return self.read_text("proc/sys/kernel/random/boot_id", 128).strip()[:64] or None
        except OSError:
            return None

    def _recorded_errors(self) -> dict[str, int]:
        if self.is_live:
            return {}
        try:
            recorded = json.loads((self.root / "read_errors.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        if not isinstance(recorded, dict):
            return {}
        return {str(name): getattr(errno, str(word), errno.EIO) for name, word in recorded.items()}


class KeptFiles:
    """Small files of one source that are read at each look, of a machine through descriptors that stay open.

    An attribute of sysfs is made anew when it is read at its start; of a device that is gone it fails. The
    name may have gone to another device: who finds the devices again forgets the files with ``close``.
    """

    def __init__(self) -> None:
        self._open: dict[str, int] = {}
        self._tree: Tree | None = None

    def text(self, tree: Tree, name: str) -> str:
        """Up to a page of a file. Raises ``OSError``."""
        if not tree.is_paced or name in tree.refused:
            return tree.read_text(name, _PAGE_BYTES)
        if tree is not self._tree:
            self.close()
            self._tree = tree
        try:
            fd = self._open.get(name)
            if fd is None:
                if len(self._open) >= KEPT_OPEN_MAX:
                    return tree.read_text(name, _PAGE_BYTES)
                fd = self._open[name] = tree.open(name)
            return os.pread(fd, _PAGE_BYTES, 0).decode("utf-8", "replace")
        except OSError:
            if name not in self._open:
                raise
            os.close(self._open.pop(name))
            return tree.read_text(name, _PAGE_BYTES)

    def close(self) -> None:
        """Forgets all."""
        while self._open:
            os.close(self._open.popitem()[1])


def reason(error: OSError) -> str:
    """The quality of what a file that cannot be read would have told."""
    number = error.errno or 0
    return _ERROR_WORDS.get(number) or errno.errorcode.get(number, "unreadable").lower()


def printable(text: str) -> str:
    """A node's text as it may be shown: what is not printable becomes a question mark."""
    return "".join(char if char.isprintable() else "?" for char in text)


def _read_up_to(fd: int, max_bytes: int, is_attribute: bool) -> bytes:
    """/proc and /sys give a page at a time, so one read is not the file.

    An attribute of sysfs is whole where it gave less than a page: many are read each second.
    """
    chunks: list[bytes] = []
    left = max_bytes
    while left > 0 and (chunk := os.read(fd, min(left, 65_536))):
        chunks.append(chunk)
        left -= len(chunk)
        if is_attribute and len(chunk) < _PAGE_BYTES:
            break
    return b"".join(chunks)
