"""Several dumps per rank, earlier runs, restarts, and two jobs in one folder."""

from __future__ import annotations

import contextlib
import os
import random
import tempfile
from collections.abc import Sequence
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterwatch.analysis import Observation, diagnose
from clusterwatch.readers import folder
from tests.data.recorder import Job

DAY_S = 86_400


def job_at(seconds: float, world: int = 8, calls: int = 5) -> Job:
    """A job whose first call is ``seconds`` after the start of time."""
    job = Job(world)
    job.wait(seconds)
    more(job, calls)
    return job


def more(job: Job, calls: int) -> None:
    for _ in range(calls):
        job.all()


def put(where: Path, job: Job, ranks: object = None, prefix: str = "nccl_trace_rank_") -> None:
    where.mkdir(parents=True, exist_ok=True)
    assert ranks is None or isinstance(ranks, (list, range))
    for rank in range(job.world) if ranks is None else ranks:
        (where / f"{prefix}{rank}").write_bytes(job.pickled(rank))


def sources(found: folder.Folder) -> list[str]:
    return [window.source for window in found.windows]


def reasons(found: folder.Folder) -> dict[str, str]:
    return {problem.source: problem.reason for problem in found.problems}


def test_yesterdays_file_of_one_rank_is_stale_and_not_judged(tmp_path: Path) -> None:
    put(tmp_path, job_at(0), [3])
    put(tmp_path, job_at(DAY_S), [0, 1, 2, 4, 5, 6, 7])
    found = folder.read(tmp_path)
    assert [window.rank for window in found.windows] == [0, 1, 2, 4, 5, 6, 7]
    assert found.stale_ranks == {3} and found.world_size == 8
    assert "earlier run" in reasons(found)["nccl_trace_rank_3"]
    diagnosis = diagnose(
        Observation(windows=found.windows, stale_ranks=found.stale_ranks, problems=found.problems)
    )
    assert (diagnosis.coverage.expected, diagnosis.coverage.stale) == (8, 1)


def test_the_newest_run_wins_also_when_most_files_are_older(tmp_path: Path) -> None:
    put(tmp_path, job_at(0), [2, 3, 4, 5, 6, 7])
    put(tmp_path, job_at(DAY_S), [0, 1])
    found = folder.read(tmp_path)
    assert [window.rank for window in found.windows] == [0, 1]
    assert found.stale_ranks == {2, 3, 4, 5, 6, 7}
    diagnosis = diagnose(Observation(windows=found.windows, stale_ranks=found.stale_ranks))
    assert (diagnosis.coverage.reported, diagnosis.coverage.stale) == (8, 6)


def test_the_newest_of_several_dumps_of_one_process_counts(tmp_path: Path) -> None:
    job = job_at(0)
    put(tmp_path / "1", job)
    more(job, 40)
    put(tmp_path / "2", job)
    found = folder.read(tmp_path)
    assert sources(found) == [f"2/nccl_trace_rank_{r}" for r in range(8)]
    assert found.other_jobs == () and found.stale_ranks == frozenset()
    assert all("older dump of rank" in reason for reason in reasons(found).values())
    assert len(found.problems) == 8


def test_the_same_file_twice_is_no_second_job(tmp_path: Path) -> None:
    job = job_at(0)
    put(tmp_path / "copy", job)
    put(tmp_path, job)
    found = folder.read(tmp_path)
    assert len(found.windows) == 8 and found.other_jobs == ()
    assert all("the same moment" in reason for reason in reasons(found).values())


def test_a_restart_within_minutes_makes_older_dumps_stale(tmp_path: Path) -> None:
    put(tmp_path / "attempt0", job_at(0))
    put(tmp_path / "attempt1", job_at(300), [0, 1, 2, 3, 4, 5])
    found = folder.read(tmp_path)
    assert sources(found) == [f"attempt1/nccl_trace_rank_{r}" for r in range(6)]
    assert found.stale_ranks == {6, 7}
    assert "newer rings begin" in reasons(found)["attempt0/nccl_trace_rank_7"]


@pytest.mark.parametrize(
    ("first", "second"), [("a/x_rank_", "b/x_rank_"), ("jobA_rank_", "jobB_rank_"), ("n0/a_", "n0/b_")]
)
@pytest.mark.parametrize("worlds", [(8, 4), (8, 8)])
def test_two_jobs_at_one_time_are_said_and_never_mixed(
    tmp_path: Path, first: str, second: str, worlds: tuple[int, int]
) -> None:
    for name, world, start in zip((first, second), worlds, (0.0, 0.0025), strict=True):
        job = job_at(start, world, calls=20)
        path = tmp_path / name
        put(path.parent, job, prefix=path.name)
    found = folder.read(tmp_path)
    taken = {source[: len(first)] for source in sources(found)}
    assert len(found.windows) == 8 and len(taken) == 1
    (other,) = found.other_jobs
    assert len(other.dumps) == worlds[1]
    assert not taken & {dump.source[: len(first)] for dump in other.dumps}
    assert any("another job" in problem.reason for problem in found.problems)


def test_two_jobs_over_the_same_nodes_are_told_apart(tmp_path: Path) -> None:
    jobs = {"a": job_at(0, calls=20), "b": job_at(0.0025, calls=20)}
    for node in range(2):
        for name, job in jobs.items():
            put(tmp_path / f"node{node}" / name, job, range(4 * node, 4 * node + 4))
    found = folder.read(tmp_path)
    assert len(found.windows) == 8 and len({source.split("/")[1] for source in sources(found)}) == 1
    assert [other.name for other in found.other_jobs] in (["a"], ["b"])


def test_jobs_without_a_common_rank_are_told_apart_by_their_worlds(tmp_path: Path) -> None:
    put(tmp_path / "big", job_at(0, 16), range(4, 16))
    put(tmp_path / "small", job_at(0, 4))
    found = folder.read(tmp_path)
    assert [window.rank for window in found.windows] == list(range(4, 16))
    assert [other.name for other in found.other_jobs] == ["small"]


def test_ranks_twice_that_nothing_tells_apart_are_said(tmp_path: Path) -> None:
    put(tmp_path, job_at(0, calls=20), prefix="rank_")
    for rank in range(8):
        data = job_at(0.0025, calls=20).pickled(rank)
        (tmp_path / f"rank_{rank}_1").write_bytes(data)
    found = folder.read(tmp_path)
    assert len(found.windows) == 8
    assert any("two processes at one time" in problem.reason for problem in found.problems)


def test_an_empty_ring_stays_with_the_newest_run(tmp_path: Path) -> None:
    job = job_at(0)
    put(tmp_path, job, range(7))
    (tmp_path / "nccl_trace_rank_7").write_bytes(Job(8).pickled(7))
    assert [window.rank for window in folder.read(tmp_path).windows] == list(range(8))


@settings(max_examples=25, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(0, 2**8 - 1), st.sampled_from([0.0025, 60.0, DAY_S]))
def test_the_order_in_which_files_are_listed_and_read_changes_nothing(
    order: random.Random, old: int, gap_s: float
) -> None:
    def listed(path: str) -> contextlib.AbstractContextManager[list[os.DirEntry[str]]]:
        with scandir(path) as entries:
            found = list(entries)
        order.shuffle(found)
        return contextlib.nullcontext(found)

    def shuffled(tasks: Sequence[object]) -> list[int]:
        return order.sample(range(len(tasks)), len(tasks))

    scandir = os.scandir
    with tempfile.TemporaryDirectory() as made:
        put(Path(made) / "old", job_at(0, calls=20), [rank for rank in range(8) if old >> rank & 1])
        put(Path(made) / "new", job_at(gap_s, calls=20), [rank for rank in range(8) if not old >> rank & 2])
        told = [folder.read(Path(made))]
        with mock.patch.object(folder, "_order", shuffled), mock.patch.object(os, "scandir", listed):
            told += [folder.read(Path(made)) for _ in range(3)]
    assert len({tuple(sources(found)) for found in told}) == 1
    assert (
        len({(found.stale_ranks, found.problems, found.files, len(found.other_jobs)) for found in told}) == 1
    )
