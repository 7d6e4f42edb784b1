"""Percentiles and maps every 10 s, beside the ticks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import redis
from django.db import OperationalError, connection

from clusterwatch.ingest import map_bytes, pulse_history
from clusterwatch.ingest.layout import ClusterLayout
from clusterwatch.ingest.pulse_history import History, Moment
from clusterwatch.store import fleet_planes, fleet_series, hot, hot_writes, partitions

pytestmark = pytest.mark.stack
S = 1_000_000_000


@pytest.fixture
def history(transactional_db: None, valkey: redis.Redis) -> Iterator[History]:
    """The thread, ended after the test; nothing of an earlier pulse is left in its tables."""
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE map_frame, fleet_percentile")
    running = History()
    yield running
    running.close()
    running._thread.join(10)


def moment(now_ns: int) -> Moment:
    """Four slots, one closed; job 5 on two of them, its second rank three calls behind."""
    layout = ClusterLayout(1, 9, np.array([10, 10, 11, -1]), np.array([0, 1, 0, -1]), {10: "a", 11: "b"})
    slots = np.array([0, 1])
    return Moment(layout, now_ns, np.array([1, 1, 1, 255], np.uint8), {5: slots}, [(slots, np.array([0, 3]))])


def write_power(now_ns: int) -> None:
    power = hot.MetricArray(np.array([100, 300, 500, 0], np.float32), np.array([now_ns] * 3 + [0]))
    hot_writes.write_gateway("gw", now_ns, hot.empty_nodes(), {}, {(1, "gpu_power_w"): power})


def until(check: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 20
    while not (found := check()):
        assert time.monotonic() < deadline, "not within 20 s"
        time.sleep(0.05)
    return found


def rows(statement: str) -> list[Any]:
    with connection.cursor() as cursor:
        cursor.execute(statement)
        return cursor.fetchall()


def test_the_fleet_and_each_job_have_their_percentiles_and_every_mode_with_data_its_map(
    transactional_db: None, history: History
) -> None:
    partitions.ensure_ahead()
    now_ns = time.time_ns()
    write_power(now_ns)
    history.offer([moment(now_ns)])
    maps = until(lambda: rows("SELECT mode, t_ns, slots_version, data FROM map_frame"))
    found = {mode: fleet_planes.decode_frame(bytes(data)).tolist() for mode, _, _, data in maps}
    assert found == {
        "state": [1, 1, 1, 255],
        "job": [6, 6, 0, map_bytes.CLOSED],
        "lateness": [0, 3, map_bytes.UNKNOWN, map_bytes.CLOSED],
        "power": [25, 75, 125, map_bytes.CLOSED],
    }
    assert {(t_ns % (10 * S), version) for _, t_ns, version, _ in maps} == {(0, 9)}
    percentiles = rows("SELECT scope, count, low, p50, high FROM fleet_percentile ORDER BY scope")
    assert percentiles == [("fleet", 3, 100.0, 300.0, 500.0), ("job:5", 2, 100.0, 200.0, 300.0)]
    assert history.bands_of(1)["gpu_power_w"]["p50"] == 300.0


def test_an_absent_database_leaves_the_bands_of_live_pages(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(rows: object) -> None:
        raise OperationalError("away")

    monkeypatch.setattr(fleet_series, "write_percentiles", away)
    now_ns = time.time_ns()
    write_power(now_ns)
    history.offer([moment(now_ns)])
    assert until(lambda: history.bands_of(1))["gpu_power_w"]["count"] == 3


def test_a_tick_never_waits_for_the_history(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulse_history.bands, "fresh_values", lambda *_: time.sleep(1) or {})
    begun_s = time.process_time()
    for _ in range(5):
        history.offer([moment(time.time_ns())])
    assert history._moments.qsize() <= 1 and time.process_time() - begun_s < 1


def test_each_period_is_due_once(history: History) -> None:
    assert [history.is_due(second * S) for second in (100, 101, 109, 110, 111, 135)] == [
        True, False, False, True, False, True,
    ]  # fmt: skip
