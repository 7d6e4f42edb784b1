"""Times of signals: ends, clocks, who was first, and how long NCCL waits for a link."""

from __future__ import annotations

import math

import pytest

from clusterwatch.analysis.correlate_causes import cause_of
from clusterwatch.analysis.correlate_model import Candidate, Onset, Part, PartKind, Retries
from clusterwatch.analysis.correlate_time import (
    CLOCK_LOST_S,
    When,
    first_of,
    patience_s,
    when,
    with_clocks,
    with_ends,
)
from clusterwatch.analysis.model import Severity
from clusterwatch.analysis.signals import Signal
from tests.analysis.layers import ONSET, S, link_down, link_up, signal, xid


@pytest.mark.parametrize(
    ("retries", "low_s", "high_s"),
    [
        (Retries(14, 7), 0.47, 2.15),
        (Retries(18, 7), 7.5, 34.4),
        (Retries(20, 7), 30.1, 137.4),
        (Retries(22, 10), 171.8, 755.9),
        (Retries(), 7.5, 137.4),
        (Retries(20, 0), 4.3, 17.2),
    ],
)
def test_nccl_waits_by_its_own_settings(retries: Retries, low_s: float, high_s: float) -> None:
    assert patience_s(retries) == pytest.approx((low_s, high_s), rel=0.01)


@pytest.mark.parametrize("timeout", [0, 32, 255])
def test_some_settings_wait_without_end(timeout: int) -> None:
    assert patience_s(Retries(timeout, 7)) == (math.inf, math.inf)


def test_an_end_belongs_to_its_own_part_and_kind() -> None:
    over = signal(
        "fault_over", part="gpu/GPU-1-3", at_s=9.0, severity=Severity.INFO, fields={"kind": "throttle"}
    )
    hot = signal("throttle", part="gpu/GPU-1-3", at_s=-5.0)
    beside = signal("throttle", part="gpu/GPU-1-4", at_s=-5.0)
    told = with_ends([over, link_up(at_s=3.0), link_down(), link_down(2), hot, beside])
    ends = {(one.host, one.part): one.until_ns for one in told}
    assert ends == {
        ("host-1", "port/mlx5_3/1"): ONSET + 3 * S,
        ("host-2", "port/mlx5_3/1"): None,
        ("host-1", "gpu/GPU-1-3"): ONSET + 9 * S,
        ("host-1", "gpu/GPU-1-4"): None,
    }


def test_a_flap_within_one_look_was_two_seconds_at_most() -> None:
    (flap,) = with_ends([signal("link_flap", part="port/mlx5_0/1", at_s=0.0)])
    assert flap.until_ns is not None
    assert flap.until_ns - flap.at_ns == 2 * S


@pytest.mark.parametrize(
    ("told", "onset", "word"),
    [
        (xid(119, at_s=2.9), Onset(ONSET, 3.0), When.FITS),
        (xid(119, at_s=3.1), Onset(ONSET, 3.0), When.AFTER),
        (xid(119, at_s=3.1), Onset(ONSET, 3.0, clock_error_s=0.2), When.FITS),
        (xid(119, at_s=3.9, clock_error_s=None), Onset(ONSET, 3.0), When.FITS),
        (xid(119, at_s=3.9, clock_error_s=None), Onset(ONSET, 3.0, node_id=2), When.AFTER),
        (xid(119, at_s=3.9, clock_error_s=None), Onset(ONSET, 3.0, node_id=5), When.FITS),
        (signal("throttle", at_s=29.0, source="gpu_nvml"), Onset(ONSET), When.FITS),
        (signal("throttle", at_s=31.0, source="gpu_nvml"), Onset(ONSET), When.AFTER),
        (xid(119, at_s=-3_599.0), Onset(ONSET), When.FITS),
        (xid(119, at_s=-3_602.0), Onset(ONSET), When.OLD),
        (link_down(at_s=-30.0, until_ns=ONSET - 5 * S), Onset(ONSET), When.BEFORE),
        (link_down(at_s=-30.0, until_ns=ONSET - 5 * S), Onset(ONSET, lasting_s=10.0), When.FITS),
    ],
)
def test_when_a_signal_can_be_the_cause(told: Signal, onset: Onset, word: When) -> None:
    assert when(told, onset) is word


def test_clocks_are_as_good_as_their_machines_say() -> None:
    told = [
        xid(119, 1, clock_error_s=None),
        xid(119, 2, clock_error_s=None),
        xid(119, 3, clock_error_s=None),
        signal("clock_unsynchronised", 3, clock_error_s=0.0),
    ]
    errors = [one.clock_error_s for one in with_clocks(told, {2: 0.004})]
    assert errors == [0.004, None, CLOCK_LOST_S, 0.0]


def candidate(one: Signal) -> Candidate:
    cause = cause_of(one)
    assert cause is not None
    return Candidate(cause, Part(PartKind.GPU, "3", one.host), (one,), frozenset({0}), 1.0)


def test_one_clock_orders_one_host_and_two_clocks_need_a_gap() -> None:
    early, late = candidate(xid(119, 1, at_s=0.0)), candidate(xid(48, 1, at_s=0.001))
    assert first_of([late, early]) == (early, ())
    far = candidate(xid(119, 2, at_s=0.015))
    assert first_of([far, early]) == (None, (early, far))
    beyond = candidate(xid(119, 2, at_s=0.025))
    assert first_of([beyond, early]) == (early, ())
    assert first_of([]) == (None, ())
