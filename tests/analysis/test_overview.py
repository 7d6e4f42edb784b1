"""Groups by shape and open calls."""

from __future__ import annotations

from clusterwatch.analysis.lag import NO_DUMP
from clusterwatch.analysis.overview import GroupState, open_call_of
from tests.cli.report.made import judged, stuck_job, windows
from tests.data.recorder import Job


def test_lists_groups_by_shape_with_the_stuck_one_named() -> None:
    _, view = judged(windows(stuck_job()))
    tp = next(shape for shape in view.shapes if shape.role == "tp")
    assert (tp.size, tp.count, tp.ok, tp.waiting, tp.stuck) == (2, 4, 3, 0, 1)
    assert [group.members for group in tp.named] == [(4, 5)]
    dp = next(shape for shape in view.shapes if shape.role == "dp")
    assert (dp.count, dp.ok) == (4, 4)


def test_an_open_call_tells_who_issued_it_who_did_not_and_since_when() -> None:
    job = stuck_job()
    job.wait(258)
    job.call(0, "1", state="completed")
    diagnosis, view = judged(windows(job))
    call = open_call_of(diagnosis.worst, view.open_calls)
    assert call is not None and call.state is GroupState.STUCK
    assert (call.op, call.seq, call.joined, call.missing, call.silent) == ("all_reduce", 5, (4,), (5,), ())
    assert call.timeout_ms == 600_000 and call.since_ns is not None and view.newest_ns is not None
    assert 257 < (view.newest_ns - call.since_ns) / 1e9 < 260


def test_a_member_without_a_dump_is_not_said_to_lack_the_call() -> None:
    job = Job(4)
    job.all()
    job.all(ranks=(0, 1, 3), state="scheduled")
    _, view = judged(windows(job, without=(2,)))
    assert [(c.joined, c.missing, c.silent) for c in view.open_calls] == [((0, 1, 3), (), (2,))]


def test_a_dump_of_another_time_is_no_lag() -> None:
    old, new = stuck_job(), stuck_job()
    for entry in old.rings[5].entries:
        entry["time_created_ns"] -= 3_600_000_000_000
    found = (*windows(new, without=(5,)), windows(old)[5])
    diagnosis, view = judged(found)
    assert diagnosis.stale_ranks == (5,)
    assert set(view.lag.behind[5].tolist()) == {NO_DUMP}


def test_calls_of_a_finding_come_first_then_the_oldest() -> None:
    job = stuck_job()
    job.call(0, "9", state="scheduled")
    job.call(1, "10", state="scheduled")
    _, view = judged(windows(job))
    states = [call.state for call in view.open_calls]
    assert states[0] is GroupState.STUCK and set(states[1:]) <= {GroupState.STUCK, GroupState.WAITING}
    waiting = [call.since_ns or 0 for call in view.open_calls if call.state is GroupState.WAITING]
    assert waiting == sorted(waiting)


def test_sends_and_receives_that_are_open_have_no_sequence_of_a_collective() -> None:
    job = Job(2)
    job.all()
    job.send(0, 1, state="scheduled")
    _, view = judged(windows(job))
    assert [(call.op, call.seq) for call in view.open_calls] == [("send 0->1", None)]


def test_a_healthy_job_has_nothing_stuck() -> None:
    job = Job(4)
    job.all()
    job.all(state="scheduled")
    diagnosis, view = judged(windows(job))
    assert all(shape.stuck == 0 for shape in view.shapes) or diagnosis.worst.verdict != "no_fault"
    assert [len(call.joined) for call in view.open_calls] == [4]


def test_nothing_read_is_an_empty_overview() -> None:
    _, view = judged(())
    assert (view.shapes, view.open_calls, view.open_left, view.newest_ns) == ((), (), 0, None)
