"""The script behind docs/verdict-table.md builds its folders, runs the tools and judges them by its rule."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests import compare_tools
from tests.cases.judged import judge_bytes
from tests.compare_cases import CASES
from tests.compare_tools import Answer


@pytest.mark.torch
def test_two_cases_give_two_rows_with_ours_right() -> None:
    pytest.importorskip("torch")
    found = compare_tools.rows(["no_fault", "missing_rank"], nvrx_python=None)
    assert [row[2] for row in found] == ["right", "right"] and [row[4] for row in found] == ["not run"] * 2
    assert all("crash" not in row[3] or "tabulate" in row[3] for row in found)


@pytest.mark.parametrize("name", CASES)
def test_each_case_is_what_its_row_says(name: str) -> None:
    found = judge_bytes(CASES[name].dumps())
    answer = Answer(
        frozenset(found["culprit_ranks"]), frozenset(found["suspect_ranks"]), found["verdict"] != "no_fault"
    )
    assert compare_tools.judged(answer, CASES[name].faulty) in ("right", "suspects"), found["summary"]


@pytest.mark.parametrize(
    ("named", "suspects", "fault", "faulty", "word"),
    [
        ({2}, set(), True, {2}, "right"),
        ({2}, {3}, True, {2}, "right"),
        ({0, 2}, set(), True, {2}, "wrong name: [0, 2]"),
        (set(), {1, 2}, True, {2}, "suspects"),
        (set(), {1}, True, {2}, "wrong suspects: [1]"),
        (set(), set(), True, {2}, "no name"),
        (set(), set(), False, {2}, "no error"),
        (set(), set(), False, set(), "right"),
        ({1}, set(), True, set(), "false alarm"),
        (set(), set(), True, None, "right"),
        ({1}, set(), True, None, "wrong name: [1]"),
        (set(), set(), False, None, "no error"),
    ],
)
def test_the_rule_of_judgement(
    named: set[int], suspects: set[int], fault: bool, faulty: set[int] | None, word: str
) -> None:
    answer = Answer(frozenset(named), frozenset(suspects), fault)
    assert compare_tools.judged(answer, None if faulty is None else frozenset(faulty)) == word


def test_an_interpreter_without_the_package_is_said_to_lack_it(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    python.chmod(0o700)
    assert compare_tools.attribution_in(str(python)) == "is not installed"
