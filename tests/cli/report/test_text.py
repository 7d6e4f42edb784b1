"""The terminal report: order, wrapping, colour, hostile names."""

from __future__ import annotations

import io
import re

import pytest

from clusterwatch.analysis.model import (
    Downstream,
    Finding,
    InputProblem,
    RankStacks,
    Severity,
    StackThread,
)
from clusterwatch.cli.report import text, words
from clusterwatch.cli.report.text import Style
from tests.cli.report.made import HOSTILE, hostile_job, judged, stuck_job, windows


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def lines_of(width: int = 80, colour: bool = False, **facts: object) -> list[str]:
    diagnosis, view = judged(windows(stuck_job()), **facts)
    return text.report(diagnosis, view, Style(width, colour))


def test_says_who_where_since_when_and_what_next_in_that_order() -> None:
    lines = lines_of()
    assert lines[0].startswith("Rank 5 never joined all_reduce 5 of tp (4, 5)")
    labels = [line[2:12].strip() for line in lines[1 : lines.index("")] if line[2] != " "]
    assert labels == ["verdict", "culprit", "where", "since", "joined", "waiting", "evidence", "next"]
    assert any(line.startswith("  joined    rank 4 issued it; rank 5 did not") for line in lines)


def test_groups_are_listed_by_shape() -> None:
    joined = " ".join(" ".join(lines_of()).split())
    assert "4 tp groups of 2: 3 ok, 1 stuck (ranks 4, 5)" in joined


@pytest.mark.parametrize("width", [40, 60, 80, 110])
def test_no_line_is_wider_than_the_terminal_and_goes_on_under_the_text(width: int) -> None:
    lines = lines_of(width)
    assert max(map(len, lines)) <= width
    at = next(n for n, line in enumerate(lines) if line.startswith("  next"))
    rest = lines[at + 1 : lines.index("", at)]
    assert rest and all(line.startswith(" " * 12) and line[12] != " " for line in rest)


def test_each_piece_of_evidence_hangs_behind_its_dash() -> None:
    lines = lines_of(50)
    at = next(n for n, line in enumerate(lines) if line.startswith("  evidence"))
    assert lines[at][12:14] == "- " and lines[at + 1].startswith(" " * 14)


def test_after_a_crash_nobody_is_said_to_wait() -> None:
    crash = Finding(
        "out_of_memory", "crash", Severity.CRITICAL, "Rank 3 ran out of memory.", "crash v1", 0.9,
        downstream=Downstream(0, 2),
    )  # fmt: skip
    assert words.waiting(crash) == "2 ranks failed or stopped because of it"


def test_an_age_is_told_only_where_the_dumps_prove_it() -> None:
    young = " ".join(" ".join(lines_of()).split())
    assert "so the dumps do not tell how long it stands" in young
    job = stuck_job()
    job.wait(258)
    job.call(0, "1")
    diagnosis, view = judged(windows(job))
    old = " ".join(" ".join(text.report(diagnosis, view)).split())
    assert "4 min 18 s before the newest call" in old
    assert "its time-out is 10 min" in old


def test_colour_only_on_a_terminal_and_never_against_the_user() -> None:
    assert text.style_of(_Terminal(), {"TERM": "xterm"}).colour
    assert not text.style_of(_Terminal(), {"NO_COLOR": "1"}).colour
    assert not text.style_of(_Terminal(), {"TERM": "dumb"}).colour
    assert not text.style_of(io.StringIO(), {"TERM": "xterm"}).colour


def test_colour_changes_no_word() -> None:
    plain, painted = lines_of(), lines_of(colour=True)
    assert "\x1b[" in "".join(painted) and "\x1b" not in "".join(plain)
    assert [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in painted] == plain


def test_names_from_dumps_reach_the_terminal_without_control_characters() -> None:
    diagnosis, view = judged(windows(hostile_job()))
    shown = "\n".join(text.report(diagnosis, view, Style(), stacks=True))
    assert "\x1b" not in shown and "\u202e" not in shown and "onerror" in shown


def test_files_left_out_for_one_reason_are_told_once() -> None:
    problems = tuple(InputProblem(f"a/rank_{n}", f"stale: an older dump of rank {n}", n) for n in range(40))
    lines = lines_of(problems=(*problems, InputProblem("b", "is empty")))
    told = [line for line in lines if "rank_" in line]
    assert len(told) == 1 and any("39 more files" in line for line in lines)


def test_stacks_begin_with_the_culprit_and_libraries_are_short() -> None:
    library = "all_reduce (/opt/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py:3245)"
    stacks = tuple(
        RankStacks(rank, "hook", (StackThread("main", ("main (train.py:1)", library), main=True),))
        for rank in (4, 5)
    )
    diagnosis, view = judged(windows(stuck_job()), stacks=stacks)
    lines = text.report(diagnosis, view, Style(), stacks=True)
    heads = [line for line in lines if line.startswith(("culprit:", "waiting:"))]
    assert heads[0] == "culprit: rank 5 (hook)"
    assert "    all_reduce (torch/distributed/distributed_c10d.py:3245)" in lines


def test_thousands_are_kept_together() -> None:
    assert words.number(16384) == "16\u00a0384"
    assert words.printable(words.number(16384)) == "16\u00a0384"


def test_a_time_out_of_range_is_shown_as_it_is() -> None:
    assert words.utc(9 * 10**18 * 1000).endswith(" ns")


def test_hostile_text_is_cut_to_what_can_be_printed() -> None:
    assert words.printable(HOSTILE).count("\N{REPLACEMENT CHARACTER}") == 2
