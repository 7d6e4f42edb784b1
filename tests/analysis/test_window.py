"""One rank's ring, reduced: bounded, the same in every process, and with all that stands out."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import pytest

from clusterwatch.analysis import tables, window
from clusterwatch.analysis.window import Window, reduce
from collectors.formats.columns import TraceColumns
from tests.analysis.looks import traces
from tests.data.recorder import Job


def of(job: Job, rank: int = 0, keep: int | None = None) -> Window:
    return reduce(columns_of(job, rank, keep))


def columns_of(job: Job, rank: int = 0, keep: int | None = None) -> TraceColumns:
    return next(t for t in traces(job, keep=keep) if t.rank == rank)


def long_job(calls: int) -> Job:
    job = Job(2)
    for _ in range(calls):
        job.all()
    return job


def test_a_window_does_not_grow_with_the_ring() -> None:
    job = long_job(3000)
    short, long = (len(pickle.dumps(of(job, keep=keep))) for keep in (1000, 3000))
    assert long <= short + 64


def test_numbers_of_a_group_are_of_the_whole_ring() -> None:
    job = long_job(700)
    job.call(0, state="scheduled")
    row = of(job).groups[0]
    assert (row["low"], row["high"], row["first_open"], row["open_count"]) == (1, 701, 701, 1)
    assert (row["call_count"], row["shared_end"]) == (701, 700)


def test_an_empty_ring_has_a_window() -> None:
    found = of(Job(2))
    assert (found.entry_count, found.newest_ns, found.last, len(found.calls)) == (0, None, None, 0)


def test_calls_around_the_first_open_one_stay_however_far_the_launches_ran_ahead() -> None:
    job = long_job(50)
    for _ in range(600):
        job.call(0, state="scheduled")
    found = of(job)
    kept = set(found.calls["sequence"].tolist())
    assert {43, 50, 51, 75, 650} <= kept and len(kept) < 120
    assert found.groups[0]["open_count"] == 600


def test_a_call_the_watchdog_gave_up_on_is_open_and_timed_out() -> None:
    job = long_job(3)
    job.call(0, state="scheduled", retired=True)
    row = of(job).groups[0]
    assert (row["first_open"], row["timed_out_count"]) == (4, 1)


def test_members_of_a_finished_batch_are_not_open() -> None:
    job = Job(2)
    job.batch(0, [("send", 1), ("recv", 1)])
    job.batch(0, [("send", 1), ("recv", 1)], state="scheduled")
    found = of(job)
    assert found.p2p["at"].tolist() == [3, 4] and found.oldest_open_at == 3
    assert {found.call_signatures[i].op for i in found.p2p_pairs["signature"]} == {"send 0->1", "recv 0<-1"}


def test_the_entry_that_closes_a_coalesced_call_tells_its_state() -> None:
    job = Job(2)
    for state in ("scheduled", "scheduled", "completed"):
        job.call(0, op="_broadcast_oop", state=state)
        job.sequences[(0, "0")] = 0
    found = of(job)
    assert found.calls[["sequence", "parts", "at", "finished"]].tolist() == [(1, 3, 2, True)]


def test_more_groups_and_open_halves_than_any_job_has_stay_bounded() -> None:
    job = Job(2)
    for _ in range(window.P2P_OPEN_MAX + 50):
        job.send(0, 1, state="scheduled")
    found = of(job)
    assert len(found.p2p) == window.P2P_OPEN_MAX
    assert found.groups[0]["p2p_open_count"] == window.P2P_OPEN_MAX + 50


def test_digests_are_the_same_in_every_process_and_for_ranks_that_number_otherwise() -> None:
    first, second = Job(2), Job(2)
    second.call(0, op="broadcast", size=(7,))
    for job in (first, second):
        job.call(0, op="all_gather", size=(3,))
    one, other = of(first), of(second)
    assert one.calls["signature"][-1] != other.calls["signature"][-1]
    mine, theirs = (w.signatures["call"][w.calls["signature"][-1]] for w in (one, other))
    assert mine == theirs
    assert tables.digest("all_reduce", ((4,),)) == 4747888869498823039


@pytest.mark.parametrize(
    "change", [lambda job: job.call(0, size=(9,)), lambda job: job.call(0, op="barrier")]
)
def test_tails_differ_where_the_programs_do(change: Callable[[Job], object]) -> None:
    job = long_job(20)
    same = of(job).tail_key
    assert of(job, rank=1).tail_key == same
    change(job)
    assert of(job).tail_key != same


def test_a_window_survives_pickling_with_its_texts() -> None:
    job = long_job(5)
    for entry in job.rings[0].entries:
        entry["frames"] = [{"name": "step", "filename": "job.py", "line": 7}]
    again = pickle.loads(pickle.dumps(of(job)))
    assert again.sites == ("step (job.py:7)",) and again.stack == ("step (job.py:7)",)
    assert again.told_groups[0].ranks == (0, 1) and again.call_signatures[0].op == "all_reduce"
