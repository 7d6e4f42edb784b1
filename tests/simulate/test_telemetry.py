"""Simulated telemetry: plausible values, one seed one story, counters that only grow, faults in place."""

from __future__ import annotations

import numpy as np
import pytest

from clusterwatch.simulate.telemetry import (
    COUNTERS,
    GPU_PLACE,
    HOST_PLACE,
    MISSING,
    Drivers,
    Shift,
    Telemetry,
)
from collectors.wire.metrics import GPU_METRICS, Throttle

S = 1_000_000_000
NOW = 1_796_000_000 * S
BOTH = slice(0, 2)


def drivers(busy: float = 1.0) -> Drivers:
    """One node at work, one idle."""
    level = np.array([[busy], [0.0]], np.float32) * np.ones((2, 8), np.float32)
    return Drivers(level, level, level, level[:, 0], np.zeros(2, np.float32))


def sampled(*shifts: Shift, t_ns: int = NOW, seed: int = 0) -> dict[str, np.ndarray]:
    """Metric -> (nodes, GPUs) of one second."""
    telemetry = Telemetry(2, 8, seed)
    values = telemetry.sample(BOTH, t_ns, drivers(), shifts)
    found = {name: values.gpu[:, place] * GPU_METRICS[place].resolution for name, place in GPU_PLACE.items()}
    return found | {name: values.host[:, place] for name, place in HOST_PLACE.items()}


def test_working_gpus_are_hot_and_idle_ones_are_not():
    values = sampled()
    busy, idle = values["gpu_power_w"]
    assert busy.min() > 450 and busy.max() <= 700 and idle.max() < 130
    assert (values["gpu_memory_temperature_c"][0] > values["gpu_memory_temperature_c"][1]).all()
    assert (values["nic_tx_mib_per_s"][1] == 0).all() and (values["nic_tx_mib_per_s"][0] > 20_000).all()
    assert (values["gpu_throttle_reasons"][1] == Throttle.IDLE).all()


def test_gpus_differ_for_ever_by_one_to_two_percent_of_their_clock():
    telemetry = Telemetry(512, 8, 0)
    level = np.ones((512, 8), np.float32)
    work = Drivers(level, level, level, level[:, 0], level[:, 0])
    clocks = [
        telemetry.sample(slice(0, 512), NOW + n * S, work, ()).gpu[:, GPU_PLACE["gpu_sm_clock_mhz"]] * 15.0
        for n in range(10)
    ]
    mean = np.mean(clocks, axis=0)
    assert 0.008 < mean.std() / mean.mean() < 0.02
    assert np.corrcoef(clocks[0].ravel(), clocks[-1].ravel())[0, 1] > 0.7


def test_one_seed_gives_one_second_and_another_seed_another():
    assert all((a == b).all() for a, b in zip(sampled().values(), sampled().values(), strict=True))
    other = sampled(seed=1)
    assert (sampled()["gpu_power_w"] != other["gpu_power_w"]).any()
    assert (sampled()["gpu_power_w"] != sampled(t_ns=NOW + S)["gpu_power_w"]).any()


def test_counters_only_grow_and_count_on_over_a_minute():
    telemetry = Telemetry(2, 8, 0)
    seen = []
    for second in range(90):
        if second % 60 == 0:
            telemetry.begin_minute(BOTH)
        values = telemetry.sample(BOTH, NOW + second * S, drivers(), ())
        seen.append(values.gpu[:, list(COUNTERS)] + telemetry.origin(BOTH))
    assert (np.diff(np.array(seen), axis=0) >= 0).all()
    assert (seen[-1] == telemetry.totals).all() and telemetry.totals.max() > 10


@pytest.mark.parametrize(
    ("metric", "how", "value", "expected"),
    [
        ("gpu_sm_clock_mhz", "scale", 0.5, lambda usual: np.rint(usual * 0.5 / 15) * 15),
        ("gpu_power_w", "set", 300.0, lambda usual: usual * 0 + 300.0),
        ("gpu_temperature_c", "add", 20.0, lambda usual: usual + 20.0),
    ],
)
def test_a_shift_changes_its_metric_at_its_place_and_nothing_else(metric, how, value, expected):
    usual, changed = sampled(), sampled(Shift((0,), metric, how, value, NOW, gpus=(3,)))
    assert changed[metric][0, 3] == pytest.approx(expected(usual[metric][0, 3]), abs=15.1)
    changed[metric][0, 3] = usual[metric][0, 3]
    assert all((usual[name] == changed[name]).all() for name in usual if not name.startswith("host_power"))


def test_a_shift_is_over_when_its_time_is():
    over = sampled(Shift((0,), "gpu_power_w", "set", 1.0, NOW - 10 * S, NOW))
    early = sampled(Shift((0,), "gpu_power_w", "set", 1.0, NOW + 1))
    assert (over["gpu_power_w"] == sampled()["gpu_power_w"]).all()
    assert (early["gpu_power_w"] == sampled()["gpu_power_w"]).all()


def test_bits_growth_and_blanks():
    bits = sampled(Shift((0, 1), "gpu_throttle_reasons", "bits", float(Throttle.HW_POWER_BRAKE), NOW))
    assert (bits["gpu_throttle_reasons"].astype(int) & Throttle.HW_POWER_BRAKE).all()
    assert not (bits["gpu_throttle_reasons"].astype(int) & Throttle.IDLE).any()
    grown = sampled(Shift((1,), "nic_fec_corrected_total", "grow", 5_000.0, NOW, gpus=(2,)))
    assert grown["nic_fec_corrected_total"][1, 2] >= 5_000 > grown["nic_fec_corrected_total"][1, 3]
    blank = sampled(Shift((0,), "gpu_power_w", "blank", 0.0, NOW, gpus=(5,)))["gpu_power_w"] / 0.1
    assert np.flatnonzero(np.rint(blank) == MISSING).tolist() == [5]


def test_heat_comes_slowly():
    def at(second: int) -> float:
        ramp = Shift((0,), "gpu_temperature_c", "add", 30.0, NOW, gpus=(0,), ramp_s=20.0)
        t_ns = NOW + second * S
        return float(
            sampled(ramp, t_ns=t_ns)["gpu_temperature_c"][0, 0]
            - sampled(t_ns=t_ns)["gpu_temperature_c"][0, 0]
        )

    assert at(0) == 0 and 14 <= at(10) <= 16 and at(20) == at(40) == 30
