"""Disk: what is measured from partitions, and when growth that retention bounds fills a disk."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from django.db import connection
from django.test import override_settings

from clusterwatch.project import environment
from clusterwatch.store import disk, partitions
from clusterwatch.store.disk import TableDisk, days_until_full

DAY_NS = partitions.DAY_NS
NOW_NS = 20_700 * DAY_NS + DAY_NS // 2
GIB = 2**30


def growing(per_day: float | None, full_in_days: float) -> TableDisk:
    return TableDisk("steps", 2, 1, 0, 0, per_day, None, full_in_days)


def test_a_disk_is_full_when_growth_has_used_it() -> None:
    assert days_until_full([growing(10, 30)], 100) == 10
    assert days_until_full([growing(10, 30), growing(40, 30)], 100) == 2


def test_a_table_as_old_as_its_retention_grows_no_more() -> None:
    assert days_until_full([growing(10, 5)], 100) is None
    assert days_until_full([growing(10, 0), growing(5, 40)], 100) == 20
    assert days_until_full([growing(10, 5), growing(10, 50)], 200) == 5 + (200 - 100) / 10


def test_nothing_that_grows_never_fills_a_disk() -> None:
    assert days_until_full([growing(None, 30), growing(0.0, 30)], 1) is None
    assert days_until_full([growing(0.001, 10_000)], 10) is None


def write(table: str, t_ns: int, rows: int) -> None:
    partitions.ensure(table, [t_ns])
    with connection.cursor() as cursor:
        cursor.executemany(
            "INSERT INTO map_frame (cluster_id, mode, t_ns, slots_version, data) VALUES (1, %s, %s, 1, %s)",
            [(f"m{row}", t_ns, np.random.default_rng(row).bytes(20_000)) for row in range(rows)],
        )


@pytest.fixture
def frames(db: None) -> None:
    """From yesterday noon until now, 2 MB in all."""
    with connection.cursor() as cursor:
        for start_ns in partitions.partition_sizes("map_frame"):
            cursor.execute(f'DROP TABLE "{partitions.TABLES["map_frame"].partition_name(start_ns)}"')
    write("map_frame", NOW_NS - DAY_NS, 50)
    write("map_frame", NOW_NS - 10**9, 50)


def measured() -> dict[str, Any]:
    found = disk.forecast(NOW_NS)
    return {one.table: one for one in found.tables}


@pytest.mark.usefixtures("frames")
def test_the_rate_is_that_of_about_the_last_day() -> None:
    one = measured()["map_frame"]
    assert one.oldest_ns == NOW_NS - DAY_NS and one.partition_count == 2
    assert one.bytes_per_day == pytest.approx(one.size_bytes) and one.size_bytes > 2_000_000
    with override_settings(RETENTION_DAYS=environment.RETENTION_DAYS | {"map_frame": 70}):
        assert measured()["map_frame"].full_bytes == pytest.approx(one.bytes_per_day * 70.5)


@pytest.mark.usefixtures("frames")
def test_the_forecast_knows_the_disk_of_a_server_on_this_machine() -> None:
    found = disk.forecast(NOW_NS)
    assert found.free_bytes and not found.unknown_reason and found.is_known
    assert found.size_bytes > 2_000_000 and found.full_bytes
    folder, _ = disk.data_folder()
    assert folder is not None and folder.is_dir()


@pytest.mark.usefixtures("frames")
def test_a_server_elsewhere_is_not_guessed_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connection.settings_dict, "HOST", "db.example.org")
    found = disk.forecast(NOW_NS)
    assert found.free_bytes is None and found.days_left is None and not found.is_known
    assert "db.example.org" in found.unknown_reason


@pytest.mark.django_db
def test_an_empty_table_has_no_rate() -> None:
    partitions.ensure("phase", [NOW_NS])
    one = measured()["phase"]
    assert (one.oldest_ns, one.bytes_per_day, one.full_bytes) == (None, None, None)


@pytest.mark.usefixtures("frames")
def test_a_minute_of_data_is_too_little_for_a_rate() -> None:
    assert disk.forecast(NOW_NS - DAY_NS + 60 * 10**9).full_bytes is None
