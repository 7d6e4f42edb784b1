"""The hook's end of the agent's socket: never waits, drops when full, comes back after the agent did.

In: frames of ``protocol``. Out: bytes on a unix socket, requests of the agent. Used by the hook's thread;
``flush`` also by a dying main thread. One lock, held only over non-blocking calls.
"""

from __future__ import annotations

import contextlib
import errno
import select
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from . import protocol

QUEUE_MAX_BYTES = 256 * 1024
"""Small frames wait here while the agent is slow; beyond it they are dropped and counted."""
ANSWERS_MAX_BYTES = protocol.BLOB_MAX_BYTES + 2 * protocol.HEADER_MAX_BYTES
"""One dump of the largest size with its stacks."""
CHUNK_BYTES = 256 * 1024
RETRY_S = (1.0, 1.0, 2.0, 5.0)
"""Pause before the next try to connect; the last one repeats."""

_AGAIN = (errno.EAGAIN, errno.EWOULDBLOCK, errno.EINPROGRESS)


class Link:
    """A connection that is allowed to be absent."""

    def __init__(self, path: str, on_connect: Callable[[], list[dict[str, Any]]]) -> None:
        """Args: path of the socket; ``on_connect`` gives the frames that open each connection."""
        self._path = path
        self._on_connect = on_connect
        self._socket: socket.socket | None = None
        self._reader = protocol.Reader()
        self._out = bytearray()
        self._lock = threading.Lock()
        self._tries = 0
        self._next_try_s = 0.0
        self.dropped_count = 0

    @property
    def connected(self) -> bool:
        return self._socket is not None

    def fileno(self) -> int | None:
        return None if self._socket is None else self._socket.fileno()

    def wants_write(self) -> bool:
        return bool(self._out)

    def send(self, header: dict[str, Any], blob: bytes = b"", asked: bool = False) -> bool:
        """Queues one frame for ``pump``. Returns False when it was dropped: not connected, or no room.

        Args: ``asked`` marks an answer to the agent: it may queue up to ``ANSWERS_MAX_BYTES``.
        """
        try:
            frame = protocol.pack(header, blob)
        except (protocol.ProtocolError, TypeError, ValueError):
            self.dropped_count += 1
            return False
        with self._lock:
            room = ANSWERS_MAX_BYTES if asked else QUEUE_MAX_BYTES
            if self._socket is None or len(self._out) + len(frame) > room:
                self.dropped_count += 1
                return False
            self._out += frame
        return True

    def pump(self) -> None:
        """Writes what the socket takes now."""
        with self._lock:
            while self._socket is not None and self._out:
                try:
                    sent = self._socket.send(bytes(self._out[:CHUNK_BYTES]))
                except OSError as error:
                    if error.errno not in _AGAIN:
                        self._drop()
                    return
                del self._out[:sent]

    def receive(self) -> list[dict[str, Any]]:
        """Headers of the frames that arrived. A bad one or an end closes the connection."""
        taken = self._socket
        if taken is None:
            return []
        try:
            data = taken.recv(65536)
            if not data:
                raise ConnectionResetError
            return [header for header, _blob in self._reader.feed(data)]
        except (OSError, protocol.ProtocolError) as error:
            if not (isinstance(error, OSError) and error.errno in _AGAIN):
                self.close()
            return []

    def ensure(self) -> None:
        """Connects when it is time to try again; a fresh connection opens with ``on_connect``'s frames."""
        if self._socket is not None or time.monotonic() < self._next_try_s:
            return
        fresh = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        fresh.setblocking(False)
        try:
            fresh.connect(self._path)
        except (OSError, ValueError):
            fresh.close()
            self._next_try_s = time.monotonic() + RETRY_S[min(self._tries, len(RETRY_S) - 1)]
            self._tries += 1
            return
        with self._lock:
            self._socket, self._reader, self._out = fresh, protocol.Reader(), bytearray()
        self._tries = 0
        for header in self._on_connect():
            self.send(header, asked=True)

    def flush(self, bound_s: float) -> None:
        """Waits up to ``bound_s`` until the queue is written: for the last words of a process."""
        until = time.monotonic() + bound_s
        while self._socket is not None and self._out and time.monotonic() < until:
            self.pump()
            fd = self.fileno()
            if fd is not None and self._out:
                _wait_writable(fd, min(0.02, bound_s))

    def close(self) -> None:
        with self._lock:
            self._drop()

    def forget(self) -> None:
        """For a forked child: lets go of the parent's connection without touching its lock."""
        taken, self._socket, self._out = self._socket, None, bytearray()
        self._lock = threading.Lock()
        if taken is not None:
            with contextlib.suppress(OSError):
                taken.close()

    def _drop(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket = None
        self._out = bytearray()
        self._next_try_s = time.monotonic() + RETRY_S[0]


def _wait_writable(fd: int, bound_s: float) -> None:
    poller = select.poll()  # not select(): a job may well hold more than 1,024 files
    poller.register(fd, select.POLLOUT)
    poller.poll(bound_s * 1000)
