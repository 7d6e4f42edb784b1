"""Saves of many ranks, and the one to go on from."""

from __future__ import annotations

import numpy as np

from clusterwatch.analysis.checkpoints import Kept, recommend, saves, trend_ratio
from clusterwatch.analysis.goodput_model import NEVER_NS, Roster, Steps

S = 10**9


def told(
    saved: dict[tuple[int, int], float], ranks: int, last: int, slow: float = 1.0
) -> tuple[Steps, Roster]:
    """Steps of one second; (rank, step) -> seconds of a save, for which all wait."""
    rows = [(rank, step) for rank in range(ranks) for step in range(1, last + 1)]
    longest = {step: max([s for (_, of), s in saved.items() if of == step], default=0.0) for _, step in rows}
    end = np.cumsum([1.0 + longest[step] for step in range(1, last + 1)])
    steps = Steps(
        np.array([rank for rank, _ in rows]),
        np.array([step for _, step in rows]),
        np.array([int(end[step - 1] * S) for _, step in rows]),
        np.array([slow + longest[step] for _, step in rows]),
        np.array([saved.get(row, 0.0) for row in rows]),
    )
    return steps, Roster(np.zeros(ranks, np.int64), np.zeros(ranks, np.int64), np.full(ranks, NEVER_NS))


def test_a_save_names_its_step_its_ranks_its_cost_and_the_slowest() -> None:
    steps, roster = told({(rank, 6): 2.0 + (rank == 37) for rank in range(64)}, 64, 10)
    (save,) = saves(steps, roster, {0: 1.0}, 0, 100 * S)
    assert (save.step, save.rank_count, save.saver_count, save.longest_s) == (5, 64, 64, 3.0)
    assert save.slowest[0] == (37, 3.0) and save.p50_s == 2.0 and len(save.slowest) == 5
    assert save.cost_ns == 64 * 3 * S


def test_ranks_that_wait_for_one_that_writes_are_part_of_its_cost() -> None:
    steps, roster = told({(0, 3): 4.0}, 8, 5)
    (save,) = saves(steps, roster, {0: 1.0}, 0, 100 * S)
    assert (save.saver_count, save.rank_count, save.cost_ns) == (1, 8, 32 * S)


def test_without_a_usual_pace_only_what_writers_told_is_counted() -> None:
    steps, roster = told({(0, 3): 4.0}, 8, 5)
    assert saves(steps, roster, {}, 0, 100 * S)[0].cost_ns == 4 * S


def test_a_log_written_in_a_step_is_no_checkpoint() -> None:
    steps, roster = told({(0, 3): 0.004}, 8, 5)
    assert saves(steps, roster, {}, 0, 100 * S) == []


def test_a_save_belongs_to_the_stretch_in_which_its_step_ended() -> None:
    steps, roster = told({(0, 3): 4.0, (0, 9): 4.0}, 2, 12)
    first, second = (saves(steps, roster, {}, *window) for window in ((0, 8 * S), (8 * S, 99 * S)))
    assert [one.step for one in first] == [2] and [one.step for one in second] == [8]


def kept(step: int, savers: int, attempt: int = 0, size: int = 8, told: int | None = None) -> Kept:
    return Kept(attempt, "", step, (attempt * 1_000 + step) * S, savers, size if told is None else told, size)


def test_the_newest_whole_save_before_the_fault_is_recommended() -> None:
    found = recommend([kept(100, 8), kept(200, 8), kept(300, 8)], {}, 250 * S, 0)
    assert found is not None and found.save.step == 200 and not found.is_proven
    assert found.why == ("all 8 ranks wrote it", "not proven by a load") and found.confidence == 0.9


def test_a_save_in_which_ranks_are_missing_is_passed_over() -> None:
    found = recommend([kept(100, 4), kept(200, 4), kept(300, 3)], {}, 999 * S, 0)
    assert found is not None and found.save.step == 200
    assert "4 of 8 ranks wrote it, as in every whole save before" in found.why


def test_one_save_by_one_rank_is_recommended_with_doubt() -> None:
    found = recommend([kept(100, 1)], {}, 999 * S, 0)
    assert found is not None and found.confidence == 0.5
    assert "no other save tells who should" in found.why[0]


def test_a_save_of_which_ranks_told_nothing_may_be_whole_and_a_sure_one_is_preferred() -> None:
    found = recommend([kept(100, 8), kept(200, 6, told=6)], {}, 999 * S, 0)
    assert found is not None and found.save.step == 100
    assert found.why[2:] == ()  # fewer wrote than ever do: not even a candidate
    later = recommend([kept(100, 8), kept(50, 6, attempt=1, told=6)], {}, 9_999 * S, 1)
    assert later is not None and (later.save.attempt, later.save.step) == (0, 100)
    assert later.why[2] == (
        "the one after step 50 of attempt 1 may be whole: 6 of 8 ranks wrote it, 2 told nothing of it"
    )


def test_an_attempt_that_went_on_from_it_proves_it() -> None:
    found = recommend([kept(100, 8), kept(200, 8)], {0: 1, 1: 201}, 999 * S, 1)
    assert found is not None and found.is_proven and "attempt 1 went on from it" in found.why[1]


def test_an_attempt_that_counts_from_its_own_start_proves_nothing() -> None:
    found = recommend([kept(1, 8)], {1: 2}, 999 * S, 1)
    assert found is not None and not found.is_proven


def test_without_a_save_before_the_fault_nothing_is_recommended() -> None:
    assert recommend([kept(300, 8)], {}, 250 * S, 0) is None
    assert recommend([kept(10, 8, attempt=2)], {}, 2**62, 1) is None


def test_the_trend_compares_the_newest_third_with_the_oldest() -> None:
    assert trend_ratio(np.array([10.0, 10, 11, 12, 15, 15])) == 0.5
    assert trend_ratio(np.array([10.0, 20])) is None
