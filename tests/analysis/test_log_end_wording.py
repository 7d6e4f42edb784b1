"""Jobs that were ended from outside: at work, or after a silence that tells of a hang."""

from __future__ import annotations

import pytest

from clusterwatch.analysis.model import Owner
from tests.analysis.log_texts import finding

LIMIT = "slurmstepd: error: *** STEP 883.0 ON node05 CANCELLED AT 2026-12-02T09:10:05 DUE TO TIME LIMIT ***\n"
CANCEL = LIMIT.replace(" DUE TO TIME LIMIT", "")
STEPS = "0: 2026-12-02 {0} step 100 loss 2.31\n1: 2026-12-02 {0} step 100 loss 2.31\n"


@pytest.mark.parametrize("end", [LIMIT, CANCEL])
def test_a_long_silence_before_the_end_tells_of_a_hang(end: str) -> None:
    one = finding(STEPS.format("02:02:00") + end + "srun: Job step aborted: Waiting up to 32 seconds.\n")
    assert one.verdict == "ended_by_scheduler" and one.owner is Owner.UNKNOWN
    assert "nothing was logged for 7 h 8 min before: it probably hung" in one.summary
    assert one.confidence <= 0.5 and "Requeue it from" not in one.recommended_action


def test_a_job_that_logged_until_its_end_did_not_hang() -> None:
    one = finding(STEPS.format("09:09:50") + LIMIT)
    assert "hung" not in one.summary and one.confidence == 0.9


def test_the_newest_file_tells_how_long_the_job_was_silent() -> None:
    files = {"rank0.log": STEPS.format("02:02:00"), "slurm-883.out": LIMIT}
    assert "it probably hung" in finding(files).summary
    assert "hung" not in finding(files | {"rank1.log": STEPS.format("09:08:00")}).summary


def test_lines_without_a_clock_tell_no_silence() -> None:
    assert "hung" not in finding(STEPS.format("02:02:00") + "0: step 101\n" + LIMIT).summary
    files = {"rank0.log": STEPS.format("02:02:00"), "rank1.log": "step 7\n", "slurm-883.out": LIMIT}
    assert "hung" not in finding(files).summary


def test_a_gap_that_two_time_zones_can_make_is_told_and_not_believed() -> None:
    one = finding(STEPS.format("02:09:50") + LIMIT)
    assert "hung" not in one.summary and one.confidence <= 0.5
    assert any("another time zone" in line for line in one.why)


def test_a_line_that_is_cut_says_so() -> None:
    one = finding(LIMIT.strip() + " word" * 200 + "\n")
    assert one.why[0].endswith("...") and len(one.why[0]) < 400
    assert not finding(LIMIT).why[0].endswith("...")
