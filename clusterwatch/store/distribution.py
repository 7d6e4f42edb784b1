"""Node-keyed tables over several PostgreSQL machines, by the Citus extension: same SQL, same code.

What is kept per node (blocks, rollups, events, steps, traces, stacks, phases) becomes distributed by
``node_id`` and co-located, so that one node's rows of every table lie on one machine. What they are joined
with becomes a reference table, a copy on each machine. Everything else (accounts, jobs, incidents, cursors,
what is kept per cluster) stays on the coordinator.

Rules that tables and queries obey so that this works, held by tests/store/test_distribution.py:
``node_id`` is in every unique key and never updated; rows of series are never updated or deleted one by one;
there is no foreign key to or from such a table; partitions are made ahead, since a row without one fails
with another error code there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from django.db import connection

NODE_KEYED: Final = ("raw_block", "node_minute", "steps", "edges", "event", "phase", "trace", "stacks")
"""Distributed by ``node_id``, co-located with the first."""
NODE_STATE: Final = ("node_readings",)
"""One row per node, nothing of its past: distributed like those, but the row is replaced by a newer one, by
an INSERT ... ON CONFLICT that names the node, so that one machine decides."""
REFERENCE: Final = ("block_shape",)
"""Small tables that node-keyed rows point to: a copy on each machine."""
SHARD_COUNT: Final = 32
"""Shards of a table, Citus' own default: enough for 16 machines with two cores each to share evenly."""


class CannotDistribute(Exception):
    """The server cannot do it; the text says what is missing and what to do."""


@dataclass(frozen=True, slots=True)
class Placed:
    """One table and what became of it."""

    table: str
    how: str
    """``distributed by node_id`` or ``reference``"""
    new: bool
    """False when it already was so"""


def is_installed() -> bool:
    """This database has the extension."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1 FROM pg_extension WHERE extname = 'citus'")
        return cursor.fetchone() is not None


def distribute(shard_count: int = SHARD_COUNT) -> Iterator[Placed]:
    """Places every table; may be run again, and goes on where it was interrupted.

    A table's rows move while it is locked: ingest waits, agents keep their records meanwhile.
    Raises:
        CannotDistribute: no extension, or no machine to place shards on.
        django.db.Error: what the database says, for example that a machine is down.
    """
    _require_machines()
    for table in REFERENCE:
        yield Placed(table, "reference", _place(table, "SELECT create_reference_table(%s)", [table]))
    first, *others = NODE_KEYED
    alone = "SELECT create_distributed_table(%s, 'node_id', colocate_with := 'none', shard_count := %s)"
    yield Placed(first, "distributed by node_id", _place(first, alone, [first, shard_count]))
    beside = "SELECT create_distributed_table(%s, 'node_id', colocate_with := %s)"
    for table in (*others, *NODE_STATE):
        yield Placed(table, "distributed by node_id", _place(table, beside, [table, first]))


def _require_machines() -> None:
    if not is_installed():
        raise CannotDistribute(
            "this database has no Citus extension: install it on every machine,"
            " then run CREATE EXTENSION citus in this database on each"
        )
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_dist_node WHERE shouldhaveshards AND isactive")
        row = cursor.fetchone()
    if not row or not row[0]:
        raise CannotDistribute(
            "no machine holds shards: run SELECT citus_add_node(host, port) for each on the coordinator"
        )


def _place(table: str, statement: str, arguments: list[str | int]) -> bool:
    """Runs the statement unless the table is placed already."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1 FROM pg_dist_partition WHERE logicalrelid = %s::regclass", [table])
        if cursor.fetchone():
            return False
        cursor.execute(statement, arguments)
        return True
