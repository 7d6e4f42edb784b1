"""The little cluster of docs/sql.md: two nodes of two GPUs, three minutes, one job; one node fell silent."""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np
from django.db import connection
from django.utils import timezone

from clusterwatch.fleet.models import Cluster, Node, Slot
from clusterwatch.jobs.models import Job
from clusterwatch.store import block_shapes, fleet_series, partitions
from clusterwatch.store.answers import MINUTE_NS, SECOND_NS
from clusterwatch.store.fleet_series import percentile_row
from collectors.wire.records import BlockMetric

START_NS = int(datetime(2026, 12, 1, 8, tzinfo=UTC).timestamp()) * SECOND_NS
METRICS = (
    BlockMetric("gpu_power_w", "w", 0.1, 2, 60),
    BlockMetric("gpu_temperature_c", "c", 1.0, 2, 60),
    BlockMetric("host_cpu_ratio", "ratio", 0.0001, 1, 60),
)


def seed() -> None:
    """Writes it; every number follows from node, GPU and minute."""
    cluster = Cluster.objects.create(name="tiny", slot_count=4, slots_version=4)
    nodes = [
        Node.objects.create(cluster=cluster, name=f"n{number}", machine_id=f"m{number}", rack="r1")
        for number in (1, 2)
    ]
    for number in range(4):
        Slot.objects.create(cluster=cluster, number=number, node=nodes[number // 2], gpu_index=number % 2)
    shape = block_shapes.shape_of(METRICS)
    shape_id = block_shapes.BlockShapes().ids([block_shapes.ShapeKey(cluster.pk, shape)])[
        cluster.pk, shape.digest
    ]
    partitions.ensure("node_minute", [START_NS])
    for place, node in enumerate(nodes):
        for minute in range(3 - place):  # n2 sends nothing for its last minute
            _store_minute(cluster.pk, node.pk, shape_id, place, minute)
    _store_percentiles(cluster)


def _store_minute(cluster_id: int, node_id: int, shape_id: int, place: int, minute: int) -> None:
    power = [600 + 20 * place + 5 * gpu + minute for gpu in range(2)]
    heat = [50 + 4 * place + 3 * gpu + 2 * minute for gpu in range(2)]
    mean = [*map(float, power), *map(float, heat), 0.25 + place / 4]
    spread = [9, 9, 1, 1, 0]
    low, high = np.subtract(mean, spread).tolist(), np.add(mean, spread).tolist()
    if place and not minute:
        low[1] = mean[1] = high[1] = float("nan")  # GPU 1 of n2 gave no power in its first minute
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO node_minute"
            " (cluster_id, node_id, t_ns, epoch, sequence, shape_id, low, mean, high, last)"
            " VALUES (%s, %s, %s, 'e', %s, %s, %s, %s, %s, %s)",
            [cluster_id, node_id, START_NS + minute * MINUTE_NS, minute + 1, shape_id, low, mean, high, high],
        )


def _store_percentiles(cluster: Cluster) -> None:
    job = Job.objects.create(cluster=cluster, key="llama-7", started_at=timezone.now())
    rows = []
    for step in range(6):
        values = np.array([600.0, 605.0, 620.0, 625.0]) + step
        t_ns = START_NS + step * 10 * SECOND_NS
        for scope, some in ((fleet_series.FLEET_SCOPE, values), (fleet_series.job_scope(job.pk), values[:2])):
            row = percentile_row(cluster.pk, scope, "gpu_power_w", t_ns, some)
            assert row is not None
            rows.append(row)
    fleet_series.write_percentiles(rows)
