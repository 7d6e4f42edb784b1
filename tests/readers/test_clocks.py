"""A clock or a single time far ahead of all others, and what looks like it: a later run."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterwatch.analysis import Observation, diagnose
from clusterwatch.readers import folder
from tests.data.recorder import Job
from tests.readers.test_runs import job_at, more, put, reasons

HOUR_S = 3600


def ahead(where: Path, job: Job, ranks: list[int], seconds: float, calls: int = 5) -> None:
    """Dumps of ``job`` with those of some ranks by a clock so much ahead."""
    put(where, job, [rank for rank in range(job.world) if rank not in ranks])
    put(where, job_at(seconds, job.world, calls), ranks)


@pytest.mark.parametrize("hours", [1, 2, 13])
def test_one_clock_ahead_is_set_back_and_its_dump_used(tmp_path: Path, hours: int) -> None:
    ahead(tmp_path, job_at(0), [3], hours * HOUR_S)
    found = folder.read(tmp_path)
    assert [window.rank for window in found.windows] == list(range(8)) and not found.stale_ranks
    assert "ahead of its peers': its times are set back" in reasons(found)["nccl_trace_rank_3"]
    newest = {window.newest_ns for window in found.windows}
    assert max(newest) - min(newest) < 1e9
    assert diagnose(Observation(windows=found.windows)).worst.verdict == "no_fault"


@pytest.mark.parametrize(
    ("ranks", "hours", "calls"),
    [([3, 4], 2, 5), ([3], 24, 5), ([3], 2, 40)],
    ids=["two", "a day", "other calls"],
)
def test_dumps_of_a_later_run_make_the_others_stale(
    tmp_path: Path, ranks: list[int], hours: int, calls: int
) -> None:
    ahead(tmp_path, job_at(0), ranks, hours * HOUR_S, calls)
    found = folder.read(tmp_path)
    assert [window.rank for window in found.windows] == ranks
    assert found.stale_ranks == set(range(8)) - {*ranks}


def test_a_clock_behind_looks_like_an_old_dump(tmp_path: Path) -> None:
    ahead(tmp_path, job_at(2 * HOUR_S), [3], 0)
    assert folder.read(tmp_path).stale_ranks == {3}


def test_a_rank_with_two_dumps_has_been_started_anew(tmp_path: Path) -> None:
    put(tmp_path / "old", job_at(0))
    put(tmp_path / "new", job_at(2 * HOUR_S), [3])
    assert [window.rank for window in folder.read(tmp_path).windows] == [3]


def test_two_dumps_alone_tell_of_no_clock(tmp_path: Path) -> None:
    ahead(tmp_path, job_at(0, world=2), [1], 2 * HOUR_S)
    assert [window.rank for window in folder.read(tmp_path).windows] == [1]


def test_one_call_with_an_absurd_time_costs_its_time_only(tmp_path: Path) -> None:
    job = job_at(0)
    odd = job_at(0)
    odd.wait(37 * HOUR_S)
    more(job, 1)
    more(odd, 1)
    put(tmp_path, job, [0, 1, 2, 4, 5, 6, 7])
    put(tmp_path, odd, [3])
    found = folder.read(tmp_path)
    assert len(found.windows) == 8
    assert "lies 37 h after all others" in reasons(found)["nccl_trace_rank_3"]
    newest = [window.newest_ns or 0 for window in found.windows]
    assert max(newest) - min(newest) < HOUR_S * 1e9
    assert diagnose(Observation(windows=found.windows)).worst.verdict == "no_fault"
