"""Partitions are made ahead, made for late rows, and dropped whole by retention."""

from __future__ import annotations

import pytest
from django.db import IntegrityError, connection, transaction
from django.test import override_settings
from psycopg.errors import CheckViolation

from clusterwatch.project import environment
from clusterwatch.store import partitions, series

DAY_NS = partitions.DAY_NS
NOW_NS = 20_700 * DAY_NS + 5 * 3600 * 10**9

pytestmark = pytest.mark.django_db


def phase_row(t_ns: int) -> tuple[object, ...]:
    return (1, 1, t_ns, "epoch", 1, 1, 0, "", 0, "train", "startup", 1.5, "")


def names(table: str) -> list[str]:
    return sorted(partitions._partitions(table))


@pytest.fixture(autouse=True)
def no_partitions(db: None) -> None:
    """Each test begins without partitions; tests that commit may have left some."""
    with connection.cursor() as cursor:
        for table in partitions.TABLES:
            for name in names(table):
                cursor.execute(f'DROP TABLE "{name}"')


def write(table: str, row: tuple[object, ...]) -> None:
    rows = series.Rows()
    rows.add(table, row)
    with transaction.atomic():
        rows.write()


def test_every_table_has_partitions_from_today_until_some_days_ahead() -> None:
    made = partitions.ensure_ahead(NOW_NS)
    assert {"raw_block_p2026090400", "raw_block_p2026090418", "steps_p20260904"} <= set(made)
    for table in partitions.TABLES.values():
        for hour in range(24 * partitions.AHEAD_DAYS + 1):
            start_ns = table.start_of(NOW_NS + hour * partitions.HOUR_NS)
            assert table.partition_name(start_ns) in names(table.name)
    assert partitions.ensure_ahead(NOW_NS) == []


def test_a_row_without_a_partition_is_refused_and_prepare_makes_one() -> None:
    late_ns = NOW_NS - 20 * DAY_NS
    with pytest.raises((CheckViolation, IntegrityError)):
        write("phase", phase_row(late_ns))
    series.PartitionCache().prepare([("phase", late_ns)])
    write("phase", phase_row(late_ns))
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM phase")
        assert cursor.fetchone() == (1,)


def test_only_partitions_wholly_behind_the_retention_are_dropped() -> None:
    oldest_ns = partitions.oldest_kept_ns("steps", NOW_NS)
    partitions.ensure("steps", [oldest_ns - DAY_NS, oldest_ns, NOW_NS])
    expired = partitions.TABLES["steps"].partition_name(
        partitions.TABLES["steps"].start_of(oldest_ns - DAY_NS)
    )
    assert partitions.drop_expired(NOW_NS) == [expired]
    assert len(names("steps")) == 2


def test_retention_is_a_setting() -> None:
    partitions.ensure("steps", [NOW_NS - 20 * DAY_NS])
    with override_settings(RETENTION_DAYS=environment.RETENTION_DAYS | {"steps": 30}):
        assert partitions.drop_expired(NOW_NS) == []
    assert len(partitions.drop_expired(NOW_NS)) == 1


def test_retention_days_come_from_the_environment() -> None:
    assert environment.retention_days({"CLUSTERWATCH_RETENTION_DAYS_STEPS": "9"})["steps"] == 9
    with pytest.raises(environment.EnvironmentFault, match="whole days"):
        environment.retention_days({"CLUSTERWATCH_RETENTION_DAYS_STEPS": "-1"})


def test_sizes_count_partitions() -> None:
    partitions.ensure("steps", [NOW_NS, NOW_NS + DAY_NS])
    found = {table: (size, count) for table, size, count in partitions.sizes()}
    assert found["steps"][1] == 2 and found["steps"][0] > 0


@pytest.mark.parametrize(
    ("table", "column"),
    [("raw_block", "data"), ("fleet_minute", "data"), ("map_frame", "data"), ("node_minute", "low")],
)
def test_what_is_compressed_already_is_stored_as_it_comes(table: str, column: str) -> None:
    (name,) = partitions.ensure(table, [NOW_NS])
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT attstorage FROM pg_attribute WHERE attrelid = %s::regclass AND attname = %s",
            [name, column],
        )
        assert cursor.fetchone()[0] == "e"
