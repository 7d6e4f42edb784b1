"""An agent for tests: keeps every frame with the pid the kernel names, answers nothing by itself."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from collectors.hook import protocol


@dataclass(frozen=True)
class Frame:
    """One frame: ``connection`` counts from 0, ``pid`` is the peer's."""

    connection: int
    pid: int
    header: dict[str, Any]
    blob: bytes

    @property
    def kind(self) -> str:
        return str(self.header["k"])


class FakeAgent:
    """Listens on ``path`` from ``start`` to ``stop``; may be started again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.frames: list[Frame] = []
        self._connections: list[tuple[socket.socket, int]] = []
        self._listener: socket.socket | None = None

    def __enter__(self) -> FakeAgent:
        self.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self.stop()

    def start(self) -> None:
        self.path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.path))
        self._listener.listen(64)
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def stop(self) -> None:
        """As an agent that dies: the listener and every connection close."""
        if self._listener is not None:
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
        for peer, _pid in self._connections:
            with contextlib.suppress(OSError):
                peer.shutdown(socket.SHUT_RDWR)
        self.path.unlink(missing_ok=True)

    def ask(self, pid: int, **want: Any) -> None:
        """Sends ``want`` on the newest connection of ``pid``."""
        peer = [connection for connection, owner in self._connections if owner == pid][-1]
        peer.sendall(protocol.pack({"k": "want", **want}))

    def of(self, kind: str, pid: int | None = None, since: int = 0) -> list[Frame]:
        """Frames of a kind from the ``since``-th frame on."""
        return [frame for frame in self.frames[since:] if frame.kind == kind and pid in (None, frame.pid)]

    def wait(self, found: Callable[[], Any], timeout_s: float = 40.0) -> Any:
        """The first truthy answer of ``found``. Fails with what came so far."""
        until = time.monotonic() + timeout_s
        while time.monotonic() < until:
            if answer := found():
                return answer
            time.sleep(0.02)
        kinds = [(frame.pid, frame.kind) for frame in self.frames[-40:]]
        raise AssertionError(f"not seen within {timeout_s} s; the last frames were {kinds}")

    def wait_for(self, kind: str, pid: int | None = None, since: int = 0, timeout_s: float = 40.0) -> Frame:
        frames: list[Frame] = self.wait(lambda: self.of(kind, pid, since), timeout_s)
        return frames[0]

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                peer, _address = listener.accept()
            except OSError:
                return
            raw = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            pid = struct.unpack("3i", raw)[0]
            self._connections.append((peer, pid))
            number = len(self._connections) - 1
            threading.Thread(target=self._read, args=(peer, pid, number), daemon=True).start()

    def _read(self, peer: socket.socket, pid: int, number: int) -> None:
        reader = protocol.Reader()
        with contextlib.suppress(OSError):
            while data := peer.recv(1 << 16):
                for header, blob in reader.feed(data):
                    self.frames.append(Frame(number, pid, header, blob))
        peer.close()
