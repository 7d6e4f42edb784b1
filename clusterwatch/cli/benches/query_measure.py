"""What ``bench query`` asks: each question with its target, checked against numpy before it is timed."""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from django.db import connection

from clusterwatch.cli.benches.query_data import MODES, NAMES, POWER, Made
from clusterwatch.cli.benches.query_signals import GPUS, RACK_NODES, SAMPLES
from clusterwatch.ops.errors import OpsError
from clusterwatch.store import fleet_minutes, fleet_queries, node_series, partitions, past_states
from clusterwatch.store.answers import MINUTE_NS, SECOND_NS, Window

TEN_MINUTES: Final = 10
JOB_GPUS: Final = 2_048
GPU_PLACE: Final = 3
"""On the first node, of which there are raw blocks for the whole time."""


@dataclass(frozen=True, slots=True)
class Question:
    """One question; ``limit_ms`` is the target of the whole cluster, None where none was set."""

    name: str
    limit_ms: float | None
    ask: Callable[[], Any]
    is_right: Callable[[Any], bool]


def sizes(made: Made) -> dict[str, Any]:
    """Rows and bytes of what was written, and how long it took."""
    return {
        "generated_s": round(sum(made.seconds.values()), 1),
        "rows": made.rows,
        "table_mib": {table: round(size / 2**20, 1) for table, size, _ in partitions.sizes() if size > 2**20},
    }


def measure(made: Made, rounds: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Median and p95 of each question, ms, decoding included.

    Raises:
        OpsError: an answer is not what numpy says: figures of wrong answers are worth nothing.
    """
    figures: dict[str, Any] = {}
    connection.ensure_connection()
    backend_pid = connection.connection.info.backend_pid
    say(f"Asking each question {rounds} times, warm cache (median, p95, CPU, target; ms):")
    for question in _questions(made):
        answer = question.ask()
        if not question.is_right(answer):
            raise OpsError(f"{question.name} is answered wrongly.")
        times = timed(question.ask, rounds, lambda: _process_cpu_s(backend_pid))
        figures[f"{question.name}_ms"] = times["median"]
        figures[f"{question.name}_p95_ms"] = times["p95"]
        figures[f"{question.name}_cpu_ms"] = times["cpu"]
        limit = f"<= {question.limit_ms:g}" if question.limit_ms else "-"
        say(f"  {question.name:<40} {times['median']:>8} {times['p95']:>8} {times['cpu']:>8}  {limit}")
    return figures | {"answers_checked": True}


def timed(
    ask: Callable[[], Any], rounds: int, server_cpu_s: Callable[[], float] = lambda: 0.0
) -> dict[str, float]:
    """Median, p95 and mean CPU in ms of ``rounds`` calls after one that warms the cache.

    Args:
        server_cpu_s: CPU of the answering process so far, which counts too: figures of CPU stay nearly the
            same however busy the machine is.
    """
    ask()
    gc.collect()
    times = []
    cpu_s = time.process_time() + server_cpu_s()
    for _ in range(rounds):
        started = time.perf_counter()
        ask()
        times.append((time.perf_counter() - started) * 1e3)
    cpu_s = time.process_time() + server_cpu_s() - cpu_s
    times.sort()
    return {
        "cpu": round(cpu_s / rounds * 1e3, 2),
        "median": round(statistics.median(times), 2),
        "p95": round(times[min(len(times) - 1, math.ceil(0.95 * len(times)) - 1)], 2),
    }


def _process_cpu_s(pid: int) -> float:
    """CPU seconds of another process of one thread. Source: Linux sched-stats, first field in ns."""
    return int(Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii").split()[0]) / 1e9


def _questions(made: Made) -> Iterator[Question]:
    yield from _of_now(made)
    yield from _of_one_gpu(made)
    yield from _of_the_fleet(made)
    yield from _of_the_past(made)


def last_minutes(made: Made, minutes: int) -> Window:
    """The newest part of the data."""
    end_ns = made.plan.end_minute * MINUTE_NS
    return Window(end_ns - minutes * MINUTE_NS, end_ns)


def _same(found: Any, wanted: Any, tolerance: float = 1e-5) -> bool:
    return np.shape(found) == np.shape(wanted) and np.allclose(found, wanted, rtol=tolerance, equal_nan=True)


# --- one GPU ------------------------------------------------------------------------------------------------


def _of_one_gpu(made: Made) -> Iterator[Question]:
    node, ten, day = (
        made.node_ids[0],
        last_minutes(made, TEN_MINUTES),
        last_minutes(made, 60 * made.plan.hours),
    )
    rack = made.truth.rack

    def truth(minutes: int) -> Any:
        """(metrics, seconds) of the GPU."""
        newest = range(made.plan.end_minute - minutes, made.plan.end_minute)
        return np.concatenate([rack[minute][0, :, GPU_PLACE] for minute in newest], axis=1)

    def seconds_right(answer: node_series.NodeAnswer) -> bool:
        by_name = {one.metric: one.mean for one in answer.series}
        found = np.array([by_name[name] for name in NAMES])
        return answer.source == "raw_block" and _same(found, truth(TEN_MINUTES), 1e-12)

    def minutes_right(answer: node_series.NodeAnswer) -> bool:
        wanted = truth(60 * made.plan.hours).reshape(len(NAMES), -1, answer.grid.step_s).mean(axis=2)
        by_name = {one.metric: one.mean for one in answer.series}
        return _same(np.array([by_name[name] for name in NAMES]), wanted)

    def day_right(answer: node_series.NodeAnswer) -> bool:
        return _same(answer.series[0].mean, truth(60 * made.plan.hours)[POWER], 1e-12)

    yield Question(
        "one_gpu_20_metrics_10_min_by_second", 6,
        lambda: node_series.gpu_series(node, GPU_PLACE, ten, step_s=1), seconds_right,
    )  # fmt: skip
    yield Question(
        f"one_gpu_20_metrics_{made.plan.hours}_h_by_minute", 100,
        lambda: node_series.gpu_series(node, GPU_PLACE, day, step_s=60), minutes_right,
    )  # fmt: skip
    yield Question(
        f"one_gpu_1_metric_{made.plan.hours}_h_by_second", None,
        lambda: node_series.gpu_series(node, GPU_PLACE, day, metrics=[NAMES[POWER]], step_s=1), day_right,
    )  # fmt: skip


# --- now ---------------------------------------------------------------------------------------------------


def _of_now(made: Made) -> Iterator[Question]:
    """Asked first: what a gateway wrote is forgotten when it falls silent."""
    cluster, slots, power = made.cluster_id, made.plan.gpus, NAMES[POWER]

    def latest_right(answer: fleet_queries.Latest) -> bool:
        return _same(answer.values, made.truth.power[-1, :, -1]) and answer.coverage.ratio == 1

    yield Question(
        "latest_one_metric_all_gpus", 5,
        lambda: fleet_queries.latest(cluster, power, slots, max_age_s=3600.0), latest_right,
    )  # fmt: skip


# --- the fleet ----------------------------------------------------------------------------------------------


def _of_the_fleet(made: Made) -> Iterator[Question]:
    cluster, slots, power = made.cluster_id, made.plan.gpus, NAMES[POWER]
    ten, day = last_minutes(made, TEN_MINUTES), last_minutes(made, 60 * made.plan.hours)
    newest = made.truth.power[-TEN_MINUTES:]

    def ten_right(answer: fleet_queries.Percentiles) -> bool:
        wanted = np.array([made.truth.percentiles[t_ns] for t_ns in answer.grid.t_ns.tolist()])
        return _same(np.stack([answer.columns["p50"], answer.columns["p99"]], axis=1), wanted)

    def day_right(answer: fleet_queries.Percentiles) -> bool:
        return answer.coverage.expected == answer.coverage.reported == made.plan.hours * 360

    def rack_right(answer: fleet_queries.Percentiles) -> bool:
        samples = newest[:, : RACK_NODES * GPUS].transpose(0, 2, 1).reshape(-1, 10 * RACK_NODES * GPUS)
        wanted = np.percentile(samples.reshape(TEN_MINUTES * 6, -1), (50, 99), axis=1)
        return _same(np.stack([answer.columns["p50"], answer.columns["p99"]]), wanted)

    def top_right(answer: fleet_minutes.Ranked) -> bool:
        means = newest.mean(axis=(0, 2))
        return _same(answer.values, np.sort(means)[::-1][:10]) and _same(means[answer.slots], answer.values)

    def growth_right(answer: fleet_minutes.Ranked) -> bool:
        growth = newest[-1].mean(axis=1) - newest[0].mean(axis=1)
        return _same(answer.values, np.sort(growth)[::-1][:10], 1e-2)

    counter = "nic_fec_corrected_total"
    rack = list(made.node_ids[:RACK_NODES])
    rack_slots = np.arange(RACK_NODES * GPUS)
    ask_scope = fleet_queries.stored_percentiles
    yield Question(
        "fleet_p50_p99_per_10_s_10_min", 5,
        lambda: ask_scope(cluster, "fleet", power, ten, step_s=10), ten_right,
    )  # fmt: skip
    yield Question(
        f"fleet_p50_p99_per_10_s_{made.plan.hours}_h", 50,
        lambda: ask_scope(cluster, "fleet", power, day, step_s=10), day_right,
    )  # fmt: skip
    yield Question(
        f"job_p50_p99_per_10_s_{made.plan.hours}_h", None,
        lambda: ask_scope(cluster, "job:7", power, day, step_s=10), day_right,
    )  # fmt: skip
    yield Question(
        "rack_exact_p50_p99_per_10_s_10_min", None,
        lambda: fleet_queries.group_percentiles(cluster, power, rack, rack_slots, ten, step_s=10), rack_right,
    )  # fmt: skip
    yield Question(
        "top_10_by_mean_10_min", 20,
        lambda: fleet_minutes.top_k(cluster, power, ten, 10, slot_count=slots), top_right,
    )  # fmt: skip
    yield Question(
        "top_10_by_growth_of_a_gauge_10_min", None,
        lambda: fleet_minutes.top_k(cluster, power, ten, 10, by=fleet_minutes.By.GROWTH, slot_count=slots),
        growth_right,
    )  # fmt: skip
    yield Question(
        "top_10_by_growth_of_a_counter_10_min", None,
        lambda: fleet_minutes.top_k(
            cluster, counter, ten, 10, by=fleet_minutes.By.GROWTH, is_counter=True, slot_count=slots
        ),
        # The counter of slot 0 takes a step every three seconds; no other one is faster.
        lambda answer: bool((answer.values == (TEN_MINUTES - 1) * SAMPLES / 3).all()),
    )  # fmt: skip


# --- the past -----------------------------------------------------------------------------------------------


def _of_the_past(made: Made) -> Iterator[Question]:
    cluster, power = made.cluster_id, NAMES[POWER]
    ten, hour = last_minutes(made, TEN_MINUTES), last_minutes(made, 60)
    moment_ns = ten.start_ns + 137 * SECOND_NS
    rack = list(made.node_ids[:RACK_NODES])
    job = np.arange(min(JOB_GPUS, made.plan.gpus))

    def frame_right(answer: Any) -> bool:
        wanted = made.truth.frames[moment_ns // (10 * SECOND_NS) * 10 * SECOND_NS]
        return isinstance(answer, past_states.MapFrame) and bool((answer.slots == wanted).all())

    def second_right(answer: list[past_states.NodeSecond]) -> bool:
        minute, second = divmod(moment_ns // SECOND_NS, 60)
        wanted = made.truth.rack[minute][..., second]
        return all(
            _same(np.array([node.values[name] for name in NAMES]), wanted[place], 1e-12)
            for place, node in enumerate(answer)
        )

    def heat_right(answer: fleet_minutes.HeatMap) -> bool:
        per_row = len(answer.groups[0])
        means = made.truth.power[-TEN_MINUTES:, job].mean(axis=2).T  # (GPUs, minutes)
        return _same(answer.values[:, -TEN_MINUTES:], means.reshape(-1, per_row, TEN_MINUTES).mean(axis=1))

    yield Question(
        "map_at_from_stored_frames", 50,
        lambda: past_states.map_at(cluster, MODES[0], moment_ns), frame_right,
    )  # fmt: skip
    yield Question(
        "exact_second_of_one_rack", 100, lambda: past_states.second_of_nodes(rack, moment_ns), second_right
    )  # fmt: skip
    yield Question(
        f"heat_map_{len(job)}_gpus_1_h", None,
        lambda: fleet_minutes.heat_map(cluster, power, job, hour), heat_right,
    )  # fmt: skip
    yield Question(
        f"heat_map_all_gpus_{made.plan.hours}_h", None,
        lambda: fleet_minutes.heat_map(
            cluster, power, np.arange(made.plan.gpus), last_minutes(made, 60 * made.plan.hours)
        ),
        lambda answer: answer.coverage.ratio == 1,
    )  # fmt: skip
