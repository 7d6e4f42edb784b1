"""Percentiles of the fleet come from fresh, real values only."""

import time

import numpy as np
import pytest
import redis

from clusterwatch.store import bands, hot, hot_writes

pytestmark = pytest.mark.stack
S = 1_000_000_000


@pytest.fixture(autouse=True)
def _empty(valkey: redis.Redis) -> None:
    """Each test begins with an empty Valkey."""


def write(now_ns: int, **metrics: list[tuple[float, float]]) -> None:
    """Writes metrics of cluster 1 as lists of (value, age in s)."""
    arrays = {
        (1, name): hot.MetricArray(
            np.array([value for value, _ in rows], np.float32),
            np.array([now_ns - int(age_s * S) for _, age_s in rows], np.int64),
        )
        for name, rows in metrics.items()
    }
    hot_writes.write_gateway("gw", now_ns, hot.empty_nodes(), {}, arrays)


def test_old_values_and_missing_ones_do_not_count():
    now_ns = time.time_ns()
    write(now_ns, gpu_power_w=[(100.0, 1), (300.0, 1), (9_000.0, 60), (float("nan"), 1)])
    band = bands.band(bands.fresh_values(1, 4, now_ns)["gpu_power_w"], now_ns)
    assert band is not None
    assert (band["count"], band["p50"]) == (2, 200.0)
    assert band["p1"] < band["p25"] < band["p75"] < band["p99"] <= 300.0


def test_a_metric_without_a_fresh_value_is_left_out():
    now_ns = time.time_ns()
    write(now_ns, gpu_power_w=[(float("nan"), 1)], gpu_temperature_c=[(50.0, 99)])
    values = bands.fresh_values(1, 1, now_ns)
    assert [bands.band(found, now_ns) for found in values.values()] == [None, None]


def test_another_cluster_is_another_yardstick():
    now_ns = time.time_ns()
    write(now_ns, gpu_power_w=[(1.0, 0)])
    assert bands.fresh_values(11, 1, now_ns) == {}
