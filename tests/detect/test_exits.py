from __future__ import annotations

from datetime import UTC, datetime

import pytest

from clusterwatch.analysis.ending import Ending
from clusterwatch.detect.exits import (
    SETTLE_NS,
    VANISHED_SETTLE_NS,
    ended_without_failure,
    is_failure,
    may_become_failure,
)
from clusterwatch.jobs.exits import ending
from clusterwatch.jobs.models import Rank

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def gone(**fate: object) -> Rank:
    return Rank(exited_at=NOW, **fate)


ALIVE = Rank()
CLEAN = gone(exit_code=0, clean_exit=True)
TOLD = gone(exit_signal=15)
VANISHED = gone()
FAILED = gone(exit_code=1)


@pytest.mark.parametrize(
    ("rank", "how"),
    [
        (ALIVE, Ending.ALIVE),
        (CLEAN, Ending.CLEAN),
        (gone(clean_exit=True), Ending.CLEAN),
        (gone(exit_code=0), Ending.CLEAN),
        (gone(exit_code=0, exception={"type": "ValueError"}), Ending.FAILED),
        (TOLD, Ending.TOLD),
        (gone(exit_signal=2), Ending.TOLD),
        (gone(exit_code=143), Ending.TOLD),
        (gone(exit_code=1, exception={"type": "KeyboardInterrupt"}), Ending.TOLD),
        (gone(exit_signal=9), Ending.FAILED),
        (gone(exit_signal=11), Ending.FAILED),
        (gone(exit_code=137), Ending.FAILED),
        (FAILED, Ending.FAILED),
        (gone(clean_exit=False, exit_code=3), Ending.FAILED),
        (VANISHED, Ending.VANISHED),
    ],
)
def test_how_a_process_ended(rank: Rank, how: Ending) -> None:
    assert ending(rank) is how


def test_a_failure_is_one_only_after_its_cascade_had_time_to_come() -> None:
    assert not is_failure([FAILED, ALIVE], SETTLE_NS - 1)
    assert is_failure([FAILED, ALIVE], SETTLE_NS)


def test_gone_without_a_word_is_a_failure_while_others_live_on() -> None:
    assert not is_failure([VANISHED, ALIVE], VANISHED_SETTLE_NS - 1)
    assert is_failure([VANISHED, ALIVE], VANISHED_SETTLE_NS)


def test_all_gone_without_a_word_is_how_a_launcher_stops_a_job() -> None:
    assert not is_failure([VANISHED, VANISHED], 10 * VANISHED_SETTLE_NS)


@pytest.mark.parametrize("ranks", [[TOLD, ALIVE], [TOLD, VANISHED, ALIVE], [CLEAN, ALIVE], [ALIVE, ALIVE]])
def test_told_to_end_is_never_a_failure(ranks: list[Rank]) -> None:
    assert not is_failure(ranks, 10 * VANISHED_SETTLE_NS)


def test_what_peers_raise_after_a_stop_is_no_failure_but_a_stop_after_a_failure_is() -> None:
    stopped, raised = gone(exit_signal=2, exit_ns=100), gone(exit_code=1, exit_ns=300)
    assert not is_failure([stopped, raised], SETTLE_NS)
    ended_by_launcher = gone(exit_signal=15, exit_ns=400)
    assert is_failure([raised, ended_by_launcher], SETTLE_NS)


def test_a_stop_from_outside_is_told_from_a_job_that_goes_on() -> None:
    assert ended_without_failure([TOLD, CLEAN, ALIVE])
    assert not ended_without_failure([ALIVE])
    assert not ended_without_failure([TOLD, FAILED])
    assert may_become_failure([VANISHED, ALIVE])
    assert not may_become_failure([TOLD, CLEAN])
