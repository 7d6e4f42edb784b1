"""VictoriaMetrics and Prometheus beside us in ``bench query``: the same numbers, the same questions, one run.

They get ten minutes by the second: power of every GPU, and the other metrics of one chassis, by remote write
with 60 samples of a series in a request, which is their fastest way in. Each runs alone. A peer that is not
installed is said so.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final
from urllib.parse import quote

import numpy as np
import orjson

from clusterwatch.cli.benches import remote_write
from clusterwatch.cli.benches.cpu_time import cpu_s
from clusterwatch.cli.benches.peers import PEERS, Client, Peer, find_binary, running
from clusterwatch.cli.benches.query_data import NAMES, POWER, Made
from clusterwatch.cli.benches.query_measure import GPU_PLACE, TEN_MINUTES, timed
from clusterwatch.cli.benches.query_signals import GPUS, SAMPLES
from clusterwatch.ops.errors import OpsError

ROUNDS_MAX: Final = 5
"""Some questions take them seconds."""


def compare(made: Made, folder: str, rounds: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Figures of each peer, or why there are none."""
    series = made.plan.gpus + (len(NAMES) - 1) * GPUS
    found: dict[str, Any] = {"series": series, "values": series * TEN_MINUTES * SAMPLES}
    say(f"Peers: {series} series x {TEN_MINUTES * SAMPLES} s each")
    for peer in PEERS:
        binary = find_binary(peer, folder)
        if binary is None:
            found[peer.name] = "not installed"
            say(f"  {peer.name}: not installed")
            continue
        try:
            found[peer.name] = figures = _measure(peer, binary, made, min(rounds, ROUNDS_MAX))
        except OpsError as fault:  # our own figures stand without it
            found[peer.name] = str(fault)
            say(f"  {peer.name}: {fault}")
            continue
        for name, value in figures.items():
            say(f"  {peer.name} {name}: {value}")
    return found


def _measure(peer: Peer, binary: str, made: Made, rounds: int) -> dict[str, Any]:
    with running(peer, binary) as server:
        started = time.perf_counter()
        for body in _bodies(made):
            server.client.post(peer.write_path, body)
        written_s = time.perf_counter() - started
        if peer.flush_path:
            server.client.get(peer.flush_path)
        figures: dict[str, Any] = {
            "written_s": round(written_s, 1),
            "cpu_s_to_write": round(cpu_s(server.process.pid), 1),
        }
        for name, path, is_right in _questions(made):
            if not is_right(_result(server.client.get(path))):
                raise OpsError(f"{peer.name} answers {name} otherwise than numpy.")
            times = timed(partial(_ask, server.client, path), rounds, partial(cpu_s, server.process.pid))
            figures[f"{name}_ms"] = times["median"]
            figures[f"{name}_cpu_ms"] = times["cpu"]
    return figures


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


def _ask(client: Client, path: str) -> Any:
    return _result(client.get(path))


def _result(body: bytes) -> Any:
    return orjson.loads(body)["data"]["result"]
