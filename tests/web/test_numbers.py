"""How numbers, ages and times are written."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterwatch.web import numbers

THIN = numbers.THIN


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (0, "0"), (999, "999"), (16384, f"16{THIN}384"), (-1200, f"\u22121{THIN}200"), (-0.2, "0")],
)
def test_counts_have_thin_space_thousands_and_a_true_minus(value: float | None, text: str) -> None:
    assert numbers.grouped(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "–"),
        (-3, "0 s"),
        (8.9, "8 s"),
        (258, "4 min 18 s"),
        (7500, "2 h 05 min"),
        (172800, "2 d"),
    ],
)
def test_ages_are_said_in_the_units_that_matter(seconds: float | None, text: str) -> None:
    assert numbers.lasting(seconds).replace(THIN, " ") == text


def test_a_missing_one_never_reads_as_100_percent() -> None:
    assert numbers.share(24575, 24576) == f"99.9{THIN}%"
    assert numbers.share(24576, 24576) == f"100{THIN}%"
    assert numbers.share(0, 0) == "–"


@given(st.integers(1, 10**6).flatmap(lambda whole: st.tuples(st.integers(0, whole), st.just(whole))))
def test_a_share_is_never_rounded_up(pair: tuple[int, int]) -> None:
    part, whole = pair
    shown = float(numbers.share(part, whole).split(THIN)[0])
    assert shown <= 100 * part / whole + 1e-9
    assert (shown == 100) == (part == whole)


def test_the_date_is_written_only_when_it_is_not_today() -> None:
    now = datetime(2026, 12, 2, 3, 7, 41, tzinfo=UTC)
    assert numbers.clock(now, now) == "03:07:41"
    assert numbers.clock(datetime(2026, 12, 1, 23, 0, tzinfo=UTC), now) == "2026-12-01 23:00:00"


def test_ranks_are_written_as_runs_and_the_rest_is_counted() -> None:
    assert numbers.rank_runs([3, 1, 2, 2, 9]) == "1-3, 9"
    assert numbers.rank_runs([]) == "–"
    odd = numbers.rank_runs(range(1, 101, 2))
    assert odd.startswith("1, 3, 5") and odd.endswith("and 38 more")


@given(st.sets(st.integers(0, 400), max_size=20))
def test_runs_hold_exactly_the_ranks_given(ranks: set[int]) -> None:
    text = numbers.rank_runs(ranks)
    if "more" in text or not ranks:
        return
    back: set[int] = set()
    for run in text.split(", "):
        low, _, high = run.partition("-")
        back |= set(range(int(low), int(high or low) + 1))
    assert back == ranks


def test_sizes_are_binary_and_unknown_ones_a_dash() -> None:
    assert numbers.size(64 * 1024**3) == f"64.0{THIN}GiB"
    assert numbers.size(None) == "–"
