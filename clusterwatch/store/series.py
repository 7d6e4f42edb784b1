"""Rows of series into their partitioned tables by binary COPY.

In: rows as tuples in the order of ``COLUMNS`` and minute blocks, gathered in a ``Rows``. Out: one COPY per
table, inside the caller's transaction. ``prepare`` must run before that transaction: making a partition locks
its table.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable
from typing import Any, Final

from django.db import connection

from clusterwatch.store import cursors, edge_pack, late_minutes, partitions, step_pack
from clusterwatch.store.answers import MINUTE_NS
from clusterwatch.store.block_rows import BlockRow, minute_rows, raw_rows
from clusterwatch.store.block_shapes import BlockShapes
from collectors.wire import records

_HEAD: Final = (
    ("cluster_id", "int8"),
    ("node_id", "int8"),
    ("t_ns", "int8"),
    ("epoch", "text"),
    ("sequence", "int8"),
)
_PACKED: Final = (
    *_HEAD,
    ("job_id", "int8"),
    ("attempt", "int4"),
    ("world", "text"),
    ("data", "bytea"),
)
_PACKERS: Final[dict[str, Any]] = {"steps": step_pack, "edges": edge_pack}
"""Table -> the module that puts records of ranks of one node into one row."""
_RANK: Final = (("job_id", "int8"), ("attempt", "int4"), ("world", "text"), ("rank", "int4"))

COLUMNS: Final[dict[str, tuple[tuple[str, str], ...]]] = {
    "event": (
        *_HEAD,
        ("source", "text"),
        ("kind", "text"),
        ("severity", "text"),
        ("text", "text"),
        ("fields", "jsonb"),
        *_RANK,
    ),
    "steps": _PACKED,
    "edges": _PACKED,
    "trace": (
        *_HEAD,
        *_RANK,
        ("pid", "int8"),
        ("capture_id", "int8"),
        ("want", "text"),
        ("recorder", "text"),
        ("columns", "bytea"),
    ),
    "stacks": (
        *_HEAD,
        *_RANK,
        ("pid", "int8"),
        ("capture_id", "int8"),
        ("source", "text"),
        ("error", "text"),
        ("process_state", "text"),
        ("wchan", "text"),
        ("threads", "jsonb"),
    ),
    "phase": (
        *_HEAD,
        *_RANK,
        ("phase", "text"),
        ("before", "text"),
        ("before_s", "float8"),
        ("detail", "text"),
    ),
}


_RAW_BLOCK: Final = (
    'COPY raw_block (cluster_id, node_id, t_ns, epoch, sequence, shape_id, codec, "data")'
    " FROM STDIN (FORMAT BINARY)"
)
_NODE_MINUTE: Final = (
    "COPY node_minute (cluster_id, node_id, t_ns, epoch, sequence, shape_id, low, mean, high, last)"
    " FROM STDIN (FORMAT BINARY)"
)
_COPY_HEAD: Final = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_COPY_END: Final = b"\xff\xff"


class Rows:
    """Rows to be written together; the third value of each is its ``t_ns``."""

    def __init__(self) -> None:
        self._rows: dict[str, list[tuple[Any, ...]]] = defaultdict(list)
        self._blocks: list[BlockRow] = []
        self._minutes: list[BlockRow] = []
        self._told: dict[tuple[Any, ...], list[tuple[int, Any]]] = defaultdict(list)

    def add(self, table: str, row: tuple[Any, ...]) -> None:
        self._rows[table].append(row)

    def add_block(self, row: BlockRow, *, raw: bool) -> None:
        """A block's rollup, and with ``raw`` its data."""
        self._minutes.append(row)
        if raw:
            self._blocks.append(row)

    def add_told(
        self,
        table: str,
        origin: tuple[int, int, str],
        sequence: int,
        job_id: int,
        record: records.Steps | records.Edges,
    ) -> None:
        """One rank's steps or transfers; ``write`` puts those of one node, job and minute into one row.

        Args:
            table: ``steps`` or ``edges``.
            origin: cluster id, node id, epoch.
        """
        identity, minute_ns = record.id, record.t_ns // MINUTE_NS * MINUTE_NS
        key = (table, *origin, job_id, identity.attempt, identity.world, minute_ns)
        self._told[key].append((sequence, record))

    def __len__(self) -> int:
        rows = sum(map(len, self._rows.values())) + sum(map(len, self._told.values()))
        return rows + len(self._blocks) + len(self._minutes)

    def write(self) -> None:
        """COPYs every row. Raises what the database says; the caller's transaction is void then."""
        stepped = self._pack_told()
        with connection.cursor() as cursor:
            for table, rows in sorted(self._rows.items()):
                columns = COLUMNS[table]
                names = ", ".join(f'"{name}"' for name, _ in columns)
                with cursor.copy(f'COPY "{table}" ({names}) FROM STDIN (FORMAT BINARY)') as copy:
                    copy.set_types([kind for _, kind in columns])
                    for row in rows:
                        copy.write_row(row)
            for statement, packed in (
                (_RAW_BLOCK, raw_rows(self._blocks)),
                (_NODE_MINUTE, minute_rows(self._minutes)),
            ):
                if ready := b"".join(packed):
                    with cursor.copy(statement) as copy:
                        copy.write(_COPY_HEAD + ready + _COPY_END)
        late_minutes.note({(row.cluster_id, row.t_ns) for row in self._minutes} | stepped)

    def _pack_told(self) -> set[tuple[int, int]]:
        """The (cluster, minute) pairs of the steps among the rows it makes: those have a rollup.

        The first record's sequence is that of the row, so a row is as unique as what it is made of.
        """
        minutes = set()
        for key, told in self._told.items():
            table, cluster_id, node_id, epoch, job_id, attempt, world, minute_ns = key
            for part in _PACKERS[table].portions(told):
                kept = [record for _, record in part]
                head = (cluster_id, node_id, max(record.t_ns for record in kept), epoch, part[0][0])
                self.add(table, (*head, job_id, attempt, world, _PACKERS[table].pack(kept)))
            if table == "steps":
                minutes.add((cluster_id, minute_ns))
        self._told.clear()
        return minutes


class PartitionCache:
    """What a writer knows to exist: partitions, block shapes, lanes; makes what is missing.

    Partitions and shapes are safe between threads.
    """

    def __init__(self) -> None:
        self.lanes = cursors.Lanes()
        self.shapes = BlockShapes()
        self._lock = threading.Lock()
        self._known: set[tuple[str, int]] = set()

    def prepare(self, times: Iterable[tuple[str, int]]) -> None:
        """Makes the partitions for (table, t_ns) pairs; costs a query only for one not seen before."""
        starts = {(table, partitions.TABLES[table].start_of(t_ns)) for table, t_ns in times}
        with self._lock:
            missing = starts - self._known
        for table in sorted({table for table, _ in missing}):
            partitions.ensure(table, [start_ns for name, start_ns in missing if name == table])
        with self._lock:
            self._known |= missing

    def forget(self) -> None:
        """For when somebody else dropped a partition."""
        self.shapes.forget()
        with self._lock:
            self._known.clear()
