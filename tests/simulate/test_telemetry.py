"""Simulated telemetry: the bytes of a real agent, plausible values, minutes that are whole."""

from array import array

import numpy as np
import pytest

from clusterwatch.simulate.telemetry import METRICS, MINUTE_NS, Telemetry, encode, rollups
from collectors.wire import blocks
from collectors.wire.records import BlockMetric

MINUTE = 29_933_333 * MINUTE_NS
S = 1_000_000_000


def sampled(seconds: range, busy: bool = True) -> Telemetry:
    telemetry = Telemetry(2, np.array([busy, False]), seed=0)
    for second in seconds:
        telemetry.sample(slice(0, 2), MINUTE + second * S)
    return telemetry


def test_the_block_is_what_the_wire_calls_one():
    block = sampled(range(60)).block(0, MINUTE)
    blocks.verify(block)
    columns = blocks.decode(block.metrics, block.data)
    assert blocks.unpack_rollups(block.rollup) == [
        pytest.approx(blocks.rollup(column[series * 60 : (series + 1) * 60], metric.resolution))
        for metric, column in zip(block.metrics, columns, strict=True)
        for series in range(8)
    ]


def test_the_rollup_counts_only_the_seconds_that_are_there():
    block = sampled(range(20, 40)).block(0, MINUTE)
    blocks.verify(block)
    power = blocks.decode(block.metrics, block.data)[0][:60]
    assert blocks.unpack_rollups(block.rollup)[0] == pytest.approx(blocks.rollup(power, 0.1))
    assert (
        rollups(np.full((len(METRICS), 1, 60), blocks.MISSING))
        == np.full((4, len(METRICS)), np.nan, "<f4").tobytes()
    )


def test_numpy_encodes_the_very_bytes_of_the_wire():
    values = np.random.default_rng(1).integers(-(2**40), 2**40, (3, 4, 60))
    values[1, 2, 5:20] = blocks.MISSING
    headers = [BlockMetric(str(place), "w", 1.0, 4, 60) for place in range(3)]
    assert encode(values) == blocks.encode(headers, [array("q", rows.tobytes()) for rows in values])


def test_seconds_before_the_start_are_missing_not_zero():
    block = sampled(range(20, 60)).block(0, MINUTE)
    power = blocks.decode(block.metrics, block.data)[0]
    assert set(power[:20]) == {blocks.MISSING} and min(power[20:60]) > 0


def test_a_minute_without_a_sample_has_no_block_and_an_old_one_is_not_taken_for_it():
    telemetry = sampled(range(60))
    assert telemetry.block(0, MINUTE + MINUTE_NS) is None
    assert telemetry.block(0, MINUTE + 2 * MINUTE_NS) is None


def test_working_gpus_are_hot_and_idle_ones_are_not():
    values = Telemetry(2, np.array([True, False]), seed=0).sample(slice(0, 2), MINUTE)
    busy, idle = values["gpu_power_w"]
    assert min(busy) > 450 and max(busy) <= 700 and max(idle) < 120
    assert set(values) == {metric.name for metric in METRICS}
    assert all(
        0 <= value <= 1 for name in values if name.endswith("_ratio") for row in values[name] for value in row
    )


def test_the_seed_decides_every_value():
    one, other = (Telemetry(2, np.array([True, False]), seed=5).sample(slice(0, 2), MINUTE) for _ in range(2))
    assert one == other
