"""Errors that a process lived on after: no failure, whatever their words; and those that only look so."""

from __future__ import annotations

import pytest

from clusterwatch.analysis.log_judge import judge
from tests.analysis.log_texts import finding, parsed, timeout, traceback, verdict

STAMP = "2026-12-02T03:12:44.000Z stderr F "
CAUGHT = traceback("FileNotFoundError: [Errno 2] No such file: '/tmp/cache'", "[rank1]: ")


@pytest.mark.parametrize("line", ["step 11 loss 0.29", "epoch 3 done", "Training finished", "12%| 4.1it/s"])
def test_steps_of_the_same_rank_after_a_traceback_mean_that_it_was_caught(line: str) -> None:
    assert verdict(f"{CAUGHT}[rank1]: {line}\n").findings == []


@pytest.mark.parametrize(
    "line",
    [
        "saving emergency checkpoint at step 11",
        "wandb: Run summary: step 11",
        "cleaning up after step 11",
        "CUDA kernel errors might be asynchronously reported",
        "",
    ],
)
def test_words_of_a_dying_process_are_no_steps(line: str) -> None:
    assert finding(f"{CAUGHT}[rank1]: {line}\n").culprit_ranks == (1,)


def test_steps_of_another_rank_do_not_clear_the_one_that_failed() -> None:
    assert finding(f"{CAUGHT}[rank0]: step 11\n[rank0]: training finished\n").culprit_ranks == (1,)


def test_steps_in_a_file_whose_lines_nothing_tells_apart_do_not_clear() -> None:
    assert finding(traceback("ValueError: bad") + "step 11\nstep 11\n").cause == "ValueError"


def test_the_real_failure_after_a_caught_one_is_named() -> None:
    later = traceback("ValueError: shapes do not match", "[rank2]: ") + timeout(0) + timeout(1)
    one = finding(f"{CAUGHT}[rank1]: step 11\n{later}")
    assert (one.culprit_ranks, one.cause) == ((2,), "ValueError")


def test_old_steps_that_a_pipe_lets_go_at_the_end_do_not_clear_a_rank_whose_exit_is_told() -> None:
    held_back = "1: [rank1]: step 10\n1: [rank1]: step 11\n"
    text = traceback("ValueError: bad", "1: [rank1]: ") + held_back
    ended = "srun: error: node07: task 1: Exited with exit code 1\n"
    assert finding(text + ended, 2).cause == "ValueError"
    assert verdict(text, 2).findings == []


def test_a_call_in_the_ranks_dump_newer_than_its_error_means_that_it_lived() -> None:
    logs = parsed(traceback("ValueError: bad", f"{STAMP}[rank1]: "))
    at_ns = 1_796_181_164_000_000_000  # 2026-12-02 03:12:44 UTC
    assert judge(logs, 4, {1: at_ns + 60_000_000_000}).findings == []
    assert judge(logs, 4, {1: at_ns - 60_000_000_000}).findings[0].culprit_ranks == (1,)
    assert judge(logs, 4, {0: at_ns + 60_000_000_000}).findings[0].culprit_ranks == (1,)
    assert judge(parsed(traceback("ValueError: bad", "[rank1]: ")), 4, {1: at_ns * 2}).findings


def test_a_warning_about_a_retried_connection_is_no_sign_of_a_failure() -> None:
    text = (
        "[rank1]: WARNING: retry after ConnectionResetError: Connection reset by peer (attempt 1 of 5), ok\n"
    )
    assert verdict(text + "[rank0]: step 11\n").findings == []
    failed = finding(text + traceback("ValueError: bad", "[rank2]: "))
    assert failed.culprit_ranks == (2,) and failed.downstream.ranks == 0
