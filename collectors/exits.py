"""When a training process ended, and how, as far as somebody who is not its parent can know.

In: pids. Out: ``ExitStatus`` through a callback. The time comes from a pidfd. The status comes from the
zombie (/proc/PID/stat), from the kernel's memory of the pidfd (Linux 6.15), or from ``clusterwatch-run``,
the parent. Source: include/uapi/linux/pidfd.h for PIDFD_GET_INFO.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from collectors import processes
from collectors.clock import Clock

STATUS_WAIT_S: Final = 0.3
"""How long to wait for the parent to collect the process or for ``clusterwatch-run`` to report."""
_TRY_EVERY_S: Final = 0.05

_PIDFD_INFO: Final = struct.Struct("=QQ11Ii")
"""mask, cgroup id, pid, tgid, ppid, eight user and group ids, exit code: the first version, 64 bytes."""
_PIDFD_GET_INFO: Final = (3 << 30) | (_PIDFD_INFO.size << 16) | (0xFF << 8) | 11
_PIDFD_INFO_EXIT: Final = 1 << 3


@dataclass(frozen=True, slots=True)
class ExitStatus:
    """How a process ended; both None: not known."""

    t_ns: int
    exit_code: int | None = None
    signal: int | None = None

    @classmethod
    def from_wait_status(cls, t_ns: int, status: int) -> ExitStatus:
        """``status`` as wait(2) gives it."""
        if os.WIFSIGNALED(status):
            return cls(t_ns, signal=os.WTERMSIG(status))
        return cls(t_ns, exit_code=os.WEXITSTATUS(status))


def pidfd_wait_status(fd: int) -> int | None:
    """The wait status the kernel kept for a pidfd, None on kernels before 6.15 or before it was collected."""
    request = _PIDFD_INFO.pack(_PIDFD_INFO_EXIT, *[0] * 13)
    try:
        answer = fcntl.ioctl(fd, _PIDFD_GET_INFO, request)
    except OSError:
        return None
    fields = _PIDFD_INFO.unpack(answer)
    return fields[-1] if fields[0] & _PIDFD_INFO_EXIT else None


class ExitWatch:
    """Watches processes in the running event loop."""

    def __init__(self, clock: Clock, on_exit: Callable[[int, ExitStatus], None]) -> None:
        self._clock = clock
        self.on_ended: Callable[[int], None] = lambda pid: None
        """told at once that a process ended, before it is known how"""
        self._on_exit = on_exit
        self._fds: dict[int, int] = {}
        self._reported: dict[int, ExitStatus] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def watch(self, pid: int) -> None:
        """Starts to watch; a process that is already gone is reported at once."""
        if pid in self._fds:
            return
        try:
            fd = os.pidfd_open(pid)
        except ProcessLookupError:
            self._fds[pid] = -1
            self._ended(pid)
            return
        self._fds[pid] = fd
        asyncio.get_running_loop().add_reader(fd, self._ended, pid)

    def report(self, pid: int, exit_code: int | None, signal_number: int | None) -> None:
        """What ``clusterwatch-run`` says of its child; kept until the exit is seen."""
        if pid in self._fds:
            self._reported[pid] = ExitStatus(self._clock.now_ns(), exit_code, signal_number)

    async def settle(self) -> None:
        """Returns when every exit seen so far has been told; at most about ``STATUS_WAIT_S``."""
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=2 * STATUS_WAIT_S)

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        for pid in list(self._fds):
            self._forget(pid)

    def _ended(self, pid: int) -> None:
        t_ns = self._clock.now_ns()
        fd = self._fds[pid]
        if fd >= 0:
            asyncio.get_running_loop().remove_reader(fd)
        self.on_ended(pid)
        task = asyncio.get_running_loop().create_task(self._find_status(pid, fd, t_ns))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _find_status(self, pid: int, fd: int, t_ns: int) -> None:
        """Asks all three until one knows, then tells; the last frames of the hook arrive meanwhile."""
        waited_s = 0.0
        status: int | None = None
        while True:
            status = status or processes.zombie_wait_status(pid)
            if status is None and fd >= 0:
                status = pidfd_wait_status(fd)
            known = status is not None and waited_s > 0  # one pause at least: the hook's last frames
            if known or waited_s >= STATUS_WAIT_S or pid in self._reported:
                break
            await asyncio.sleep(_TRY_EVERY_S)
            waited_s += _TRY_EVERY_S
        reported = self._reported.pop(pid, None)
        if reported is not None:
            found = ExitStatus(t_ns, reported.exit_code, reported.signal)
        elif status is not None:
            found = ExitStatus.from_wait_status(t_ns, status)
        else:
            found = ExitStatus(t_ns)
        self._forget(pid)
        self._on_exit(pid, found)

    def _forget(self, pid: int) -> None:
        fd = self._fds.pop(pid, -1)
        if fd >= 0:
            asyncio.get_running_loop().remove_reader(fd)
            os.close(fd)
        self._reported.pop(pid, None)
