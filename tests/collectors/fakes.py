"""Stand-ins for the two neighbours of the agent: a gateway on a free port, and a training process's hook."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from collectors.config import AgentConfig
from collectors.hook import protocol
from collectors.wire import codec, limits, records
from collectors.wire.records import Lane, LaneNext

REPO = Path(__file__).resolve().parents[2]


class FakeClock:
    """Time that moves only when told."""

    def __init__(self, now_ns: int = 1_800_000_000_000_000_000) -> None:
        self.t_ns = now_ns
        self.t_s = 1_000.0

    def now_ns(self) -> int:
        return self.t_ns

    def monotonic_s(self) -> float:
        return self.t_s

    def advance(self, seconds: float) -> None:
        self.t_ns += int(seconds * 1e9)
        self.t_s += seconds


@dataclass
class FakeGateway:
    """Commits what it is sent, exactly as the contract says, and remembers everything."""

    port: int = 0
    tls: ssl.SSLContext | None = None
    stored: dict[tuple[str, str, int], bytes] = field(default_factory=dict)
    """(epoch, lane, sequence) -> payload"""
    acked: dict[tuple[str, str], int] = field(default_factory=dict)
    hellos: list[records.Hello] = field(default_factory=list)
    hot: list[records.HotFrame] = field(default_factory=list)
    byes: int = 0
    duplicates: int = 0
    refuse: records.Refuse | None = None
    reject: set[str] = field(default_factory=set)
    """kinds that are rejected"""
    ack: bool = True
    pending_orders: list[records.FromGateway] = field(default_factory=list)
    _server: Server | None = None
    _connections: set[ServerConnection] = field(default_factory=set)

    async def start(self) -> None:
        self._server = await serve(
            self._serve,
            "127.0.0.1",
            self.port,
            ssl=self.tls,
            compression=None,
            max_size=limits.FRAME_MAX_BYTES,
        )
        self.port = next(iter(self._server.sockets)).getsockname()[1]

    async def stop(self) -> None:
        """Goes away at once, as a killed process does."""
        assert self._server is not None
        for connection in list(self._connections):
            connection.transport.abort()
        self._server.close()
        await self._server.wait_closed()

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}"

    def stored_records(self, kind: type[Any] | None = None) -> list[Any]:
        """Everything stored, in order of arrival, decoded."""
        decoded = [codec.decode_record(payload) for payload in self.stored.values()]
        return [record for record in decoded if kind is None or isinstance(record, kind)]

    async def send(self, message: records.FromGateway) -> None:
        for connection in list(self._connections):
            await connection.send(codec.encode(message))

    async def _serve(self, connection: ServerConnection) -> None:
        self._connections.add(connection)
        try:
            with contextlib.suppress(ConnectionClosed):
                await self._talk(connection)
        finally:
            self._connections.discard(connection)

    async def _talk(self, connection: ServerConnection) -> None:
        hello = codec.decode_from_node(await connection.recv(decode=False))
        assert isinstance(hello, records.Hello)
        self.hellos.append(hello)
        if self.refuse is not None:
            await connection.send(codec.encode(self.refuse))
            return
        acked = LaneNext(
            urgent=self.acked.get((hello.epoch, "urgent"), 0), bulk=self.acked.get((hello.epoch, "bulk"), 0)
        )
        credential = None if hello.credential else f"credential-of-{hello.node}"
        await connection.send(
            codec.encode(
                records.Welcome(
                    version=codec.VERSION, t_ns=time.time_ns(), acked=acked, credential=credential
                )
            )
        )
        async for data in connection:
            assert isinstance(data, bytes)
            message = codec.decode_from_node(data)
            if isinstance(message, records.HotFrame):
                self.hot.append(message)
            elif isinstance(message, records.Put):
                await self._put(connection, hello.epoch, message)
            elif isinstance(message, records.Bye):
                self.byes += 1

    async def _put(self, connection: ServerConnection, epoch: str, put: records.Put) -> None:
        if not self.ack:
            return
        for item in put.items:
            key = (epoch, put.lane, item.sequence)
            self.duplicates += key in self.stored
            kind = codec.decode_record(item.payload).__struct_config__.tag
            if kind in self.reject:
                await connection.send(
                    codec.encode(records.Reject(lane=put.lane, sequence=item.sequence, reason="future"))
                )
            else:
                self.stored[key] = item.payload
            self.acked[(epoch, put.lane)] = item.sequence
        await connection.send(codec.encode(records.Ack(lane=put.lane, sequence=put.items[-1].sequence)))


class FakeHook:
    """A training process's side of the socket, in this process or as a pid of its own through ``spawn``."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(str(path))
        self._reader = protocol.Reader()

    def send(self, k: str, blob: bytes = b"", **fields: Any) -> None:
        self._socket.sendall(protocol.pack({"k": k, **fields}, blob))

    def hello(self, rank: int = 0, job: str = "job-1", **fields: Any) -> None:
        self.send("hello", v=1, pid=os.getpid(), rank=rank, world_size=2, job=job, **fields)

    def send_raw(self, data: bytes) -> None:
        self._socket.sendall(data)

    def receive(self, timeout_s: float = 5.0) -> dict[str, Any] | None:
        """The next header from the agent, None when the agent closed."""
        self._socket.settimeout(timeout_s)
        while True:
            data = self._socket.recv(65_536)
            if not data:
                return None
            frames = self._reader.feed(data)
            if frames:
                return frames[0][0]

    def is_closed(self, timeout_s: float = 5.0) -> bool:
        """Whether the agent closes the connection within the time."""
        try:
            return self.receive(timeout_s) is None
        except ConnectionError:
            return True
        except TimeoutError:
            return False

    def close(self) -> None:
        self._socket.close()


def spawn_hook(path: Path, rank: int, mode: str = "run", dump: Path | None = None) -> subprocess.Popen[bytes]:
    """A process of its own that behaves like a rank. Modes: run, quiet, raise, finish."""
    extra = [str(dump)] if dump else []
    return subprocess.Popen(
        [sys.executable, "-m", "tests.collectors.hook_process", str(path), str(rank), mode, *extra], cwd=REPO
    )


def config(folder: Path, url: str, node: str = "n1", **changes: Any) -> AgentConfig:
    """An agent's settings in a temporary folder."""
    settings: dict[str, Any] = {
        "state_dir": folder / "agent",
        "gateway_url": url,
        "hook_socket": folder / "hook.sock",
        "cluster": "default",
        "node": node,
        "machine_id": f"machine-{node}",
        "boot_id": f"boot-{node}",
        "token": "enrol-me",
    }
    return AgentConfig(**(settings | changes))


def agent_environment(folder: Path, url: str, node: str = "n1") -> dict[str, str]:
    """The environment of a ``clusterwatch-agent run`` in a temporary folder."""
    return {
        "PATH": os.environ.get("PATH", ""),
        "PYTHONPATH": str(REPO),
        "CLUSTERWATCH_STATE_DIR": str(folder),
        "CLUSTERWATCH_GATEWAY_URL": url,
        "CLUSTERWATCH_HOOK_SOCKET": str(folder / "hook.sock"),
        "CLUSTERWATCH_NODE": node,
        "CLUSTERWATCH_TOKEN": "enrol-me",
    }


async def start_agent(folder: Path, url: str, node: str = "n1") -> asyncio.subprocess.Process:
    """A real agent process, ready."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "collectors", "run",
        env=agent_environment(folder, url, node), stdout=asyncio.subprocess.PIPE, cwd=folder,
    )  # fmt: skip
    assert process.stdout is not None
    line = await asyncio.wait_for(process.stdout.readline(), 20)
    assert line.startswith(b"agent ready"), line
    return process


async def until(condition: Any, timeout_s: float = 10.0) -> Any:
    """Waits for a truthy answer and returns it; fails with a clear error otherwise."""
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        if found := condition():
            return found
        await asyncio.sleep(0.02)
    raise AssertionError(f"not within {timeout_s} s")


def lane_of(lane: str) -> Lane:
    assert lane in ("urgent", "bulk")
    return lane  # type: ignore[return-value]
