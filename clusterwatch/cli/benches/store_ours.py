"""Our side of ``bench store``: blocks through check and commit, minutes of the fleet, bytes on disk."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import psycopg
from django.db import connection, transaction

from clusterwatch.cli.benches.cpu_time import tree_cpu_s
from clusterwatch.cli.benches.query_signals import GPUS, SAMPLES, Signals
from clusterwatch.fleet.models import Cluster, Node, Slot
from clusterwatch.fleet.slot_history import slots_at
from clusterwatch.ingest import checks, commit
from clusterwatch.ingest.apply import Origin
from clusterwatch.ingest.hub import retention_of_tags
from clusterwatch.ops.postgres import PostgresServer
from clusterwatch.store import block_arrays, cursors, series
from clusterwatch.store.fleet_build import build_fleet_minute
from collectors.wire import blocks, codec, records
from collectors.wire.metrics import GPU_METRICS

MINUTE_NS: Final = 60 * 10**9
NODE_VALUES: Final = GPUS * len(GPU_METRICS) * SAMPLES
GROUP: Final = 50
"""Blocks of one commit: a second of what 3,072 nodes send, as the gateway gathers them."""
EPOCH: Final = "0123456789abcdef0123456789abcdef"
HEADERS: Final = [
    records.BlockMetric(metric.name, metric.unit, metric.resolution, GPUS, SAMPLES) for metric in GPU_METRICS
]

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """A cluster and the minutes it sends, which end at ``end_minute`` (minutes since 1970, not included)."""

    cluster: str
    gpus: int
    minutes: int
    end_minute: int

    @property
    def nodes(self) -> int:
        return self.gpus // GPUS

    @property
    def values(self) -> int:
        return self.nodes * self.minutes * NODE_VALUES

    @property
    def first_minute(self) -> int:
        return self.end_minute - self.minutes


def measure(plan: Plan, server: PostgresServer, say: Say) -> dict[str, Any]:
    """Stores every block and says what it cost."""
    say(
        f"Ours: {plan.gpus} GPUs x {len(GPU_METRICS)} metrics x {plan.minutes} min,"
        f" {plan.values / 1e6:.1f} M values"
    )
    signals = Signals(plan.nodes, plan.first_minute)
    origins = make_fleet(plan)
    _open_lanes(origins)
    empty = sizes()
    cache, spent = series.PartitionCache(), Spent(server)
    made_s = time.perf_counter()
    for number, minute in enumerate(range(plan.first_minute, plan.end_minute), start=1):
        payloads = list(encoded(signals, minute))
        spent.add(partial(_commit, origins, payloads, number, cache))
    spent.settle()
    made_s = time.perf_counter() - made_s
    figures: dict[str, Any] = {
        "gpus": plan.gpus, "minutes": plan.minutes, "values": plan.values,
        "blocks_per_commit": GROUP, "generated_and_stored_s": round(made_s, 1),
        **spent.figures(plan.values),
        **_fleet_minutes(plan, origins[0].cluster_id, server),
        **_bytes(plan, empty, server),
    }  # fmt: skip
    for name, value in figures.items():
        say(f"  {name}: {value}")
    return figures


def make_fleet(plan: Plan) -> list[Origin]:
    """A cluster with its nodes and slots."""
    cluster = Cluster.objects.create(
        name=plan.cluster, simulated=True, slot_count=plan.gpus, slots_version=plan.gpus
    )
    nodes = Node.objects.bulk_create(
        Node(cluster=cluster, name=f"n{number:05d}", machine_id=f"m{number}") for number in range(plan.nodes)
    )
    Slot.objects.bulk_create(
        (
            Slot(cluster=cluster, number=place * GPUS + gpu, node=node, gpu_index=gpu)
            for place, node in enumerate(nodes)
            for gpu in range(GPUS)
        ),
        batch_size=5_000,
    )
    return [Origin(cluster.name, node.name, EPOCH, cluster.pk, node.pk) for node in nodes]


def _open_lanes(origins: Sequence[Origin]) -> None:
    """A node's cursors are made once in its life: that is no cost of a block."""
    for first in range(0, len(origins), 512):
        some = origins[first : first + 512]
        with transaction.atomic():
            cursors.Lanes().lock(
                cursors.LaneKey(origin.cluster, origin.node, origin.epoch, lane)
                for origin in some
                for lane in records.LANES
            )
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE store_ingestcursor")  # autovacuum does so within a minute


def encoded(signals: Signals, minute: int) -> Iterator[bytes]:
    """One minute of every node as it lies in a spool."""
    for chunk in signals.chunks():
        multiples = signals.minute(minute, chunk)
        frames = block_arrays.compress(block_arrays.shuffled_bytes(multiples))
        for frame, rollup in zip(frames, signals.rollup(multiples), strict=True):
            yield codec.encode(
                records.Block(
                    minute * MINUTE_NS, blocks.CODEC, HEADERS, frame, rollup.astype("<f4").tobytes()
                )
            )


def _commit(
    origins: Sequence[Origin], payloads: Sequence[bytes], sequence: int, cache: series.PartitionCache
) -> None:
    retention = retention_of_tags()
    for first in range(0, len(origins), GROUP):
        now_ns = time.time_ns()
        batches = [
            commit.LaneBatch(origin, "bulk", [checks.check("bulk", sequence, payload, now_ns, retention)])
            for origin, payload in zip(
                origins[first : first + GROUP], payloads[first : first + GROUP], strict=True
            )
        ]
        stored = commit.commit(batches, cache).stored_count
        if stored != len(batches):
            raise ValueError(f"{stored} of {len(batches)} blocks were stored")


class Spent:
    """CPU of this process and of every process of the server, over pieces of work."""

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self._pid = postmaster_pid(server)
        self.ours_s = self.server_s = 0.0

    def add(self, work: Callable[[], object]) -> None:
        ours_s, server_s = time.process_time(), tree_cpu_s(self._pid)
        work()
        self.ours_s += time.process_time() - ours_s
        self.server_s += tree_cpu_s(self._pid) - server_s

    def settle(self) -> None:
        """What the server put off: a checkpoint."""
        self.add(lambda: checkpoint(self._server))

    def figures(self, values: int) -> dict[str, float]:
        """In CPU seconds per million values, and µs per block."""
        count = values / NODE_VALUES
        return {
            "ours_us_per_block": round(self.ours_s / count * 1e6),
            "postgresql_us_per_block": round(self.server_s / count * 1e6),
            "cpu_s_per_million_values": round((self.ours_s + self.server_s) / values * 1e6, 4),
        }


def postmaster_pid(server: PostgresServer) -> int:
    return int((server.data_dir / "postmaster.pid").read_text(encoding="utf-8").split()[0])


def checkpoint(server: PostgresServer) -> None:
    with psycopg.connect(server.admin_url(), autocommit=True) as admin:
        admin.execute("CHECKPOINT")


# --- what lies on disk --------------------------------------------------------------------------------------

_TABLES: Final = ("raw_block", "node_minute", "fleet_minute")


def sizes() -> dict[str, tuple[int, int, int]]:
    """Table -> bytes of rows, indexes and TOAST (its own index in it), over all partitions."""
    found = {}
    with connection.cursor() as cursor:
        for table in _TABLES:
            cursor.execute(
                "SELECT sum(pg_table_size(relid))::bigint, sum(pg_indexes_size(relid))::bigint,"
                " sum(coalesce(pg_total_relation_size(nullif(reltoastrelid, 0)), 0))::bigint"
                " FROM pg_partition_tree(%s::regclass) JOIN pg_class ON oid = relid WHERE isleaf",
                [table],
            )
            with_toast, indexes, toast = cursor.fetchone()
            found[table] = (int(with_toast) - int(toast), int(indexes), int(toast))
    return found


def _bytes(plan: Plan, empty: dict[str, tuple[int, int, int]], server: PostgresServer) -> dict[str, Any]:
    """Bytes per raw value after VACUUM FREEZE, beyond what was there before."""
    with connection.cursor() as cursor:
        for table in _TABLES:
            cursor.execute(f"VACUUM (FREEZE) {table}")
    figures: dict[str, Any] = {}
    for table, after in sizes().items():
        rows, indexes, toast = (
            round(max(0, new - old) / plan.values, 4) for new, old in zip(after, empty[table], strict=True)
        )
        figures[f"{table}_bytes_per_value"] = round(rows + indexes + toast, 4)
        figures[f"{table}_of_rows_indexes_toast"] = (rows, indexes, toast)
    return figures


def _fleet_minutes(plan: Plan, cluster_id: int, server: PostgresServer) -> dict[str, float]:
    spent = Spent(server)
    for minute in range(plan.first_minute, plan.end_minute):
        t_ns = minute * MINUTE_NS
        spent.add(partial(build_fleet_minute, cluster_id, t_ns, slots_at(cluster_id, t_ns)))
    return {"fleet_minute_cpu_s_per_minute": round((spent.ours_s + spent.server_s) / plan.minutes, 3)}
