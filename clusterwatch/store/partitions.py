"""Time-partitioned series tables: what they are, partitions made ahead, and retention by dropping them.

A row is never deleted: a partition whose newest row is older than its table's retention is dropped whole.
Every table is partitioned by its ``t_ns`` (integer ns UTC); a partition is named ``<table>_p<YYYYMMDD>``
after its first day. Works on PostgreSQL 15 to 18 with plain declarative partitioning, no extension.
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

logger = logging.getLogger(__name__)

DAY_NS: Final = 86_400 * 10**9
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
    partition_days: int

    @property
    def retention_ns(self) -> int:
        return int(settings.RETENTION_DAYS[self.name]) * DAY_NS

    def start_of(self, t_ns: int) -> int:
        """First ns of the partition that holds ``t_ns``."""
        width_ns = self.partition_days * DAY_NS
        return t_ns - t_ns % width_ns

    def partition_name(self, start_ns: int) -> str:
        day = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(days=start_ns // DAY_NS)
        return f"{self.name}_p{day:%Y%m%d}"


TABLES: Final = {
    table.name: table
    for table in (
        SeriesTable("raw_block", 1),
        SeriesTable("node_minute", 1),
        SeriesTable("steps", 1),
        SeriesTable("trace", 1),
        SeriesTable("stacks", 1),
        SeriesTable("event", 7),
        SeriesTable("phase", 7),
    )
}


def oldest_kept_ns(table: str, now_ns: int) -> int:
    """Rows older than this are expired: they are not stored, and their partitions are dropped."""
    return now_ns - TABLES[table].retention_ns


def ensure(table: str, times_ns: Iterable[int]) -> list[str]:
    """Makes the partitions that hold ``times_ns``; returns the names of those it made.

    Safe to call from several processes at once: an advisory lock serialises the making.
    """
    spec = TABLES[table]
    starts = sorted({spec.start_of(t_ns) for t_ns in times_ns})
    made = []
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [MAINTENANCE_LOCK])
        existing = set(_partitions(table))
        for start_ns in starts:
            name = spec.partition_name(start_ns)
            if name in existing:
                continue
            end_ns = start_ns + spec.partition_days * DAY_NS
            cursor.execute(
                f'CREATE TABLE "{name}" PARTITION OF "{table}" FOR VALUES FROM ({start_ns}) TO ({end_ns})'
            )
            made.append(name)
    return made


def ensure_ahead(now_ns: int | None = None) -> list[str]:
    """Makes every table's partitions from today until ``AHEAD_DAYS`` from now."""
    now = now_ns or time.time_ns()
    days = [now + day * DAY_NS for day in range(AHEAD_DAYS + 1)]
    return [name for table in TABLES for name in ensure(table, days)]


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
    return {"made": ensure_ahead(now_ns), "dropped": drop_expired(now_ns)}


def sizes() -> list[tuple[str, int, int]]:
    """(table, bytes with indexes and TOAST, partitions) of every series table."""
    found = []
    with connection.cursor() as cursor:
        for table in TABLES:
            cursor.execute(
                "SELECT coalesce(sum(pg_total_relation_size(relid)), 0)::bigint, count(*)"
                " FROM pg_partition_tree(%s::regclass) WHERE isleaf",
                [table],
            )
            total_bytes, count = cursor.fetchone()
            found.append((table, int(total_bytes), int(count)))
    return found


def _partitions(table: str) -> dict[str, int]:
    """name -> end ns (exclusive) of a table's partitions, by their names."""
    width_ns = TABLES[table].partition_days * DAY_NS
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid"
            " WHERE i.inhparent = %s::regclass",
            [table],
        )
        names = [row[0] for row in cursor.fetchall()]
    ends = {}
    for name in names:
        day = datetime.strptime(name.removeprefix(f"{table}_p"), "%Y%m%d").replace(tzinfo=UTC)
        ends[name] = int(day.timestamp()) * 10**9 + width_ns
    return ends


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
