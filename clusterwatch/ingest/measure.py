"""What ``clusterwatch bench ingest`` measures: hot frames in memory, commits in a scratch database."""

from __future__ import annotations

import os
import struct
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from django.db import connection

from clusterwatch.fleet.models import Cluster, Node
from clusterwatch.ingest import checks, commit, hot_arrays
from clusterwatch.ingest.admission import Admission
from clusterwatch.ingest.apply import Origin
from clusterwatch.ingest.board import Board
from clusterwatch.ingest.hub import retention_of_tags
from clusterwatch.ingest.slot_values import SlotValues
from clusterwatch.jobs.announcements import RefLayout
from clusterwatch.store import partitions, series
from collectors.wire import blocks, codec, hot_values, records

GPUS: Final = 8
GROUPS: Final = 6
METRICS: Final = 20
PUT_RECORDS: Final = 50
GROUP_PUTS: Final = 20
"""Puts of one group commit: what 20 ms bring when many nodes send."""
BASELINE_RECORDS: Final = 500
BLOCKS: Final = 256


def hot_frames(nodes: int, seconds: int) -> dict[str, Any]:
    """CPU of taking hot frames and of building the arrays once a second; the baseline only decodes."""
    board, jobs, values = Board(), hot_arrays.JobArrays(), SlotValues()
    for node_id in range(nodes):
        _open_node(board, node_id)
    frames = [codec.encode(_frame(node_id)) for node_id in range(nodes)]

    def decode_only() -> None:
        for raw in frames:
            codec.decode_from_node(raw)

    def take() -> None:
        now_ns = time.time_ns()
        for node_id, raw in enumerate(frames):
            frame = codec.decode_from_node(raw)
            assert isinstance(frame, records.HotFrame)
            board.take(node_id, frame, now_ns)

    def build() -> None:
        snapshot = board.collect(time.time_ns())
        jobs.build(snapshot.progress)
        values.take(snapshot.values.get(1, []), snapshot.now_ns)
        values.renewed()

    take()
    build()
    take()
    decode_s, take_s, build_s = (_cpu_s(work, seconds) for work in (decode_only, take, build))
    return {
        "hot_frame_bytes": len(frames[0]),
        "hot_frame_us": round(take_s / nodes * 1e6, 1),
        "hot_frame_decode_only_us": round(decode_s / nodes * 1e6, 1),
        "hot_arrays_ms_per_s": round(build_s * 1e3, 1),
        "hot_core_ratio": round(take_s + build_s, 3),
    }


def commits(nodes: int, total: int) -> dict[str, Any]:
    """Records a second through check and group commit; the baseline commits each record by itself."""
    with _scratch_database():
        partitions.ensure_ahead()
        origins = _origins(min(nodes, 64))
        cache = series.PartitionCache()
        alone = _commit_events(origins[:1], BASELINE_RECORDS, 1, 1, cache)
        grouped = _commit_events(origins, total, PUT_RECORDS, GROUP_PUTS, cache)
        stored_blocks = _commit_blocks(origins, cache)
    return {
        "commit_records_per_s": round(grouped["per_s"]),
        "commit_cpu_us_per_record": round(grouped["cpu_us"], 1),
        "commit_one_by_one_records_per_s": round(alone["per_s"]),
        "commit_one_by_one_cpu_us_per_record": round(alone["cpu_us"], 1),
        "block_values_per_s": round(stored_blocks["per_s"] * METRICS * GPUS * 60),
        "block_cpu_us": round(stored_blocks["cpu_us"], 1),
    }


def _cpu_s(work: Callable[[], None], rounds: int) -> float:
    """CPU seconds of one round, the best of ``rounds``: others share the machine."""
    best = float("inf")
    for _ in range(rounds):
        started_s = time.process_time()
        work()
        best = min(best, time.process_time() - started_s)
    return best


# --- hot frames -------------------------------------------------------------------------------------


def _open_node(board: Board, node_id: int) -> None:
    origin = Origin("bench", f"n{node_id}", "epoch", 1, node_id)
    slots = tuple(range(node_id * GPUS, (node_id + 1) * GPUS))
    board.opened(Admission(origin, slots, records.LaneNext(0, 0), None), time.time_ns())
    board.learn(
        RefLayout(node_id, "epoch", ref, node_id * GPUS + ref, 1, tuple(range(1, GROUPS + 1)))
        for ref in range(GPUS)
    )


def _frame(node_id: int) -> records.HotFrame:
    now_ns = time.time_ns()
    times = struct.pack(f"<{GPUS}q", *[now_ns] * GPUS)
    pairs = GPUS * GROUPS
    numbers = struct.pack(f"<{pairs}q", *range(pairs))
    progress = records.HotProgress(
        ref=struct.pack(f"<{GPUS}I", *range(GPUS)),
        step=times,
        phase=bytes(GPUS),
        phase_since_ns=times,
        moved_ns=times,
        heard_ns=times,
        group_count=struct.pack(f"<{GPUS}H", *[GROUPS] * GPUS),
        group_index=struct.pack(f"<{pairs}H", *list(range(GROUPS)) * GPUS),
        enqueued=numbers,
        completed=numbers,
        sequence=numbers,
    )
    metrics: dict[str, list[float | None]] = {
        f"metric_{number}": [float(node_id + gpu) for gpu in range(GPUS)] for number in range(METRICS)
    }
    return records.HotFrame(t_ns=now_ns, metrics=hot_values.pack(metrics), progress=progress)


# --- commits ----------------------------------------------------------------------------------------


@contextmanager
def _scratch_database() -> Iterator[None]:
    """A migrated database of our own for as long as the block runs."""
    original = str(connection.settings_dict["NAME"])
    connection.settings_dict["TEST"]["NAME"] = f"clusterwatch_bench_{os.getpid()}"
    connection.creation.create_test_db(verbosity=0, autoclobber=True, serialize=False)
    try:
        yield
    finally:
        connection.creation.destroy_test_db(original, verbosity=0)


def _origins(count: int) -> list[Origin]:
    cluster = Cluster.objects.create(name="bench", simulated=True)
    nodes = Node.objects.bulk_create(
        Node(cluster=cluster, name=f"n{number}", machine_id=f"m{number}") for number in range(count)
    )
    return [Origin("bench", node.name, "epoch", cluster.pk, node.pk) for node in nodes]


def _commit_events(
    origins: list[Origin], total: int, put_records: int, group_puts: int, cache: series.PartitionCache
) -> dict[str, float]:
    event = records.Event(
        t_ns=time.time_ns(), source="bench", kind="numbered", severity="info", text="x" * 80
    )
    return _commit_all(origins, codec.encode(event), "urgent", total, put_records, group_puts, cache)


def _commit_blocks(origins: list[Origin], cache: series.PartitionCache) -> dict[str, float]:
    metrics = [records.BlockMetric(f"metric_{n}", "", 1.0, GPUS, 60) for n in range(METRICS)]
    columns = [
        array("q", [(n * 31 + place * place) % 997 for place in range(GPUS * 60)]) for n in range(METRICS)
    ]
    minute_ns = time.time_ns() // (60 * 10**9) * 60 * 10**9
    block = records.Block(
        minute_ns=minute_ns,
        codec=blocks.CODEC,
        metrics=metrics,
        data=blocks.encode(metrics, columns),
        rollup=blocks.pack_rollups(
            [blocks.rollup(column[60 * s : 60 * s + 60], 1.0) for column in columns for s in range(GPUS)]
        ),
    )
    return _commit_all(origins, codec.encode(block), "bulk", BLOCKS, 1, GROUP_PUTS, cache)


def _commit_all(
    origins: list[Origin],
    payload: bytes,
    lane: records.Lane,
    total: int,
    put_records: int,
    group_puts: int,
    cache: series.PartitionCache,
) -> dict[str, float]:
    """Checks and commits ``total`` records; {"per_s", "cpu_us"} of this process per record."""
    retention = retention_of_tags()
    position = dict.fromkeys(origins, 0)
    done, put_number = 0, 0
    started_s, cpu_s = time.perf_counter(), time.process_time()
    while done < total:
        group = []
        for _ in range(group_puts):
            origin = origins[put_number % len(origins)]
            put_number += 1
            first = position[origin] + 1
            position[origin] += put_records
            now_ns = time.time_ns()
            checked = [
                checks.check(lane, sequence, payload, now_ns, retention)
                for sequence in range(first, first + put_records)
            ]
            group.append(commit.LaneBatch(origin, lane, checked))
        done += commit.commit(group, cache).stored_count
    return {
        "per_s": done / (time.perf_counter() - started_s),
        "cpu_us": (time.process_time() - cpu_s) / done * 1e6,
    }
