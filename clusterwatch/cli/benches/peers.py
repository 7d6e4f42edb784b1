"""VictoriaMetrics and Prometheus for the benches: found, started alone on loopback, written to and asked.

They are looked for on PATH or in a folder the person names; a bench says so when one is not installed.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from clusterwatch.ops.errors import OpsError

START_S: Final = 30.0
ANSWER_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Peer:
    """How a peer is started and written to."""

    name: str
    binary: str
    write_path: str
    flush_path: str

    def argv(self, binary: str, folder: str, port: int) -> list[str]:
        """Data in ``folder``, listening on loopback only."""
        if self.binary == "prometheus":
            config = Path(folder) / "prometheus.yml"
            config.write_text("global: {}\n", encoding="utf-8")
            return [
                binary,
                f"--config.file={config}",
                f"--storage.tsdb.path={folder}/data",
                f"--web.listen-address=127.0.0.1:{port}",
                "--web.enable-remote-write-receiver",
                "--web.enable-admin-api",
                "--log.level=error",
            ]
        return [
            binary,
            f"-storageDataPath={folder}/data",
            f"-httpListenAddr=127.0.0.1:{port}",
            "-retentionPeriod=1y",
            "-search.latencyOffset=0s",
            "-loggerLevel=ERROR",
        ]


PEERS: Final = (
    Peer("victoria_metrics", "victoria-metrics", "/api/v1/write", "/internal/force_flush"),
    Peer("prometheus", "prometheus", "/api/v1/write", ""),
)


def find_binary(peer: Peer, folder: str) -> str | None:
    """The program in ``folder``, or on PATH when that is empty; None: not installed."""
    if not folder:
        return shutil.which(peer.binary)
    path = Path(folder) / peer.binary
    return str(path) if os.access(path, os.X_OK) else None


class Client:
    """One kept connection to a peer."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_S)

    def get(self, path: str) -> bytes:
        return self._ask("GET", path, None, {})

    def post(self, path: str, body: bytes) -> bytes:
        headers = {
            "Content-Type": "application/x-protobuf",
            "Content-Encoding": "snappy",
            "X-Prometheus-Remote-Write-Version": "0.1.0",
        }
        return self._ask("POST", path, body, headers)

    def _ask(self, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> bytes:
        self._connection.request(method, path, body, headers)
        answer = self._connection.getresponse()
        content = answer.read()
        if answer.status >= 300:
            raise OpsError(f"{path.partition('?')[0]} answers {answer.status}: {content[:200]!r}")
        return content

    def close(self) -> None:
        self._connection.close()


@dataclass(frozen=True, slots=True)
class Running:
    """A peer that answers."""

    client: Client
    process: subprocess.Popen[bytes]
    folder: Path
    """its data lies in ``data``"""


@contextlib.contextmanager
def running(peer: Peer, binary: str) -> Iterator[Running]:
    """Starts a peer on empty data in a folder of its own, which is removed at the end."""
    folder = tempfile.mkdtemp(prefix="cw-bench-peer-")
    port = _free_port()
    process = subprocess.Popen(
        peer.argv(binary, folder, port),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    client = Client(port)
    try:
        _await_ready(peer, client, process)
        yield Running(client, process, Path(folder))
    finally:
        client.close()
        process.terminate()
        try:
            process.wait(START_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _await_ready(peer: Peer, client: Client, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_S
    while process.poll() is None and time.monotonic() < deadline:
        try:
            client.get("/-/ready" if peer.binary == "prometheus" else "/health")
        except (OSError, http.client.HTTPException, OpsError):
            client.close()
            time.sleep(0.1)
        else:
            return
    raise OpsError(f"{peer.name} did not start.")


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
