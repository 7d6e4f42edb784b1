"""What is kept per fleet comes back as it was given; rollups of nodes become planes over slots."""

from __future__ import annotations

import time
from array import array
from typing import Any

import numpy as np
import pytest
from django.db import connection
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clusterwatch.ingest.apply import Applier, Origin
from clusterwatch.store import fleet_build, fleet_planes, fleet_series, series
from clusterwatch.store.fleet_build import SlotTable
from collectors.wire import blocks
from collectors.wire.records import Block, BlockMetric

MINUTE_NS = 60 * 10**9
T0 = (time.time_ns() // MINUTE_NS - 10) * MINUTE_NS
CLUSTER = 1
NAN = float("nan")
SLOTS = SlotTable(
    slots_version=7,
    slot_count=6,
    node_id=np.array([10, 11, 12]),
    numbers=np.array([[0, 1], [3, 4], [5, -1]]),
)

pytestmark = pytest.mark.django_db


def store(sequence: int, node_id: int, values: dict[str, list[int]], epoch: str = "e") -> None:
    """One block whose series hold one number each, all minute long."""
    metrics = [BlockMetric(name, "w", 0.5, len(numbers), 60) for name, numbers in values.items()]
    columns = [array("q", [n for n in numbers for _ in range(60)]) for numbers in values.values()]
    rollups = [blocks.rollup([n], 0.5) for numbers in values.values() for n in numbers]
    data = blocks.encode(metrics, columns)
    block = Block(T0, blocks.CODEC, metrics, data, blocks.pack_rollups(rollups))
    origin = Origin("tiny", f"n{node_id}", epoch, CLUSTER, node_id)
    cache = series.PartitionCache()
    cache.prepare(Applier.partitions_of([block]))
    applier = Applier(cache.shapes.ids(Applier.shapes_of([(origin, block)])))
    applier.add(origin, sequence, block)
    applier.finish()


def select(query: str) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(query)
        return list(cursor.fetchall())


def minutes() -> dict[str, tuple[int, int, np.ndarray]]:
    rows = select("SELECT metric, slots_version, node_count, data FROM fleet_minute ORDER BY metric")
    return {
        metric: (
            version,
            count,
            np.stack([fleet_planes.decode_plane(bytes(data), plane) for plane in range(4)]),
        )
        for metric, version, count, data in rows
    }


def test_numbers_of_a_node_go_to_its_slots_and_a_hosts_to_the_first() -> None:
    store(1, 10, {"power_w": [2, 4], "host_load": [6]})
    store(1, 11, {"host_load": [8], "power_w": [10, 12]})
    store(1, 12, {"power_w": [14]})
    assert fleet_build.build_fleet_minute(CLUSTER, T0, SLOTS) == 3
    version, count, power = minutes()["power_w"]
    assert (version, count) == (7, 3)
    for plane in power:
        np.testing.assert_array_equal(plane, [1, 2, NAN, 5, 6, 7])
    np.testing.assert_array_equal(minutes()["host_load"][2][1], [3, NAN, NAN, 4, NAN, NAN])


def test_more_numbers_than_slots_and_strangers_do_no_harm() -> None:
    store(1, 10, {"power_w": [2, 4, 6, 8]})
    store(1, 99, {"power_w": [100, 100]})
    assert fleet_build.build_fleet_minute(CLUSTER, T0, SLOTS) == 1
    np.testing.assert_array_equal(minutes()["power_w"][2][1], [1, 2, NAN, NAN, NAN, NAN])


def test_a_minute_without_a_rollup_leaves_no_row() -> None:
    assert fleet_build.build_fleet_minute(CLUSTER, T0, SLOTS) == 0
    assert minutes() == {}


def test_two_blocks_of_a_node_are_joined_and_a_late_node_is_added() -> None:
    store(1, 10, {"power_w": [2, blocks.MISSING]}, epoch="before")
    store(2, 10, {"power_w": [6, 8]}, epoch="after")
    fleet_build.build_fleet_minute(CLUSTER, T0, SLOTS)
    low, mean, high, last = minutes()["power_w"][2]
    assert (low[0], mean[0], high[0], last[0]) == (1, 2, 3, 3)
    assert (low[1], mean[1], high[1], last[1]) == (4, 4, 4, 4)
    store(1, 12, {"power_w": [20]})
    fleet_build.build_fleet_minute(CLUSTER, T0, SLOTS)
    _, count, again = minutes()["power_w"]
    assert count == 2 and again[1, 5] == 10 and again[1, 0] == 2


def test_of_too_many_metrics_those_of_most_nodes_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_build, "METRICS_MAX", 2)
    store(1, 10, {"power_w": [2], "a": [1], "b": [1]})
    store(1, 11, {"power_w": [2], "b": [1], "invented": [1]})
    fleet_build.build_fleet_minute(CLUSTER, T0, SLOTS)
    assert set(minutes()) == {"power_w", "b"}


def test_percentiles_are_those_of_the_finite_values() -> None:
    values = np.array([*range(101), NAN, np.inf], np.float32)
    row = fleet_series.percentile_row(CLUSTER, fleet_series.job_scope(5), "power_w", T0, values)
    assert row is not None
    assert fleet_series.percentile_row(CLUSTER, "fleet", "power_w", T0, np.array([NAN])) is None
    fleet_series.write_percentiles([row])
    fleet_series.write_percentiles([row])
    found = select("SELECT scope, count, low, p1, p25, p50, mean, p75, p99, high FROM fleet_percentile")
    assert found == [("job:5", 101, 0, 1, 25, 50, 50, 75, 99, 100)]


def test_map_frames_are_kept_by_mode_and_the_first_of_a_moment_stays() -> None:
    frame = np.arange(6, dtype=np.uint8)
    fleet_series.write_map_frames(CLUSTER, T0, 7, {"state": frame, "power": frame[::-1]})
    fleet_series.write_map_frames(CLUSTER, T0, 8, {"state": frame * 2})
    found = select("SELECT mode, slots_version, data FROM map_frame ORDER BY mode")
    assert [(mode, version) for mode, version, _ in found] == [("power", 7), ("state", 7)]
    assert fleet_planes.decode_frame(bytes(found[1][2])).tolist() == frame.tolist()


def test_the_views_speak_of_metrics_by_name_and_know_null() -> None:
    store(1, 10, {"host_load": [6], "power_w": [2, blocks.MISSING]})
    found = select(
        "SELECT metric, unit, series, low, mean, last FROM node_minute_value ORDER BY metric, series"
    )
    assert found == [
        ("host_load", "w", 0, 3, 3, 3),
        ("power_w", "w", 0, 1, 1, 1),
        ("power_w", "w", 1, *[None] * 3),
    ]


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.permutations(range(3)))
def test_the_order_in_which_blocks_came_does_not_matter(order: list[int]) -> None:
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM node_minute; DELETE FROM raw_block; DELETE FROM fleet_minute")
    for place in order:
        store(1, 10 + place, {"power_w": [2 * place, 4 * place][: 1 if place == 2 else 2]})
    fleet_build.build_fleet_minute(CLUSTER, T0, SLOTS)
    np.testing.assert_array_equal(minutes()["power_w"][2][0], [0, 0, NAN, 1, 2, 2])
