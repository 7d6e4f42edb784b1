"""Waiting on GPUs by marks, on streams whose work the tests know: truth and figures are compared."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from collectors.hook import marks, wrappers
from collectors.hook.marked import BY_CALLS, BY_STREAM, BY_UNSEEN, CHECKPOINT, LOADER
from tests.collectors.hook.fake_job import TRANSFER_S, Job, Rank, Tensor, launch

COMPUTE_S = 0.4
CALLS = 4
SMALL = Tensor(1 << 20)


@pytest.fixture(autouse=True)
def cost(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A clock that makes each mark cost 10 us, whatever this machine does."""
    monkeypatch.setattr(marks, "perf_counter_ns", itertools.count(0, 10_000).__next__)


def step(slow: int | None = None, slower: float = 1.06) -> Callable[[Rank], None]:
    """Four times a tenth of a second of work and a blocking call."""

    def body(rank: Rank) -> None:
        for _ in range(CALLS):
            launch(rank, COMPUTE_S / CALLS * (slower if rank.number == slow else 1.0))
            rank.dist.all_reduce(SMALL)

    return body


def own_s(row: dict[str, Any]) -> float:
    return float(row["duration_s"] - row["wait_s"] - row["data_wait_s"] - row["checkpoint_s"])


def test_ranks_alike_wait_for_the_transfer_and_the_rest_is_their_own_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = Job(monkeypatch)
    job.run(35, step())
    for rank in range(4):
        known = job.known(rank)
        assert [row["step"] for row in known] == [8, 16, 24, 32]
        assert all(row["wait_s"] == pytest.approx(CALLS * TRANSFER_S, abs=5e-6) for row in known)
        assert all(own_s(row) == pytest.approx(COMPUTE_S, abs=5e-6) for row in known)


def test_the_rank_that_computes_six_percent_longer_waits_least_and_has_all_of_it_as_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = Job(monkeypatch)
    job.run(40, step(slow=2))
    newest = [job.known(rank)[-1] for rank in range(4)]
    waited, own = [row["wait_s"] for row in newest], [own_s(row) for row in newest]
    assert own[2] == pytest.approx(1.06 * COMPUTE_S, abs=5e-6)
    assert all(own[rank] == pytest.approx(COMPUTE_S, abs=5e-6) for rank in (0, 1, 3))
    assert waited[2] == pytest.approx(CALLS * TRANSFER_S, abs=5e-6) and min(waited) == waited[2]


def test_steps_between_marked_ones_are_null_and_the_reason_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(monkeypatch)
    assert job.ranks[0].marks.words == ""
    job.run(20, step())
    assert {row["step"] for row in job.rows() if row["wait_s"] is None} == set(range(2, 21)) - {8, 16}
    assert job.ranks[0].marks.words == marks.SOME_STEPS


def test_of_an_overlapped_call_only_the_part_that_work_does_not_cover_is_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def body(rank: Rank) -> None:
        launch(rank, 0.1)
        works = [rank.dist.all_reduce(SMALL, async_op=True) for _ in range(2)]
        launch(rank, TRANSFER_S * 0.75)
        for work in works:
            work.wait()

    job = Job(monkeypatch)
    job.run(24, body)
    assert [row["wait_s"] for row in job.known()] == [pytest.approx(TRANSFER_S / 4, abs=2e-6)] * 2


def test_an_async_call_that_nobody_waits_for_leaves_its_step_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def body(rank: Rank) -> None:
        launch(rank, 0.1)
        rank.dist.all_reduce(SMALL)
        rank.dist.all_reduce(SMALL, async_op=True)

    job = Job(monkeypatch)
    job.run(40, body)
    assert job.known() == [] and job.ranks[0].marks.words == BY_UNSEEN


def test_a_call_of_cpp_leaves_its_step_unknown_until_one_covers_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def body(rank: Rank) -> None:
        step()(rank)
        rank.table.handle.made += 1
        rank.watch.covered += int(rank.counter.step >= 12)

    job = Job(monkeypatch)
    job.run(20, body)
    assert [row["step"] for row in job.known()] == [16]


def test_a_group_of_two_backends_cannot_say_what_was_called(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(monkeypatch, backend="cpu:gloo,cuda:nccl")
    job.run(20, step())
    assert job.known() == []


def test_calls_beside_the_stream_of_the_work_leave_waiting_unknown_and_are_told_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As sharded data parallelism makes them: the job waits for that stream where nobody looks."""

    def body(rank: Rank) -> None:
        gpu = rank.gpu
        launch(rank, 0.1)
        gpu.current = gpu.streams[1]
        rank.dist.all_reduce(SMALL)
        gpu.current = gpu.streams[0]

    job = Job(monkeypatch)
    job.run(40, body)
    assert job.known() == [] and job.ranks[0].marks.words == BY_STREAM
    frame = job.ranks[0].closely.frame()
    assert frame is not None and frame["step"] == [8, 16, 24, 32] and frame["min_s"][0] > 0


# --- calls that are told -----------------------------------------------------------------------------------


def test_the_shortest_call_among_the_members_is_the_transfer(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(monkeypatch)
    job.run(20, step(slow=1, slower=1.5))
    frames = [rank.closely.frame() for rank in job.ranks]
    assert all(frame is not None for frame in frames)
    told = [frame for frame in frames if frame is not None]
    assert all(frame["ops"] == ["all_reduce"] and frame["group"] == [3, 3] for frame in told)
    assert all(frame["size_bytes"] == [4 << 20] * 2 and frame["count"] == [CALLS] * 2 for frame in told)
    p10 = [frame["p10_s"][0] for frame in told]
    assert min(p10) == p10[1] == pytest.approx(TRANSFER_S, abs=2e-6)
    assert p10[0] == pytest.approx(TRANSFER_S + 0.5 * COMPUTE_S / CALLS, abs=2e-6)
    assert told[1]["sum_s"][0] == pytest.approx(CALLS * TRANSFER_S, abs=5e-6)


# --- late launches ---------------------------------------------------------------------------------------


def test_a_host_that_cannot_run_ahead_is_late_and_one_that_can_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def body(rank: Rank) -> None:
        for number in range(CALLS):
            if rank.number == 1 and number < 1:
                rank.gpu.host_s = max(rank.gpu.host_s, rank.gpu.streams[0].ends_s or 0.0) + 0.02
            launch(rank, 0.1)
            if rank.number == 1 and number < 1:
                rank.gpu.host_s += 0.15
            rank.dist.all_reduce(SMALL)

    job = Job(monkeypatch)
    job.run(20, body)
    late = [job.known(rank)[-1]["late_launch"] for rank in range(4)]
    assert late[0] == late[2] == late[3] == 0.0
    assert late[1] == pytest.approx(1 / CALLS, abs=0.01)


def test_a_step_that_waits_for_nobody_has_no_share_of_late_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(monkeypatch)
    job.run(24, lambda rank: launch(rank, 0.1))
    assert [(row["wait_s"], row.get("late_launch")) for row in job.known()] == [(0.0, None)] * 2


# --- other parts of a step -------------------------------------------------------------------------------


@pytest.mark.parametrize(("part", "column"), [("loader", "data_wait_s"), ("checkpoint", "checkpoint_s")])
def test_what_the_gpu_stands_still_for_is_that_part_by_its_own_clock(
    monkeypatch: pytest.MonkeyPatch, part: str, column: str
) -> None:
    def body(rank: Rank) -> None:
        span = getattr(rank.watch, part)
        launch(rank, 0.1)
        rank.gpu.host_s = max(rank.gpu.host_s, rank.gpu.streams[0].ends_s or 0.0)
        begun = wrappers._begun(rank.watch)
        span.enter(0)
        rank.gpu.host_s += 0.05
        span.leave(1)
        if begun is not None:
            rank.watch.marks.end(begun, {"loader": LOADER, "checkpoint": CHECKPOINT}[part])
        rank.dist.all_reduce(SMALL)

    job = Job(monkeypatch)
    job.run(20, body)
    row = job.known()[-1]
    assert row[column] == pytest.approx(0.05, abs=1e-4)
    assert own_s(row) == pytest.approx(0.1, abs=2e-4)


def test_a_part_that_is_hidden_by_work_of_the_gpu_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def body(rank: Rank) -> None:
        launch(rank, 0.1)
        begun = wrappers._begun(rank.watch)
        rank.gpu.host_s += 0.05
        if begun is not None:
            rank.watch.marks.end(begun, LOADER)
        rank.dist.all_reduce(SMALL)

    job = Job(monkeypatch)
    job.run(20, body)
    assert job.known()[-1]["data_wait_s"] < 1e-5


# --- graphs ----------------------------------------------------------------------------------------------


def test_while_a_graph_is_captured_the_gpu_is_asked_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fake GPU fails a question then, as CUDA would fail the capture."""

    def body(rank: Rank) -> None:
        launch(rank, 0.1)
        rank.gpu.capturing = rank.counter.step == 15
        rank.dist.all_reduce(SMALL)
        rank.gpu.capturing = False

    job = Job(monkeypatch)
    job.run(20, body)
    assert [row["step"] for row in job.known()] == [8]


def test_a_step_whose_end_is_captured_is_unknown_and_nothing_is_read_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = Job(monkeypatch)

    def body(rank: Rank) -> None:
        step()(rank)
        rank.watch.capturing = int(rank.counter.step in (7, 8))
        rank.gpu.broken = rank.watch.capturing == 1

    job.run(20, body)
    assert [row["step"] for row in job.known()] == [16]


def test_a_replayed_graph_may_hold_calls_and_leaves_its_step_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def body(rank: Rank) -> None:
        step()(rank)
        rank.watch.replays += 1

    job = Job(monkeypatch)
    job.run(40, body)
    assert job.known() == [] and job.ranks[0].marks.words == marks.BY_GRAPH


# --- what goes wrong -------------------------------------------------------------------------------------


def test_a_driver_that_fails_costs_the_figures_and_never_the_job(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def body(rank: Rank) -> None:
        step()(rank)
        rank.gpu.broken = rank.counter.step >= 12

    job = Job(monkeypatch, size=2)
    job.run(60, body)
    assert [row["step"] for row in job.known()] == [8]
    assert job.ranks[0].marks.words == marks.BY_ERROR and job.ranks[0].watch.marks is None
    assert capsys.readouterr().err.count("context is destroyed") == 2, "once for each process"


def test_marks_that_the_gpu_does_not_pass_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marks, "UNREAD_STEPS_MAX", 5)

    def body(rank: Rank) -> None:
        if rank.counter.step < 12:
            step()(rank)

    job = Job(monkeypatch)
    job.run(7, body)
    for rank in job.ranks:
        rank.gpu.compute(1e6)
        for _ in range(8):
            job.step(rank, body)
    assert [row["step"] for row in job.rows()] == list(range(2, 16)) and job.known() == []


def test_a_row_waits_for_its_marks_and_the_ones_behind_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(monkeypatch)
    job.run(7, step())
    for rank in job.ranks:
        rank.gpu.compute(5.0)
        for _ in range(4):
            job.step(rank, step())
    assert [row["step"] for row in job.rows()] == list(range(2, 8))
    for rank in job.ranks:
        rank.gpu.host_s += 10.0
    job.run(2, step())
    rows = job.rows()
    assert [row["step"] for row in rows] == list(range(8, 14))
    assert rows[0]["duration_s"] > 5.0 > rows[1]["duration_s"] and rows[0]["wait_s"] is not None


def test_a_row_does_not_wait_for_ever_where_the_job_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(monkeypatch)
    job.run(7, step())
    for rank in job.ranks:
        rank.gpu.compute(1e6)
        for _ in range(4):
            job.step(rank, step())
    assert [row["step"] for row in job.rows()] == list(range(2, 8))
    job.ranks[0].gpu.host_s += 60.0
    assert [(row["step"], row["wait_s"]) for row in job.rows()] == [(step, None) for step in range(8, 12)]


def test_a_skipped_step_makes_the_marked_one_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(monkeypatch)

    def body(rank: Rank) -> None:
        step()(rank)
        if rank.counter.step == 7:
            counter = rank.counter
            counter._finish(counter._last, counter._mark(), 2)

    job.run(12, body)
    assert job.known() == []


def test_a_call_that_a_step_ends_in_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(monkeypatch, size=1)
    job.run(7, step())
    (rank,) = job.ranks
    begun = rank.watch.marks.begin()
    job.run(8, step())
    assert rank.watch.marks is not None
    rank.watch.marks.end(begun, 0)
    job.run(4, step())
    assert [row["step"] for row in job.known()] == [8, 16]


def test_without_a_gpu_in_use_nothing_is_marked_and_cuda_is_not_brought_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = Job(monkeypatch, size=1)
    job.ranks[0].gpu.is_up = False
    job.run(20, step())
    assert job.ranks[0].gpu.events == 0 and job.ranks[0].marks.words == ""


# --- which steps, and what it costs ------------------------------------------------------------------------


def test_marks_are_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(monkeypatch, size=1)
    job.run(200, step())
    events = job.ranks[0].gpu.events
    job.run(600, step())
    assert job.ranks[0].gpu.events == events <= 2 * (2 * CALLS + 2)


def test_ranks_that_pay_differently_for_a_mark_still_share_the_rarest_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps = {}
    for cost_ns in (3_000, 10_000, 30_000):
        monkeypatch.setattr(marks, "perf_counter_ns", itertools.count(0, cost_ns).__next__)
        job = Job(monkeypatch, size=1)
        job.run(256, step())
        job.rows()
        job.run(256, step())
        steps[cost_ns] = [row["step"] for row in job.known()]
    assert set(steps[30_000]) < set(steps[10_000]) <= set(steps[3_000])
    assert len(steps[30_000]) >= 2


def test_the_rhythm_keeps_the_cost_within_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(monkeypatch, size=1)
    job.run(64, step())
    watch = job.ranks[0].watch
    before_ns, from_step = watch.wrapper_ns, job.ranks[0].counter.step
    job.run(1024, step())
    spent = (watch.wrapper_ns - before_ns) / 1e9
    assert job.ranks[0].counter.step - from_step == 1024
    assert 0 < spent <= marks.SHARE * 1024 * (COMPUTE_S + CALLS * TRANSFER_S)


def test_marks_that_are_too_dear_end_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marks, "perf_counter_ns", itertools.count(0, 10**10).__next__)
    job = Job(monkeypatch, size=1)
    job.run(40, step())
    assert job.ranks[0].marks.words == marks.BY_COST and job.ranks[0].watch.marks is None


def test_more_calls_than_a_step_may_have_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("collectors.hook.marked.CALLS_MAX", 3)
    job = Job(monkeypatch, size=1)
    job.run(40, step())
    assert job.known() == [] and job.ranks[0].marks.words == BY_CALLS
