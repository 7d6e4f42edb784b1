"""An embedded Valkey: hot state and task queues, on a unix socket only.

Nothing is written to disk: everything in it is made again within seconds by gateways, pulse and beat.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from clusterwatch.ops.binaries import Binaries, find_valkey
from clusterwatch.ops.state import StateFolder, socket_folder

SOCKET_NAME = "valkey.sock"
# Hot state at 24,576 GPUs is some tens of MiB (120 s of arrays); the rest is room for queues.
MAX_MEMORY_MB = 512


@dataclass(frozen=True, slots=True)
class ValkeyServer:
    """A planned server: everything needed to run it and to reach it."""

    binaries: Binaries
    folder: Path
    socket_path: Path

    def argv(self, max_memory_mb: int = MAX_MEMORY_MB) -> tuple[str, ...]:
        """The foreground command.

        Keys without a lifetime (queues) are never evicted; those with one (hot state) go first.
        """
        return (
            str(self.binaries.folder),
            *("--port", "0"),
            *("--unixsocket", str(self.socket_path)),
            *("--unixsocketperm", "700"),
            *("--dir", str(self.folder)),
            *("--save", ""),
            *("--appendonly", "no"),
            *("--maxmemory", f"{max_memory_mb}mb"),
            *("--maxmemory-policy", "volatile-lru"),
            *("--daemonize", "no"),
            *("--loglevel", "notice"),
        )

    def url(self, database: int = 0) -> str:
        """The URL clients connect with."""
        return f"unix://{self.socket_path}?db={database}"

    def is_ready(self) -> bool:
        """Whether the server answers PING now."""
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.settimeout(2)
                connection.connect(str(self.socket_path))
                connection.sendall(b"*1\r\n$4\r\nPING\r\n")
                return connection.recv(64).startswith(b"+PONG")
        except OSError:
            return False


def plan_valkey(state: StateFolder, environ: Mapping[str, str]) -> ValkeyServer:
    """Decides program, folder and socket; starts nothing.

    Raises:
        OpsError: no binary, or its folder cannot be used.
    """
    folder = state.folder("valkey")
    return ValkeyServer(find_valkey(environ), folder, socket_folder(folder, SOCKET_NAME) / SOCKET_NAME)
