"""The script behind docs/verdict-table.md builds its folders, runs the tools and judges them by its rule."""

from __future__ import annotations

import pytest

from tests import compare_tools

pytestmark = [pytest.mark.torch]


def test_two_cases_give_two_rows_with_ours_right() -> None:
    found = compare_tools.rows(["no_fault", "missing_rank"], nvrx_python=None)
    assert [row[2:] for row in found] == [["right", "right", "not run"]] * 2


@pytest.mark.parametrize(
    ("ranks", "fault", "faulty", "word"),
    [
        ({2}, True, {2}, "right"),
        ({0, 2}, True, {2}, "wrong name: [0, 2]"),
        (set(), True, {2}, "no name"),
        (set(), False, {2}, "no error"),
        (set(), False, set(), "right"),
        ({1}, True, set(), "false alarm"),
    ],
)
def test_the_rule_of_judgement(ranks: set[int], fault: bool, faulty: set[int], word: str) -> None:
    assert compare_tools.judged((ranks, fault, ""), faulty) == word
