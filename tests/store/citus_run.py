"""One life of a distributed database as JSON: run with CLUSTERWATCH_DATABASE_URL naming a coordinator.

Migrates, distributes, ingests blocks and events of 40 nodes through the product's own commit, reads them
back, and explains the very statements that were sent.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
import time
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import django
from django.core.management import call_command
from django.db import connection

NODES = 40
MINUTE_NS = 60 * 10**9


def main() -> None:
    """The whole run."""
    from clusterwatch.ingest import commit
    from clusterwatch.store import distribution, partitions, queries, series

    call_command("migrate", verbosity=0)
    placed = [placed.table for placed in distribution.distribute() if placed.new]
    again = [placed.table for placed in distribution.distribute() if placed.new]
    partitions.ensure_ahead()
    minute_ns = time.time_ns() // MINUTE_NS * MINUTE_NS - 2 * MINUTE_NS
    batches = list(_batches(minute_ns))
    cache = series.PartitionCache()
    stored = commit.commit(batches, cache).stored_count
    rows = _rows()
    commit.commit(batches, series.PartitionCache())
    rows_then = _rows()
    origin = batches[0].origin
    with _statements() as sent:
        values = queries.raw_values(origin.node_id, "gpu_power_w", minute_ns, minute_ns + MINUTE_NS)
        queries.rollup(origin.node_id, "gpu_power_w", minute_ns, minute_ns + MINUTE_NS)
    dropped = partitions.drop_expired(time.time_ns() + 3000 * 86_400 * 10**9)
    print(
        json.dumps(
            {
                "placed": placed,
                "placed_again": again,
                "sent": sum(len(batch.records) for batch in batches),
                "stored": stored,
                "rows": rows,
                "rows_after_sending_twice": rows_then,
                "values_are_right": values is not None and values.values[:, 0].tolist() == list(range(60)),
                "tasks_of_single_node_reads": [
                    _tasks(*statement) for statement in sent if "node_id" in statement[0]
                ],
                "per_minute_aggregate_is_pushed_down": _is_pushed_down(minute_ns),
                "partitions_dropped": len(dropped),
            }
        )
    )


def _batches(minute_ns: int) -> Iterator[Any]:
    from clusterwatch.fleet.models import Cluster, Node
    from clusterwatch.ingest.apply import Origin
    from clusterwatch.ingest.checks import check
    from clusterwatch.ingest.commit import LaneBatch
    from clusterwatch.ingest.hub import retention_of_tags
    from collectors.wire import codec

    cluster = Cluster.objects.create(name="spread")
    kept = retention_of_tags()
    for number in range(NODES):
        node = Node.objects.create(cluster=cluster, name=f"n{number}", machine_id=f"m{number}")
        origin = Origin("spread", node.name, "epoch", cluster.pk, node.pk)
        for lane, record in (("bulk", _block(minute_ns)), ("urgent", _event(minute_ns))):
            checked = check(lane, 1, codec.encode(record), time.time_ns(), kept)  # type: ignore[arg-type]
            yield LaneBatch(origin, lane, [checked])  # type: ignore[arg-type]


def _block(minute_ns: int) -> Any:
    from collectors.wire import blocks, records

    header = records.BlockMetric("gpu_power_w", "w", 1.0, 1, 60)
    return records.Block(
        minute_ns=minute_ns,
        codec=blocks.CODEC,
        metrics=[header],
        data=blocks.encode([header], [array("q", range(60))]),
        rollup=blocks.pack_rollups([blocks.rollup(range(60), 1.0)]),
    )


def _event(t_ns: int) -> Any:
    from collectors.wire import records

    return records.Event(t_ns=t_ns, source="test", kind="numbered", severity="info", text="one")


def _rows() -> dict[str, int]:
    with connection.cursor() as cursor:
        found = {}
        for table in ("raw_block", "node_minute", "event"):
            cursor.execute(f"SELECT count(*) FROM {table}")
            found[table] = cursor.fetchone()[0]
        return found


@contextmanager
def _statements() -> Iterator[list[tuple[str, Any]]]:
    sent: list[tuple[str, Any]] = []

    def note(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        sent.append((sql, params))
        return execute(sql, params, many, context)

    with connection.execute_wrapper(note):
        yield sent


def _plan(sql: str, params: Sequence[Any] | None = None) -> str:
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN (COSTS OFF) {sql}", params)
        return "\n".join(row[0] for row in cursor.fetchall())


def _tasks(sql: str, params: Sequence[Any]) -> int:
    return max(int(count) for count in re.findall(r"Task Count: (\d+)", _plan(sql, params)) or [0])


def _is_pushed_down(minute_ns: int) -> bool:
    """The sum is made where the rows lie: each task aggregates, and only its result travels."""
    plan = _plan(
        "SELECT t_ns, count(*), min(low[1]), max(high[1]) FROM node_minute"
        f" WHERE t_ns = {minute_ns} GROUP BY t_ns"
    )
    below = plan.partition("Task Count")[2]
    return "Aggregate" in below and "Seq Scan" not in plan.partition("Custom Scan")[0]


if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "clusterwatch.project.settings")
    os.environ.setdefault("CLUSTERWATCH_SECRET_KEY", "only-for-tests-" + "0" * 40)
    with tempfile.TemporaryDirectory(prefix="cw-citus-") as folder:
        os.environ.setdefault("CLUSTERWATCH_STATE_DIR", folder)
        django.setup()
        main()
    sys.exit(0)
