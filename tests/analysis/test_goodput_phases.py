"""Changes of phase become spans, also where a begin or an end was never told."""

from __future__ import annotations

import numpy as np

from clusterwatch.analysis.goodput_model import Spans
from clusterwatch.analysis.goodput_phases import OPEN_MAX_NS, Changes, nothing_open, spans

S = 10**9
WORDS = ("train", "evaluation", "startup")


def changes(*rows: tuple[int, int, str, str, float]) -> Changes:
    """rank, s, phase, before, before_s"""
    who, at, phase, before, lasted = (
        (list(column) for column in zip(*rows, strict=True)) if rows else [[]] * 5
    )
    return Changes(
        np.array(who, np.int64),
        np.array(at, np.int64) * S,
        np.array([WORDS.index(word) for word in phase], np.int64),
        np.array([WORDS.index(word) for word in before], np.int64),
        np.array(lasted, np.float64),
        WORDS,
    )


def listed(of: Spans) -> list[tuple[int, int, int]]:
    rows = zip(of.who.tolist(), of.start_ns.tolist(), of.end_ns.tolist(), strict=True)
    return sorted((who, start // S, end // S) for who, start, end in rows if end > start)


def test_a_phase_lasts_from_its_change_to_the_next_one() -> None:
    told = changes((0, 200, "evaluation", "train", 100.0), (0, 230, "train", "evaluation", 30.0))
    found, _ = spans(told, nothing_open(1), 300 * S)
    assert listed(found["evaluation"]) == [(0, 200, 230)]
    assert listed(found["train"]) == [(0, 100, 200), (0, 230, 300)]


def test_an_end_alone_tells_the_whole_phase() -> None:
    found, _ = spans(changes((3, 500, "train", "startup", 252.0)), nothing_open(4), 520 * S)
    assert listed(found["startup"]) == [(3, 248, 500)]


def test_an_open_phase_goes_on_in_the_next_window_until_its_bound() -> None:
    _, still = spans(changes((1, 90, "evaluation", "train", 1.0)), nothing_open(2), 100 * S)
    assert (still.phase.tolist(), still.since_ns.tolist()) == (["", "evaluation"], [0, 90 * S])
    found, again = spans(changes(), still, 160 * S)
    assert listed(found["evaluation"]) == [(1, 90, 160)] and again.phase[1] == "evaluation"
    far, _ = spans(changes(), still, 90 * S + 2 * OPEN_MAX_NS)
    assert listed(far["evaluation"]) == [(1, 90, 90 + OPEN_MAX_NS // S)]


def test_a_change_after_the_window_tells_of_it_and_is_not_open_in_it() -> None:
    told = changes((0, 150, "train", "evaluation", 80.0))
    found, still = spans(told, nothing_open(1), 100 * S)
    assert listed(found["evaluation"]) == [(0, 70, 150)] and still.phase[0] == ""


def test_the_order_of_rows_does_not_matter() -> None:
    rows = [
        (0, 200, "evaluation", "train", 5.0),
        (1, 210, "train", "evaluation", 9.0),
        (0, 230, "train", "evaluation", 30.0),
    ]
    one, _ = spans(changes(*rows), nothing_open(2), 300 * S)
    two, _ = spans(changes(*rows[::-1]), nothing_open(2), 300 * S)
    assert {word: listed(of) for word, of in one.items()} == {word: listed(of) for word, of in two.items()}
