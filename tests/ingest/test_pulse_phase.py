"""Ticks follow the gateway's writes, so that a page is not a second older than it need be."""

from __future__ import annotations

import pytest

from clusterwatch.ingest import pulse_loop
from clusterwatch.ingest.pulse_loop import READ_AFTER_S, SHIFT_MAX_S, TICK_S, shift_s

WRITE_S = 1_000.4


@pytest.mark.parametrize("first_s", [1_000.0, 1_000.3, 1_000.64, 1_000.66, 1_000.99])
def test_ticks_come_to_follow_the_write(first_s: float) -> None:
    at_s = first_s
    for _ in range(8):
        at_s += TICK_S + shift_s(at_s, int(WRITE_S * 1e9))
    assert (at_s - WRITE_S) % TICK_S == pytest.approx(READ_AFTER_S, abs=1e-3)


def test_a_tick_moves_little_at_a_time_and_not_at_all_without_a_gateway() -> None:
    assert shift_s(1_000.9, None) == 0.0
    assert abs(shift_s(1_000.95, int(WRITE_S * 1e9))) <= SHIFT_MAX_S < pulse_loop.LEASE_S - TICK_S
