"""Work over forked copies of this process, and copies that die."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator

import pytest

from clusterwatch.readers import workers

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="copies are forked on Linux only")


def squares(task: int) -> Iterator[int]:
    yield task * task


@pytest.mark.parametrize("processes", [1, 2, 4])
def test_does_every_task_once(processes: int) -> None:
    told = list(workers.run(range(200), squares, processes))
    assert {result for _, result in told if result is not None} == {n * n for n in range(200)}
    assert sum(result is not None for _, result in told) == 200
    assert sorted(task for task, result in told if result is None) == list(range(200))


def test_a_task_may_have_no_result_or_many() -> None:
    told = list(workers.run(range(40), lambda task: iter(range(task)), 2))
    assert sum(result is not None for _, result in told) == sum(range(40))
    assert sum(result is None for _, result in told) == 40


def test_others_work_too() -> None:
    def here(task: int) -> Iterator[int]:
        yield os.getpid()

    assert len({result for _, result in workers.run(range(2_000), here, 3)} - {None}) == 3


def test_a_copy_that_is_killed_costs_the_task_it_was_at() -> None:
    parent = os.getpid()

    def deadly(task: int) -> Iterator[int]:
        if task % 50 == 7 and os.getpid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)
        yield task

    told = list(workers.run(range(400), deadly, 2))
    died = {task: result for task, result in told if isinstance(result, workers.Died)}
    assert all(task % 50 == 7 for task in died)
    assert all("signal 9: out of memory?" in result.why for result in died.values())
    assert {result for _, result in told if isinstance(result, int)} == set(range(400)) - set(died)


def test_goes_on_alone_when_every_copy_dies() -> None:
    parent = os.getpid()

    def deadly(task: int) -> Iterator[int]:
        if os.getpid() != parent:
            os._exit(3)
        yield task

    told = list(workers.run(range(300), deadly, 2))
    died = [result for _, result in told if isinstance(result, workers.Died)]
    assert 1 <= len(died) <= 16 and "code 3" in died[0].why
    assert sum(isinstance(result, int) for _, result in told) == 300 - len(died)


def test_no_copy_outlives_a_reader_that_stops() -> None:
    def here(task: int) -> Iterator[int]:
        yield os.getpid()

    started = workers.run(range(100_000), here, 3)
    other = next(result for _, result in started if isinstance(result, int) and result != os.getpid())
    started.close()  # type: ignore[attr-defined]
    with pytest.raises(ProcessLookupError):
        os.kill(other, 0)


def test_small_jobs_and_processes_with_threads_do_not_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = max(1, min(workers.PROCESSES_MAX, len(os.sched_getaffinity(0))))
    with monkeypatch.context() as alone:  # parallel test runs have threads of their own
        alone.setattr(threading, "active_count", lambda: 1)
        assert workers.processes_for(10**9, 100) == expected
        assert workers.processes_for(1_000, 100) == 1
        assert workers.processes_for(10**9, 1) == 1
    stop = threading.Event()
    other = threading.Thread(target=stop.wait)
    other.start()
    try:
        assert workers.processes_for(10**9, 100) == 1
    finally:
        stop.set()
        other.join()
