"""Minutes of the simulator: the very block a real agent would make of the same values."""

from __future__ import annotations

from array import array

import numpy as np
import pytest

from clusterwatch.simulate.minutes import MINUTE_NS, Minutes, rollup, shuffled
from clusterwatch.simulate.telemetry import COUNTERS, GPU_PLACE, Drivers, Shift, Telemetry
from collectors.wire import blocks
from collectors.wire.metrics import GPU_METRICS, HOST_METRICS
from collectors.wire.records import Block, BlockMetric

MINUTE = 29_933_333 * MINUTE_NS
S = 1_000_000_000
NODES = slice(0, 2)


def lived(seconds: range, *shifts: Shift) -> tuple[Minutes, Telemetry]:
    telemetry = Telemetry(2, 8, seed=0)
    minutes = Minutes(2, 8, telemetry)
    level = np.array([[1.0], [0.0]], np.float32) * np.ones((2, 8), np.float32)
    work = Drivers(level, level, level, level[:, 0], level[:, 0])
    for second in seconds:
        t_ns = MINUTE + second * S
        minutes.begin(NODES, t_ns)
        minutes.add(NODES, t_ns, telemetry.sample(NODES, t_ns, work, shifts))
    return minutes, telemetry


def columns_of(block: Block | None) -> dict[str, np.ndarray]:
    assert block is not None
    decoded = blocks.decode(block.metrics, block.data)
    return {
        metric.name: np.array(column).reshape(metric.series, 60)
        for metric, column in zip(block.metrics, decoded, strict=True)
    }


def test_the_block_is_what_the_wire_calls_one():
    block = lived(range(60))[0].block(0, MINUTE)
    blocks.verify(block)
    columns = blocks.decode(block.metrics, block.data)
    assert blocks.unpack_rollups(block.rollup) == [
        pytest.approx(blocks.rollup(column[60 * row : 60 * row + 60], metric.resolution), rel=1e-6)
        for metric, column in zip(block.metrics, columns, strict=True)
        for row in range(metric.series)
    ]
    names = [metric.name for metric in (*GPU_METRICS, *HOST_METRICS)]
    assert [metric.name for metric in block.metrics] == names


def test_numpy_encodes_the_very_bytes_of_the_wire():
    values = np.random.default_rng(1).integers(-(2**40), 2**40, (3, 4, 60))
    values[1, 2, 5:20] = blocks.MISSING
    headers = [BlockMetric(str(place), "w", 1.0, 4, 60) for place in range(3)]
    expected = blocks.encode(headers, [array("q", rows.tobytes()) for rows in values])
    block = Block(MINUTE, blocks.CODEC, headers, expected, b"")
    assert blocks.decompress(block.data, 3 * 4 * 60 * 8) == shuffled(values)


def test_a_series_without_a_sample_has_an_unknown_rollup():
    series = np.full((2, 60), blocks.MISSING)
    series[1, 7] = 21
    planes = np.frombuffer(rollup(series, np.array([1.0, 0.5])), "<f4").reshape(4, 2)
    assert np.isnan(planes[:, 0]).all() and planes[:, 1].tolist() == [10.5] * 4


def test_seconds_before_the_start_are_missing_not_zero():
    power = columns_of(lived(range(20, 60))[0].block(0, MINUTE))["gpu_power_w"]
    assert (power[:, :20] == blocks.MISSING).all() and (power[:, 20:] > 0).all()


def test_a_minute_without_a_sample_has_no_block_and_an_old_one_is_not_taken_for_it():
    minutes, _ = lived(range(60))
    assert minutes.block(0, MINUTE + MINUTE_NS) is None
    assert minutes.block(0, MINUTE + 2 * MINUTE_NS) is None


def test_counters_stand_in_the_block_as_they_were_read():
    grow = Shift((0,), "nic_pfc_pause_us_total", "grow", 30_000_000.0, MINUTE)
    minutes, telemetry = lived(range(90), grow)
    read = telemetry.totals[0, COUNTERS.index(GPU_PLACE["nic_pfc_pause_us_total"])]
    column = columns_of(minutes.block(0, MINUTE + MINUTE_NS))["nic_pfc_pause_us_total"]
    assert (column[:, 29] == read).all() and read.min() > 2**31


def test_a_blanked_value_is_missing_and_a_forgotten_second_too():
    minutes, _ = lived(range(60), Shift((0,), "gpu_power_w", "blank", 0.0, MINUTE + 30 * S, gpus=(4,)))
    minutes.forget(0, MINUTE + 3 * S)
    power = columns_of(minutes.block(0, MINUTE))["gpu_power_w"]
    assert (power[4, 30:] == blocks.MISSING).all() and (power[3, 30:] > 0).all()
    assert (power[:, 3] == blocks.MISSING).all()


def test_a_block_may_bear_the_time_of_a_wrong_clock():
    block = lived(range(60))[0].block(0, MINUTE, MINUTE + 5 * MINUTE_NS)
    assert block is not None and block.minute_ns == MINUTE + 5 * MINUTE_NS
    blocks.verify(block)
