"""Time-partitioned series tables: what they are, partitions made ahead, and retention by dropping them.

A row is never deleted: a partition whose newest row is older than its table's retention is dropped whole.
Every table is partitioned by its ``t_ns`` (integer ns UTC); a partition is named ``<table>_p<YYYYMMDD>``
after its first day, or ``<table>_p<YYYYMMDDHH>`` after its first hour where it is shorter than a day.
Works on PostgreSQL 15 to 18 with plain declarative partitioning, no extension.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from django.conf import settings
from django.db import OperationalError, connection, transaction

from clusterwatch.store import block_shapes, device_readings, node_readings

logger = logging.getLogger(__name__)

HOUR_NS: Final = 3_600 * 10**9
DAY_NS: Final = 24 * HOUR_NS
AHEAD_DAYS: Final = 3
"""Partitions exist this far into the future: a stopped maintenance is noticed long before rows fail."""
LOCK_TIMEOUT_MS: Final = 2_000
"""Dropping waits no longer than this behind a reader; the next round tries again."""
MAINTENANCE_LOCK: Final = 0x636C7773
"""Advisory lock: one process maintains partitions at a time."""


@dataclass(frozen=True, slots=True)
class SeriesTable:
    """One partitioned table; its retention is ``settings.RETENTION_DAYS[name]``."""

    name: str
    partition_hours: int
    """24 or more: whole days"""
    inline_bytes: int = 0
    """Rows up to this size stay in the table's own pages; 0: the server's default of about 2 kB"""

    @property
    def retention_ns(self) -> int:
        return int(settings.RETENTION_DAYS[self.name]) * DAY_NS

    @property
    def width_ns(self) -> int:
        return self.partition_hours * HOUR_NS

    def start_of(self, t_ns: int) -> int:
        """First ns of the partition that holds ``t_ns``."""
        return t_ns - t_ns % self.width_ns

    def partition_name(self, start_ns: int) -> str:
        first = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(hours=start_ns // HOUR_NS)
        return f"{self.name}_p{first:{self._suffix}}"

    def start_of_named(self, partition: str) -> int:
        """First ns of a partition by its name."""
        text = partition.removeprefix(f"{self.name}_p")
        first = datetime.strptime(text, self._suffix).replace(tzinfo=UTC)
        return int(first.timestamp()) * 10**9

    @property
    def _suffix(self) -> str:
        return "%Y%m%d" if self.partition_hours >= 24 else "%Y%m%d%H"


TABLES: Final = {
    table.name: table
    for table in (
        SeriesTable("raw_block", 6),
        SeriesTable("node_minute", 24),
        SeriesTable("fleet_minute", 24),
        SeriesTable("fleet_percentile", 24),
        SeriesTable("map_frame", 24),
        SeriesTable("steps", 24),
        SeriesTable("edges", 24),
        SeriesTable("job_steps", 7 * 24),
        SeriesTable("trace", 24),
        SeriesTable("stacks", 24),
        SeriesTable("event", 7 * 24),
        SeriesTable("phase", 7 * 24),
    )
}


SHAPED: Final = ("raw_block", "node_minute")
"""Tables whose rows name a row of ``block_shape``."""


def oldest_kept_ns(table: str, now_ns: int) -> int:
    """Rows older than this are expired: they are not stored, and their partitions are dropped."""
    return now_ns - TABLES[table].retention_ns


def ensure(table: str, times_ns: Iterable[int]) -> list[str]:
    """Makes the partitions that hold ``times_ns``; returns the names of those it made.

    Safe to call from several processes at once: an advisory lock serialises the making. Costs one query when
    all are there.
    """
    spec = TABLES[table]
    starts = sorted({spec.start_of(t_ns) for t_ns in times_ns})
    if _partitions(table).keys() >= {spec.partition_name(start_ns) for start_ns in starts}:
        return []
    made = []
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [MAINTENANCE_LOCK])
        existing = set(_partitions(table))
        for start_ns in starts:
            name = spec.partition_name(start_ns)
            if name in existing:
                continue
            end_ns = start_ns + spec.width_ns
            cursor.execute(
                f'CREATE TABLE "{name}" PARTITION OF "{table}" FOR VALUES FROM ({start_ns}) TO ({end_ns})'
            )
            made.append(name)
    return made


def ensure_ahead(now_ns: int | None = None) -> list[str]:
    """Makes every table's partitions from today until ``AHEAD_DAYS`` from now."""
    now = now_ns or time.time_ns()
    until = now + AHEAD_DAYS * DAY_NS
    return [
        name
        for table in TABLES.values()
        for name in ensure(table.name, range(table.start_of(now), until + 1, table.width_ns))
    ]


def drop_expired(now_ns: int | None = None) -> list[str]:
    """Drops partitions whose every row is older than the table's retention; returns their names."""
    now = now_ns or time.time_ns()
    dropped = []
    for table in TABLES:
        oldest_ns = oldest_kept_ns(table, now)
        expired = [name for name, end_ns in _partitions(table).items() if end_ns <= oldest_ns]
        dropped += [name for name in expired if _drop(name)]
    return dropped


def maintain(now_ns: int | None = None) -> dict[str, list[str]]:
    """One round of maintenance: ``{"made": names, "dropped": names}``."""
    changed = {"made": ensure_ahead(now_ns), "dropped": drop_expired(now_ns)}
    block_shapes.drop_unused(max(int(settings.RETENTION_DAYS[table]) for table in SHAPED))
    node_readings.drop_unseen(now_ns or time.time_ns())
    device_readings.drop_unseen(now_ns or time.time_ns())
    return changed


def sizes() -> list[tuple[str, int, int]]:
    """(table, bytes with indexes and TOAST, partitions) of every series table."""
    found = {table: partition_sizes(table) for table in TABLES}
    return [(table, sum(parts.values()), len(parts)) for table, parts in found.items()]


def partition_sizes(table: str) -> dict[int, int]:
    """First ns of each partition -> its bytes with indexes and TOAST."""
    spec = TABLES[table]
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT c.relname, pg_total_relation_size(c.oid) FROM pg_inherits i"
            " JOIN pg_class c ON c.oid = i.inhrelid WHERE i.inhparent = %s::regclass",
            [table],
        )
        return {spec.start_of_named(name): int(size) for name, size in cursor.fetchall()}


def _partitions(table: str) -> dict[str, int]:
    """name -> end ns (exclusive) of a table's partitions, by their names."""
    spec = TABLES[table]
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid"
            " WHERE i.inhparent = %s::regclass",
            [table],
        )
        return {name: spec.start_of_named(name) + spec.width_ns for (name,) in cursor.fetchall()}


def _drop(name: str) -> bool:
    """False when a long reader holds it: the next round will get it."""
    try:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(f"SET LOCAL lock_timeout = {LOCK_TIMEOUT_MS}")
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", [MAINTENANCE_LOCK])
            cursor.execute(f'DROP TABLE IF EXISTS "{name}"')
    except OperationalError as error:
        logger.warning("partition_kept name=%s reason=%s", name, str(error).splitlines()[0])
        return False
    return True
