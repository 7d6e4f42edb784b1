from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterwatch.analysis.gaps import (
    COUNT_MAX,
    DEFAULT_OPEN_S,
    IN_KERNEL_SUSPECT_S,
    GapHistory,
    history_phase,
    limits,
)
from collectors.wire.records import PHASES


def history_of(*gaps_s: float) -> GapHistory:
    history = GapHistory()
    for gap_s in gaps_s:
        history = history.with_gap(gap_s)
    return history


@given(st.lists(st.floats(0.01, 20_000), min_size=1, max_size=200))
def test_the_quantile_is_at_most_a_fifth_above_the_longest_gap_and_never_below_it(
    gaps_s: list[float],
) -> None:
    longest = max(gaps_s)
    found = history_of(*gaps_s).quantile_s(1.0)
    assert found is not None
    assert max(longest, 0.5) * 0.999 <= found <= max(longest, 0.5) * 1.2


def test_a_rare_long_gap_among_thousands_of_short_ones_does_not_decide() -> None:
    history = history_of(*([1.0] * 4000), 300.0)
    assert history.quantile_s() == pytest.approx(1.0, rel=0.2)


def test_a_history_forgets_slowly_and_stays_bounded() -> None:
    history = GapHistory((COUNT_MAX, *([0] * 63))).with_gap(1.0)
    assert history.total <= COUNT_MAX
    assert history.counts[0] > COUNT_MAX // 3


def test_without_history_the_default_of_the_phase_holds_and_says_so() -> None:
    found = limits("train", None)
    assert found.open_s == DEFAULT_OPEN_S["train"]
    assert found.source == "default for train, no history yet"


def test_four_gaps_are_no_history_five_are() -> None:
    assert "no history" in limits("train", history_of(*[1.0] * 4)).source
    assert "its own gaps" in limits("train", history_of(*[1.0] * 5)).source


def test_a_job_with_short_gaps_is_opened_after_10_s_and_suspected_after_2_5() -> None:
    found = limits("train", history_of(*[1.0] * 60))
    assert (found.suspect_s, found.open_s) == (2.5, 10.0)


def test_a_job_with_long_steps_gets_three_times_its_own_gap() -> None:
    found = limits("train", history_of(*[20.0] * 30))
    assert 60.0 <= found.open_s <= 72.0
    assert 30.0 <= found.suspect_s <= 36.0


@pytest.mark.parametrize("phase", ["startup", "compile", "teardown"])
def test_what_happens_once_is_never_learned(phase: str) -> None:
    assert limits(phase, history_of(*[1.0] * 1000)).open_s == DEFAULT_OPEN_S[phase]


@pytest.mark.parametrize("phase", ["startup", "checkpoint", "evaluation", "compile"])
def test_outside_of_steps_suspicion_waits_for_half_the_limit(phase: str) -> None:
    found = limits(phase, None)
    assert found.suspect_s == found.open_s / 2


def test_a_process_in_the_kernel_is_suspected_early_but_opens_no_earlier() -> None:
    found, usual = limits("checkpoint", None, in_kernel=True), limits("checkpoint", None)
    assert (found.suspect_s, found.open_s) == (IN_KERNEL_SUSPECT_S, usual.open_s)


def test_a_job_whose_checkpoints_are_known_to_be_long_keeps_its_patience_in_the_kernel() -> None:
    history = history_of(*[100.0] * 10)
    assert limits("checkpoint", history, in_kernel=True) == limits("checkpoint", history)


def test_parts_of_a_step_share_its_history() -> None:
    assert history_phase("data_loading") == history_phase("gc") == "train"
    assert limits("data_loading", history_of(*[1.0] * 60)).open_s == 10.0


@pytest.mark.parametrize("phase", PHASES)
def test_every_phase_has_a_default_and_is_suspected_before_it_opens(phase: str) -> None:
    found = limits(phase, None)
    assert 0 < found.suspect_s < found.open_s
