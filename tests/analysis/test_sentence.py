"""Words and their limits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterwatch.analysis.sentence import SENTENCE_MAX_CHARS, count, duration, noun, ranks_text, sentence
from clusterwatch.analysis.verdicts import CATALOGUE
from tests.analysis.looks import live
from tests.data.blocking_job import World


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([5], "5"),
        ([1, 0], "0, 1"),
        ([0, 1, 2, 7], "0-2, 7"),
        ([0, 2, 4, 6, 8, 10, 13, 14, 15], "0, 2, 4, 6, 8, 10 and 3 more"),
        (range(0, 18, 2), "0-16, every 2nd"),
        (range(7, 24_576, 512), "7-24071, every 512th"),
        (range(0, 130, 13), "0-117, every 13th"),
    ],
)
def test_rank_lists_are_ranges_and_bounded(ranks: list[int], text: str) -> None:
    assert ranks_text(ranks) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.85, "850 ms"), (42, "42 s"), (252, "4 min 12 s"), (7500, "2 h 5 min")]
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_counts_have_thin_thousands_and_a_plural() -> None:
    assert count(1, "rank") == "1 rank"
    assert count(16376, "rank") == "16\N{NO-BREAK SPACE}376 ranks"
    assert noun([3]) == "rank 3"


@given(st.lists(st.text(max_size=150), max_size=6))
def test_a_sentence_is_never_longer_than_its_limit(parts: list[str]) -> None:
    assert len(sentence(*parts)) <= SENTENCE_MAX_CHARS


def test_the_sentence_tells_job_time_rank_call_and_who_waits() -> None:
    text = live(World("data_loader", 5).run(), job="88213", stall_s=252.0).worst.summary
    for part in ("Job 88213", "4 min 12 s", "rank 5", "all_reduce 13 of tp", "5 ranks wait"):
        assert part in text
    assert len(text) <= SENTENCE_MAX_CHARS


def test_every_verdict_has_an_action_and_a_page() -> None:
    for word, row in CATALOGUE.items():
        assert row.word == word and row.action and row.doc.endswith(word)
