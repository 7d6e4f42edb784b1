"""What proves a stall, and which dumps are of another time."""

from __future__ import annotations

from clusterwatch.analysis import Observation, diagnose
from tests.analysis.looks import live, look, said, traces
from tests.data.recorder import Job


def missing(calls: int = 6) -> Job:
    job = Job(4)
    for _ in range(calls):
        job.all()
    job.all(ranks=(0, 1, 3), state="scheduled")
    return job


def test_one_young_look_proves_no_stall() -> None:
    found = look(missing())
    assert said(found) == ("missing_rank", (2,), ()) and found.worst.confidence <= 0.5


def test_an_age_above_the_jobs_own_gaps_proves_it() -> None:
    job = missing()
    job.group("1", "side", (0, 1))
    for _ in range(40):
        job.wait(0.3)
        job.all(group="1")
    assert look(job).worst.confidence > 0.8


def test_an_age_within_the_jobs_own_gaps_does_not() -> None:
    job = Job(4)
    job.group("1", "side", (0, 1))
    for _ in range(4):
        job.all()
        job.wait(30)
    job.all(ranks=(0, 1, 3), state="scheduled")
    job.wait(20)
    job.all(group="1")
    assert look(job).worst.confidence <= 0.5


def test_a_call_the_watchdog_gave_up_on_proves_it() -> None:
    job = missing()
    for rank in (0, 1, 3):
        job.rings[rank].entries[-1]["retired"] = True
    assert look(job).worst.confidence > 0.8


def test_two_looks_without_an_advance_prove_it() -> None:
    assert live(missing()).worst.confidence > 0.8


def test_missing_dumps_lower_the_confidence() -> None:
    job = Job(8)
    job.group("1", "tp", (0, 1))
    job.all()
    job.call(0, "1", state="scheduled")
    whole, part = live(job), live(job, without=(5, 6))
    assert said(whole) == said(part) == ("missing_rank", (1,), ())
    assert part.worst.confidence < whole.worst.confidence


def stale_job() -> tuple[Job, Job]:
    """The same job an hour before, and now: rank 2's file is of then."""
    before, now = Job(4), Job(4)
    for _ in range(5):
        before.all()
    now.wait(3600)
    for _ in range(30):
        now.all()
    now.all(ranks=(0, 1, 3), state="scheduled")
    return before, now


def test_a_dump_of_an_earlier_time_is_suspected_not_named() -> None:
    before, now = stale_job()
    rings = [t for t in traces(now) if t.rank != 2] + [t for t in traces(before) if t.rank == 2]
    found = diagnose(Observation(traces=tuple(rings)))
    assert said(found) == ("suspect_stale_dump", (), (2,))
    assert (found.coverage.stale, found.coverage.reported, found.coverage.expected) == (1, 4, 4)


def test_a_dump_that_lacks_calls_which_its_peers_finished_with_it_is_old_too() -> None:
    """Seconds apart only, but nobody finishes an all-reduce without rank 2."""
    job = Job(4)
    for _ in range(5):
        job.all()
    old = [t for t in traces(job) if t.rank == 2]
    for _ in range(10):
        job.all()
    job.all(ranks=(0, 1, 3), state="scheduled")
    rings = [t for t in traces(job) if t.rank != 2] + old
    found = diagnose(Observation(traces=tuple(rings)))
    assert said(found) == ("suspect_stale_dump", (), (2,))


def test_a_rank_that_stopped_a_minute_ago_in_a_checkpoint_is_missing_not_stale() -> None:
    job = Job(4)
    for _ in range(5):
        job.all()
    job.wait(90)
    job.all(ranks=(0, 1, 3), state="scheduled")
    assert said(look(job)) == ("missing_rank", (2,), ())
