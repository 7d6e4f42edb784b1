"""How much disk the series take, how fast they grow, and when the disk will be full.

Measured, not planned: bytes of the partitions that hold the last day, over the time they cover. What
retention will drop is counted: a table stops growing when it is as old as its retention. Tables without a
retention (jobs, incidents, evidence) are shown as one number and assumed to stay as they are.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from django.db import connection

from clusterwatch.store import partitions
from clusterwatch.store.partitions import DAY_NS

FORECAST_DAYS: Final = 3_650
MEASURED_MIN_S: Final = 600.0
"""A rate over a shorter time says nothing."""
_FIRST_ROWS: Final = 500
"""The rows that lie first in a partition came first: among them is its oldest, or nearly so."""


@dataclass(frozen=True, slots=True)
class TableDisk:
    """One class of series. Bytes count indexes and TOAST."""

    table: str
    retention_days: int
    partition_count: int
    size_bytes: int
    oldest_ns: int | None
    """time of its oldest row; None when it is empty"""
    bytes_per_day: float | None
    """over about the last day; None while nothing, or too little, was written"""
    full_bytes: float | None
    """its size when it is as old as its retention, at this rate"""
    full_in_days: float
    """until it is that old"""


@dataclass(frozen=True, slots=True)
class DiskForecast:
    """What the database takes and will take."""

    tables: tuple[TableDisk, ...]
    other_bytes: int
    """the rest of the database"""
    free_bytes: int | None
    """on the disk of the database; None: not known"""
    unknown_reason: str
    """why ``free_bytes`` is not known; else empty"""
    full_bytes: float | None
    """size of the database when every class is as old as its retention; None while no rate is known"""
    days_left: float | None
    """until the disk is full; None: not within ten years, or not known"""

    @property
    def size_bytes(self) -> int:
        return self.other_bytes + sum(table.size_bytes for table in self.tables)

    @property
    def is_known(self) -> bool:
        """There is a rate, and a disk to hold it against."""
        return self.free_bytes is not None and self.full_bytes is not None


def forecast(now_ns: int | None = None) -> DiskForecast:
    """Measures every table. Cost: some milliseconds and four queries a table."""
    now = now_ns or time.time_ns()
    tables = tuple(_measure(spec, now) for spec in partitions.TABLES.values())
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_database_size(current_database())")
        database_bytes = int(cursor.fetchone()[0])
    folder, reason = data_folder()
    free_bytes = shutil.disk_usage(folder).free if folder else None
    other_bytes = max(0, database_bytes - sum(table.size_bytes for table in tables))
    grown = [table.full_bytes for table in tables if table.full_bytes is not None]
    still = sum(table.size_bytes for table in tables if table.full_bytes is None)
    full_bytes = other_bytes + still + sum(grown) if grown else None
    days_left = None if free_bytes is None else days_until_full(tables, free_bytes)
    return DiskForecast(tables, other_bytes, free_bytes, reason, full_bytes, days_left)


def days_until_full(tables: Sequence[TableDisk], free_bytes: int) -> float | None:
    """When growth has used ``free_bytes``; None when it never does, or not within ten years.

    Growth is a broken line: each table adds its rate until it is as old as its retention.
    """
    growing = sorted(
        (table.full_in_days, table.bytes_per_day)
        for table in tables
        if table.bytes_per_day and table.full_in_days > 0
    )
    rate = sum(per_day for _, per_day in growing)
    left, today = float(free_bytes), 0.0
    for until, per_day in growing:
        if rate > 0 and left <= rate * (until - today):
            found = today + left / rate
            return found if found <= FORECAST_DAYS else None
        left -= rate * (until - today)
        today, rate = until, rate - per_day
    return None


def data_folder() -> tuple[Path | None, str]:
    """The folder of the server's data, or None and why it is not known.

    A server process works in its data folder; where it runs on this machine, /proc says which that is.
    """
    host = str(connection.settings_dict.get("HOST") or "")
    if host and not host.startswith("/"):
        return None, f"PostgreSQL runs on {host}: look at its disk there"
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        process = Path("/proc") / str(cursor.fetchone()[0])
    try:
        if "postgres" not in (process / "comm").read_text(encoding="utf-8"):
            return None, "PostgreSQL runs in another container: look at its disk there"
        return (process / "cwd").resolve(strict=True), ""
    except OSError:
        return None, "PostgreSQL belongs to another user, or runs in another container"


def _measure(spec: partitions.SeriesTable, now_ns: int) -> TableDisk:
    sizes = partitions.partition_sizes(spec.name)
    retention_days = spec.retention_ns // DAY_NS
    oldest_ns = _oldest_row(spec, sorted(sizes))
    total = sum(sizes.values())
    per_day = None if oldest_ns is None else _bytes_per_day(spec, sizes, oldest_ns, now_ns)
    # A partition is dropped when its last row is too old, so on average half of one more is kept.
    kept_days = retention_days + spec.width_ns / DAY_NS / 2
    age_days = 0.0 if oldest_ns is None else max(0.0, (now_ns - oldest_ns) / DAY_NS)
    full_bytes = None if per_day is None else max(per_day * kept_days, 0.0)
    return TableDisk(
        spec.name, retention_days, len(sizes), total, oldest_ns, per_day, full_bytes,
        max(0.0, kept_days - age_days),
    )  # fmt: skip


def _bytes_per_day(
    spec: partitions.SeriesTable, sizes: dict[int, int], oldest_ns: int, now_ns: int
) -> float | None:
    """Over the partitions that reach into the last day, from their start or from the first row of all."""
    recent = [start for start in sizes if start <= now_ns < start + spec.width_ns + DAY_NS]
    if not recent:
        return None
    start_ns = max(min(recent), oldest_ns)
    covered_s = (now_ns - start_ns) / 1e9
    return sum(sizes[start] for start in recent) / covered_s * 86_400 if covered_s >= MEASURED_MIN_S else None


def _oldest_row(spec: partitions.SeriesTable, starts: Sequence[int]) -> int | None:
    """Time of about the oldest row: of those that lie first in the first partition that has any."""
    with connection.cursor() as cursor:
        for start_ns in starts:
            name = spec.partition_name(start_ns)
            cursor.execute(
                f'SELECT min(t_ns) FROM (SELECT t_ns FROM "{name}" LIMIT {_FIRST_ROWS}) AS first'  # noqa: S608
            )
            (found,) = cursor.fetchone()
            if found is not None:
                return int(found)
    return None
