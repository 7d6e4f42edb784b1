"""VictoriaMetrics and Prometheus beside us in ``bench store``: the same numbers, kept by each, in one run.

Each gets every value of a small fleet, 60 samples of a series in a request, which is their cheapest way in;
and in a run of its own some seconds of the same fleet with one sample a series in a request, which is what
shows each second at once. Sizes are taken after they have merged what they have.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import orjson

from clusterwatch.cli.benches import remote_write, store_ours
from clusterwatch.cli.benches.cpu_time import cpu_s
from clusterwatch.cli.benches.peers import PEERS, Peer, Running, find_binary, running
from clusterwatch.cli.benches.query_signals import GPUS, SAMPLES, Signals
from clusterwatch.cli.benches.store_ours import Plan, Say
from clusterwatch.ops.postgres import PostgresServer
from collectors.wire.metrics import GPU_METRICS

SECONDS_ALONE: Final = 20
"""Of one sample a series in a request."""
MERGED_WITHIN_S: Final = 20.0


def compare(plan: Plan, server: PostgresServer, folder: str, say: Say) -> dict[str, Any]:
    """Ours and theirs; a peer that is not installed is said so."""
    found: dict[str, Any] = {"series": plan.gpus * len(GPU_METRICS), "values": plan.values}
    found["clusterwatch"] = store_ours.measure(plan, server, say)
    for peer in PEERS:
        binary = find_binary(peer, folder)
        found[peer.name] = "not installed" if binary is None else _measure(peer, binary, plan)
        say(f"  {peer.name}: {found[peer.name]}")
    return found


def _measure(peer: Peer, binary: str, plan: Plan) -> dict[str, Any]:
    with running(peer, binary) as server:
        begun_s = cpu_s(server.process.pid)
        _write(server, peer, _minutes(plan))
        written_s = cpu_s(server.process.pid) - begun_s
        size = _size(server, peer)
        # Cutting blocks and merging parts is part of keeping the data.
        merged_s = cpu_s(server.process.pid) - begun_s
    with running(peer, binary) as server:
        begun_s = cpu_s(server.process.pid)
        _write(server, peer, _seconds(plan))
        alone_s = cpu_s(server.process.pid) - begun_s
    values_alone = plan.gpus * len(GPU_METRICS) * SECONDS_ALONE
    return {
        "bytes_per_value": round(size / plan.values, 3),
        "cpu_s_per_million_values_by_minute": round(written_s / plan.values * 1e6, 3),
        "cpu_s_per_million_values_with_merging": round(merged_s / plan.values * 1e6, 3),
        "cpu_s_per_million_values_by_second": round(alone_s / values_alone * 1e6, 3),
    }


def _write(server: Running, peer: Peer, bodies: Iterator[bytes]) -> None:
    for body in bodies:
        server.client.post(peer.write_path, body)
    if peer.flush_path:
        server.client.get(peer.flush_path)


def _minutes(plan: Plan) -> Iterator[bytes]:
    """Every value, minute by minute."""
    signals, heads = Signals(plan.nodes, plan.first_minute), _heads(plan)
    for minute in range(plan.first_minute, plan.end_minute):
        yield from remote_write.requests(heads, _of_minute(signals, minute), _times_ms(minute))


def _seconds(plan: Plan) -> Iterator[bytes]:
    """The last minute's first seconds, each in requests of its own."""
    minute = plan.end_minute - 1
    signals, heads = Signals(plan.nodes, plan.first_minute), _heads(plan)
    values, times_ms = _of_minute(signals, minute), _times_ms(minute)
    for second in range(SECONDS_ALONE):
        yield from remote_write.requests(heads, values[:, second : second + 1], times_ms[second : second + 1])


def _heads(plan: Plan) -> list[bytes]:
    return [
        remote_write.labels({"__name__": metric.name, "node": f"n{node:05d}", "gpu": str(gpu)})
        for node in range(plan.nodes)
        for metric in GPU_METRICS
        for gpu in range(GPUS)
    ]


def _of_minute(signals: Signals, minute: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """(series, seconds) in the order of ``_heads``."""
    chunks = [signals.values(signals.minute(minute, chunk)) for chunk in signals.chunks()]
    return np.concatenate(chunks).reshape(-1, SAMPLES)


def _times_ms(minute: int) -> list[int]:
    return [(minute * SAMPLES + second) * 1_000 for second in range(SAMPLES)]


def _size(server: Running, peer: Peer) -> int:
    """Bytes of everything kept, index in it."""
    if peer.binary == "prometheus":
        answer = server.client.post("/api/v1/admin/tsdb/snapshot", b"")
        name = orjson.loads(answer)["data"]["name"]
        return _bytes_below(server.folder / "data" / "snapshots" / name)
    server.client.get("/internal/force_merge")
    return _settled(server.folder / "data")


def _settled(folder: Path) -> int:
    """Bytes once a merge in the background has ended: three equal looks, a second apart."""
    looks: list[int] = []
    deadline = time.monotonic() + MERGED_WITHIN_S
    while time.monotonic() < deadline and not (len(looks) >= 3 and len(set(looks[-3:])) == 1):
        time.sleep(1.0)
        looks.append(_bytes_below(folder))
    return looks[-1]


def _bytes_below(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:
            continue  # merged away while we look
    return total
