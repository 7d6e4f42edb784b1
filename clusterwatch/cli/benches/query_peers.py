"""VictoriaMetrics and Prometheus beside us in ``bench query``: the same numbers, the same questions, one run.

They get ten minutes by the second: power of every GPU, and the other metrics of one chassis, by remote write
with 60 samples of a series in a request, which is their fastest way in. Each runs alone. A peer that is not
installed is said so.
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
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import numpy as np
import orjson

from clusterwatch.cli.benches import remote_write
from clusterwatch.cli.benches.query_data import NAMES, POWER, Made
from clusterwatch.cli.benches.query_measure import GPU_PLACE, TEN_MINUTES, timed
from clusterwatch.cli.benches.query_signals import GPUS, SAMPLES
from clusterwatch.ops.errors import OpsError

START_S: Final = 30.0
ANSWER_S: Final = 60.0
ROUNDS_MAX: Final = 5
"""Some questions take them seconds."""


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


def compare(made: Made, folder: str, rounds: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Figures of each peer, or why there are none."""
    series = made.plan.gpus + (len(NAMES) - 1) * GPUS
    found: dict[str, Any] = {"series": series, "values": series * TEN_MINUTES * SAMPLES}
    say(f"Peers: {series} series x {TEN_MINUTES * SAMPLES} s each")
    for peer in PEERS:
        binary = _binary(peer, folder)
        if binary is None:
            found[peer.name] = "not installed"
            say(f"  {peer.name}: not installed")
            continue
        found[peer.name] = figures = _measure(peer, binary, made, min(rounds, ROUNDS_MAX))
        for name, value in figures.items():
            say(f"  {peer.name} {name}: {value}")
    return found


def _binary(peer: Peer, folder: str) -> str | None:
    if not folder:
        return shutil.which(peer.binary)
    path = Path(folder) / peer.binary
    return str(path) if os.access(path, os.X_OK) else None


def _measure(peer: Peer, binary: str, made: Made, rounds: int) -> dict[str, Any]:
    with _running(peer, binary) as (client, process):
        started = time.perf_counter()
        for body in _bodies(made):
            client.post(peer.write_path, body)
        written_s = time.perf_counter() - started
        if peer.flush_path:
            client.get(peer.flush_path)
        figures: dict[str, Any] = {"written_s": round(written_s, 1), "cpu_s_to_write": _cpu_s(process)}
        for name, path, is_right in _questions(made):
            if not is_right(_result(client.get(path))):
                raise OpsError(f"{peer.name} answers {name} otherwise than numpy.")
            figures[f"{name}_ms"] = timed(lambda path=path: _result(client.get(path)), rounds)["median"]  # type: ignore[misc]
    return figures


def _cpu_s(process: subprocess.Popen[bytes]) -> float:
    """User and system seconds of a running process. Source: proc_pid_stat(5), fields 14 and 15."""
    fields = Path(f"/proc/{process.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return round((int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), 1)


# --- what they are given ------------------------------------------------------------------------------------


def _bodies(made: Made) -> Iterator[bytes]:
    """Ten minutes, minute by minute."""
    slots = made.plan.gpus
    power = [_labels(NAMES[POWER], slot) for slot in range(slots)]
    others = [place for place in range(len(NAMES)) if place != POWER]
    heads = power + [_labels(NAMES[place], slot) for place in others for slot in range(GPUS)]
    for minute in range(made.plan.end_minute - TEN_MINUTES, made.plan.end_minute):
        of_all = made.truth.power[minute - made.plan.first_fleet_raw]
        of_chassis = made.truth.rack[minute][0][others].reshape(-1, SAMPLES)
        times_ms = [(minute * SAMPLES + second) * 1_000 for second in range(SAMPLES)]
        yield from remote_write.requests(heads, np.concatenate([of_all, of_chassis]), times_ms)


def _labels(metric: str, slot: int) -> bytes:
    node = f"n{slot // GPUS:05d}"
    return remote_write.labels({"__name__": metric, "gpu": str(slot % GPUS), "node": node, "slot": str(slot)})


# --- what they are asked ------------------------------------------------------------------------------------


def _questions(made: Made) -> Iterator[tuple[str, str, Callable[[Any], bool]]]:
    end_s = made.plan.end_minute * SAMPLES - 1
    start_s = end_s - TEN_MINUTES * SAMPLES + 1
    newest = made.truth.power[-TEN_MINUTES:]
    seconds = newest.transpose(1, 0, 2).reshape(made.plan.gpus, -1)
    power = NAMES[POWER]

    def instant(query: str) -> str:
        return f"/api/v1/query?query={quote(query)}&time={end_s}&nocache=1"

    def over_time(query: str, step_s: int) -> str:
        window = f"start={start_s}&end={end_s}&step={step_s}&nocache=1"
        return f"/api/v1/query_range?query={quote(query)}&{window}"

    def quantile_right(point: float) -> Callable[[Any], bool]:
        wanted = np.quantile(seconds[:, ::10], point, axis=0)
        return lambda result: np.allclose([float(v) for _, v in result[0]["values"]], wanted)

    def top_right(result: Any) -> bool:
        found = sorted((float(one["value"][1]) for one in result), reverse=True)
        return np.allclose(found, np.sort(seconds.mean(axis=1))[::-1][:10])

    yield (
        "latest_one_metric_all_gpus",
        instant(power),
        lambda result: (
            len(result) == made.plan.gpus
            and np.isclose(sum(float(one["value"][1]) for one in result), seconds[:, -1].sum())
        ),
    )
    yield (
        "one_gpu_20_metrics_10_min_by_second",
        over_time(f'{{slot="{GPU_PLACE}"}}', 1),
        lambda result: len(result) == len(NAMES) and all(len(one["values"]) == 600 for one in result),
    )
    yield "fleet_p50_per_10_s_10_min", over_time(f"quantile(0.5, {power})", 10), quantile_right(0.5)
    yield "fleet_p99_per_10_s_10_min", over_time(f"quantile(0.99, {power})", 10), quantile_right(0.99)
    yield "top_10_by_mean_10_min", instant(f"topk(10, avg_over_time({power}[10m]))"), top_right


def _result(body: bytes) -> Any:
    return orjson.loads(body)["data"]["result"]


# --- running them -------------------------------------------------------------------------------------------


class _Client:
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


@contextlib.contextmanager
def _running(peer: Peer, binary: str) -> Iterator[tuple[_Client, subprocess.Popen[bytes]]]:
    folder = tempfile.mkdtemp(prefix="cw-bench-peer-")
    port = _free_port()
    process = subprocess.Popen(
        peer.argv(binary, folder, port),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    client = _Client(port)
    try:
        _await_ready(peer, client, process)
        yield client, process
    finally:
        client.close()
        process.terminate()
        try:
            process.wait(START_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _await_ready(peer: Peer, client: _Client, process: subprocess.Popen[bytes]) -> None:
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
