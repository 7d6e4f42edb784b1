"""Values as one byte per slot."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from clusterwatch.ingest import map_bytes

NAN = float("nan")


def floats(*values: float) -> map_bytes.Floats:
    return np.array(values, np.float32)


def test_a_scale_runs_from_0_to_its_top_and_nothing_is_not_0() -> None:
    found = map_bytes.scaled(floats(0, 500, 1_000, 2_000, -5, NAN, np.inf), 0.0, 1_000.0)
    assert found.tolist() == [0, 125, 250, 250, 0, map_bytes.UNKNOWN, map_bytes.UNKNOWN]


@given(st.lists(st.floats(width=32), max_size=20))
def test_no_value_is_taken_for_a_closed_slot(values: list[float]) -> None:
    assert (map_bytes.scaled(floats(*values), 0.0, 125.0) != map_bytes.CLOSED).all()


def test_link_errors_grow_by_their_logarithm_and_a_reset_counts_from_0() -> None:
    found = map_bytes.link_errors(floats(7, 10, 3, NAN, 5), floats(7, 7, 100, 1))
    assert found.tolist() == [0, 20, 20, map_bytes.UNKNOWN, map_bytes.UNKNOWN]


def test_a_slot_shows_its_job_and_its_latest_rank() -> None:
    first, second = np.array([0, 1, -1]), np.array([2, 2])
    assert map_bytes.jobs(4, {7: first, 257: second}).tolist() == [8, 8, 8, 0]
    ranks = [(first, np.array([0, 3, 9])), (second, np.array([1, 900]))]
    assert map_bytes.lateness(4, ranks).tolist() == [0, 3, map_bytes.TOP, map_bytes.UNKNOWN]
