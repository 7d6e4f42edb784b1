"""What was stored comes back exactly: raw values, rollups, events."""

from __future__ import annotations

import time
from array import array
from typing import Any

import numpy as np
import pytest

from clusterwatch.fleet.models import Cluster
from clusterwatch.ingest.apply import Applier, Origin
from clusterwatch.store import queries, series
from clusterwatch.store.queries import MINUTE_NS
from collectors.wire import blocks, records

T0 = (time.time_ns() // MINUTE_NS - 10) * MINUTE_NS
NODE = Origin("tiny", "n1", "epoch", 1, 7)

pytestmark = pytest.mark.django_db


def store(first: int, *messages: Any) -> None:
    cache = series.PartitionCache()
    cache.prepare(Applier.partitions_of(messages))
    applier = Applier(cache.shapes.ids(Applier.shapes_of((NODE, message) for message in messages)))
    for place, message in enumerate(messages):
        applier.add(NODE, first + place, message)
    applier.finish()


def block(minute: int, values: list[list[int]], resolution: float = 0.5) -> records.Block:
    metrics = [
        records.BlockMetric("other", "", 1.0, 1, 60),
        records.BlockMetric("power_w", "W", resolution, len(values), 60),
    ]
    columns = [array("q", range(60)), array("q", [v for one in values for v in one])]
    rollups = [blocks.rollup(one, resolution) for one in values]
    return records.Block(
        minute_ns=T0 + minute * MINUTE_NS,
        codec=blocks.CODEC,
        metrics=metrics,
        data=blocks.encode(metrics, columns),
        rollup=blocks.pack_rollups([blocks.rollup(range(60), 1.0), *rollups]),
    )


def test_raw_values_come_back_at_their_resolution_with_gaps_as_nan() -> None:
    first, second = list(range(60)), [2 * v for v in range(60)]
    second[3] = blocks.MISSING
    store(1, block(0, [first, second]), block(1, [second, first]))
    found = queries.raw_values(7, "power_w", T0 + 30 * 10**9, T0 + 90 * 10**9)
    assert found is not None and found.unit == "W"
    assert found.values.shape == (60, 2)
    assert found.t_ns[0] == T0 + 30 * 10**9 and found.t_ns[-1] == T0 + 89 * 10**9
    assert found.values[0].tolist() == [15.0, 30.0]
    assert np.isnan(found.values[33, 0]) and found.values[33, 1] == 1.5


def test_two_blocks_of_one_minute_are_joined() -> None:
    missing = [blocks.MISSING] * 30
    store(1, block(0, [[*range(30), *missing]]), block(0, [[*missing, *range(30, 60)]]))
    found = queries.raw_values(7, "power_w", T0, T0 + MINUTE_NS)
    assert found is not None
    assert found.values[:, 0].tolist() == [v * 0.5 for v in range(60)]


def test_what_is_not_there_is_none() -> None:
    store(1, block(0, [[1] * 60]))
    assert queries.raw_values(7, "temperature", T0, T0 + MINUTE_NS) is None
    assert queries.raw_values(8, "power_w", T0, T0 + MINUTE_NS) is None
    assert queries.raw_values(7, "power_w", T0 + MINUTE_NS, T0 + 2 * MINUTE_NS) is None
    assert queries.rollup(8, "power_w", T0, T0 + MINUTE_NS) is None


def test_a_raw_window_is_bounded() -> None:
    with pytest.raises(ValueError, match="rollup"):
        queries.raw_values(7, "power_w", T0, T0 + 3 * 24 * 60 * MINUTE_NS)


def test_rollups_come_back_per_minute_and_series() -> None:
    store(1, block(0, [[2] * 60, [4] * 30 + [8] * 30]), block(1, [[blocks.MISSING] * 60, [6] * 60]))
    found = queries.rollup(7, "power_w", T0, T0 + 2 * MINUTE_NS)
    assert found is not None
    assert found.t_ns.tolist() == [T0, T0 + MINUTE_NS]
    assert found.mean[0].tolist() == [1.0, 3.0]
    assert (found.low[0, 1], found.high[0, 1], found.last[0, 1]) == (2.0, 4.0, 4.0)
    assert np.isnan(found.mean[1, 0]) and found.mean[1, 1] == 3.0


def event(t_s: int, text: str, **changes: Any) -> records.Event:
    made: dict[str, Any] = {
        "t_ns": T0 + t_s * 10**9, "source": "test", "kind": "k", "severity": "info", "text": text,
        "fields": {"a": "b"},
    }  # fmt: skip
    return records.Event(**(made | changes))


@pytest.fixture
def events() -> None:
    Cluster.objects.create(pk=1, name="tiny")
    store(1, event(0, "a"), event(5, "b", id=records.RankId("job", 3, 1, "w")), event(9, "c"))


@pytest.mark.usefixtures("events")
def test_events_come_newest_first_and_narrow_by_window_node_and_job() -> None:
    everything = queries.events(T0, T0 + 10 * 10**9)
    assert [e.text for e in everything] == ["c", "b", "a"]
    of_rank = everything[1]
    assert (of_rank.rank, of_rank.attempt, of_rank.world, of_rank.fields) == (3, 1, "w", {"a": "b"})
    assert everything[0].job_id is None
    assert [e.text for e in queries.events(T0, T0 + 9 * 10**9, node_id=7)] == ["b", "a"]
    assert [e.text for e in queries.events(T0, T0 + 10 * 10**9, job_id=of_rank.job_id)] == ["b"]
    assert queries.events(T0, T0 + 10 * 10**9, node_id=8) == []
    assert len(queries.events(T0, T0 + 10 * 10**9, limit=2)) == 2


def test_a_list_of_events_is_bounded() -> None:
    with pytest.raises(ValueError, match="at most"):
        queries.events(T0, T0 + 1, limit=10**6)
