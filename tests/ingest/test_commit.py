"""Joining of sequences: whatever is sent how often in whatever cuts, each record is stored once."""

from __future__ import annotations

import time
from array import array

import msgspec
import pytest
from django.db import DataError, OperationalError, connection
from django.test import override_settings
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg.errors import DeadlockDetected, ProgramLimitExceeded

from clusterwatch.fleet.models import Cluster, Node
from clusterwatch.ingest import commit
from clusterwatch.ingest.apply import Origin
from clusterwatch.ingest.checks import Checked
from clusterwatch.store import node_readings, partitions, series
from clusterwatch.store.cursors import LaneKey, read
from clusterwatch.store.models import IngestCursor
from collectors.wire import blocks, readings, records
from tests.collectors.wire import samples
from tests.ingest.client import event
from tests.ingest.database import select

pytestmark = pytest.mark.django_db

REJECTED = 5


@pytest.fixture
def origin() -> Origin:
    partitions.ensure_ahead()
    cluster = Cluster.objects.create(name="tiny")
    node = Node.objects.create(cluster=cluster, name="n1", machine_id="m")
    return Origin("tiny", "n1", "epoch", cluster.pk, node.pk)


def checked(number: int) -> Checked:
    """Every record is an event with its number; number ``REJECTED`` is a bad one."""
    if number == REJECTED:
        return Checked(number, 1, reason="bad")
    return Checked(number, 1, record=event(number))


def batch(origin: Origin, numbers: list[int]) -> commit.LaneBatch:
    return commit.LaneBatch(origin, "urgent", [checked(number) for number in numbers])


deliveries = st.lists(
    st.tuples(st.integers(1, 12), st.integers(1, 12)).map(lambda ends: list(range(min(ends), max(ends) + 1))),
    min_size=1,
    max_size=6,
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(groups=st.lists(deliveries, min_size=1, max_size=4), fails=st.sets(st.integers(0, 3)))
def test_any_overlap_of_deliveries_stores_each_record_once(
    origin: Origin, groups: list[list[list[int]]], fails: set[int]
) -> None:
    IngestCursor.objects.all().delete()
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM event")
    position, expected = 0, []
    for number, group in enumerate(groups):
        outcome = commit.commit([batch(origin, numbers) for numbers in group], series.PartitionCache())
        if number in fails:
            # The commit's fate was unknown to the caller: it tries the very same again.
            again = commit.commit([batch(origin, numbers) for numbers in group], series.PartitionCache())
            assert again.stored_count == 0
        for numbers, result in zip(group, outcome.lanes, strict=True):
            expected += [n for n in numbers if n > position and n != REJECTED]
            fresh = [n for n in numbers if n > position]
            assert [sequence for sequence, _ in result.rejects] == [n for n in fresh if n == REJECTED]
            position = max([position, *numbers])
            assert result.committed == position
    assert select("SELECT sequence FROM event ORDER BY sequence") == expected
    key = LaneKey("tiny", "n1", "epoch", "urgent")
    assert read([key]) == {key: position}
    assert IngestCursor.objects.get().stored_count == len(expected)


def test_a_partition_dropped_under_us_is_made_again(origin: Origin) -> None:
    cache = series.PartitionCache()
    commit.commit([batch(origin, [1])], cache)
    table = partitions.TABLES["event"]
    with connection.cursor() as cursor:
        cursor.execute(f'DROP TABLE "{table.partition_name(table.start_of(time.time_ns()))}"')
    outcome = commit.commit([batch(origin, [2])], cache)
    assert outcome.lanes[0].rejects == []
    assert select("SELECT sequence FROM event") == [2]


def test_a_lost_connection_is_told_from_a_bad_record() -> None:
    assert commit.is_away(OperationalError("server closed the connection"))
    assert commit.is_away(DeadlockDetected())
    assert not commit.is_away(ProgramLimitExceeded())
    assert not commit.is_away(DataError())
    assert not commit.is_away(ValueError())


def test_a_block_with_one_set_of_metrics_too_many_is_refused_alone(origin: Origin) -> None:
    def block(sequence: int, name: str) -> Checked:
        metrics = [records.BlockMetric(name, "w", 1.0, 1, 60)]
        data = blocks.encode(metrics, [array("q", [7] * 60)])
        minute_ns = time.time_ns() // (60 * 10**9) * 60 * 10**9
        rollup = blocks.pack_rollups([(7.0,) * 4])
        return Checked(
            sequence, 1, records.Block(minute_ns + sequence * 60 * 10**9, blocks.CODEC, metrics, data, rollup)
        )

    sent = [block(1, "a"), block(2, "b"), block(3, "a")]
    with override_settings(BLOCK_SHAPES_MAX=1):
        outcome = commit.commit([commit.LaneBatch(origin, "bulk", sent)], series.PartitionCache())
    ((sequence, reason),) = outcome.lanes[0].rejects
    assert sequence == 2 and "1 different sets of metrics" in reason
    assert select("SELECT sequence FROM raw_block ORDER BY sequence") == [1, 3]
    assert select("SELECT sequence FROM node_minute ORDER BY sequence") == [1, 3]


def test_a_block_too_old_for_the_raw_table_still_enters_the_longer_history(origin: Origin) -> None:
    metrics = [records.BlockMetric("a", "w", 1.0, 1, 60)]
    data = blocks.encode(metrics, [array("q", [7] * 60)])
    minute_ns = (time.time_ns() - 3 * partitions.DAY_NS) // (60 * 10**9) * 60 * 10**9
    old = records.Block(minute_ns, blocks.CODEC, metrics, data, blocks.pack_rollups([(7.0,) * 4]))
    batch = commit.LaneBatch(origin, "bulk", [Checked(1, 1, old)])
    assert commit.commit([batch], series.PartitionCache()).lanes[0].rejects == []
    assert select("SELECT count(*) FROM raw_block") == [0]
    assert select("SELECT low FROM node_minute") == [[7.0]]


def readings_of(number: int) -> Checked:
    """What the node knows by record ``number``: that its first GPU draws so many watts."""
    table = msgspec.structs.replace(samples.TABLE, value=[float(number), None, 7, 0])
    data = readings.pack(table)
    return Checked(number, len(data), record=records.Readings(time.time_ns(), readings.CODEC, data))


def power_of(origin: Origin) -> float | int | None:
    found = node_readings.latest(origin.node_id, time.time_ns())
    return None if found is None else found.entities["gpu/GPU-0"][0].value


def test_of_what_a_node_knows_the_newest_acknowledged_is_kept_and_a_repeat_changes_nothing(
    origin: Origin,
) -> None:
    told = commit.LaneBatch(origin, "bulk", [readings_of(number) for number in (1, 2, 3)])
    assert commit.commit([told], series.PartitionCache()).lanes[0].committed == 3
    assert power_of(origin) == 3.0
    again = commit.LaneBatch(origin, "bulk", [readings_of(number) for number in (1, 2)])
    assert commit.commit([again], series.PartitionCache()).stored_count == 0
    assert power_of(origin) == 3.0
    assert select("SELECT count(*) FROM node_readings WHERE node_id = %s", origin.node_id) == [1]


def test_a_group_that_is_refused_still_keeps_what_a_node_knows(origin: Origin) -> None:
    nul = msgspec.structs.replace(event(3), text="\0")
    mixed = [Checked(1, 1, record=event(1)), readings_of(2), Checked(3, 1, record=nul)]
    outcome = commit.commit([commit.LaneBatch(origin, "bulk", mixed)], series.PartitionCache())
    assert [sequence for sequence, _ in outcome.lanes[0].rejects] == [3]
    assert power_of(origin) == 2.0
