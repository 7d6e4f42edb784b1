"""What nodes know and what happened on them, as their agents and the gateway would have stored it."""

from __future__ import annotations

import time

from psycopg.types.json import Jsonb

from clusterwatch.fleet.models import Node
from clusterwatch.store import node_readings, partitions, series
from clusterwatch.store.node_readings import NodeRow
from collectors.wire import readings
from collectors.wire.readings import Table

Value = tuple[str, str, float | None, str]


def table_of(*values: Value, age_s: float = 2.0) -> Table:
    """(entity, metric, value, quality) rows of one source that looked ``age_s`` before it was sent."""
    entities = list(dict.fromkeys(entity for entity, *_ in values))
    metrics = list(dict.fromkeys(metric for _, metric, *_ in values))
    qualities = list(dict.fromkeys(quality for *_, quality in values))
    return Table(
        [readings.SourceWord("sysfs", "ok", 1.0, age_s)], entities, metrics, qualities,
        [entities.index(value[0]) for value in values], [metrics.index(value[1]) for value in values],
        [0] * len(values), [qualities.index(value[3]) for value in values], [value[2] for value in values],
    )  # fmt: skip


def wide_node() -> Table:
    """Eight GPUs with their NVLinks, nine ports of 60 counters, disks and mounts, some of it unknown."""
    gpus = [f"GPU-{n}1b2c3d4-0000-4000-8000-00000000000{n}" for n in range(8)]
    rows: list[Value] = []
    for n, gpu in enumerate(gpus):
        rows += [(f"gpu/{gpu}", "power_w", 300.0 + n, "ok"), (f"gpu/{gpu}", "temperature_c", 50 + n, "ok")]
        rows += [(f"gpu/{gpu}", "sm_clock_mhz", 1_980, "ok"), (f"gpu/{gpu}", "util_ratio", 0.97, "ok")]
        rows.append((f"gpu/{gpu}", "memory_temperature_c", None, "blank_sentinel"))
        rows += [(f"nvlink/{gpu}/{link}", "crc_errors_total", link % 3, "ok") for link in range(18)]
        rows += [(f"pci/0000:{n}2:00.0", "pcie_width_count", 16, "ok")]
        rows += [(f"port/mlx5_{n}/1", f"counter_{c}_total", c % 4, "ok") for c in range(60)]
        rows += [(f"port/mlx5_{n}/1", "rate_gbps", 400, "ok"), (f"nic/eth{n}", "speed_gbps", None, "einval")]
        rows += [(f"disk/nvme{n}n1", "read_await_s", 0.00012, "ok")]
    rows += [("mount//mnt/shared/of/a/long/name", "rpc_in_flight_count", 3, "ok")]
    rows += [("host", f"host_pressure_{what}_some_ratio", 0.031, "ok") for what in ("cpu", "io", "memory")]
    return table_of(*rows)


def know(node: Node, table: Table, age_s: int = 3) -> None:
    t_ns = time.time_ns() - age_s * 10**9
    row = NodeRow(node.pk, node.cluster_id, t_ns, "e1", time.time_ns(), readings.pack(table))
    node_readings.put([row], t_ns)


def happen(node: Node, kind: str, age_s: int, job_id: int | None = None) -> None:
    """An event of the node, or of a job on it."""
    t_ns = time.time_ns() - age_s * 10**9
    partitions.ensure("event", [t_ns])
    rows = series.Rows()
    rank = (None, None, None, None) if job_id is None else (job_id, 0, "", 5)
    head = (node.cluster_id, node.pk, t_ns, "e1", age_s)
    rows.add("event", (*head, "kernel_log", kind, "critical", f"{kind} seen", Jsonb({"code": "79"}), *rank))
    rows.write()
