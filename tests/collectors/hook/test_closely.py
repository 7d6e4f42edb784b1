"""Which steps tell how long their calls took, and by which clock: the host's, or that of the GPU's stream."""

from __future__ import annotations

from typing import Any

import pytest

from collectors.hook import closely, wrappers
from collectors.hook.closely import FIRST_TOLD, TELL_EVERY_S, Closely
from collectors.hook.stream import cuda_clock
from collectors.hook.watch import Operations, Watch
from tests.collectors.hook.fake_job import Table, Tensor
from tests.collectors.hook.fake_stream import Gpu, Torch
from tests.collectors.hook.test_waits import Clock, Named, Pass, Setting

SMALL = Tensor(256)


class Looked(Setting):
    """Torch's functions over gloo in plain functions' place, and steps that end when a test says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(monkeypatch)
        gpu = Gpu()
        gpu.is_up = False
        self.closely = Closely(Torch(gpu), self.watch, Table("gloo"))  # type: ignore[arg-type]
        self.step = 0

    def finish(self, steps: int = 1, duration_s: float = 0.5) -> None:
        for _ in range(steps):
            self.step += 1
            self.closely.turn(self.step, 1, duration_s)

    def rows(self) -> list[tuple[Any, ...]]:
        frame = self.closely.frame()
        names = ("step", "group", "op", "size_bytes", "count", "sum_s", "min_s")
        rows = [] if frame is None else zip(*(frame[name] for name in names), strict=True)
        return [(row[0], row[1], frame["ops"][row[2]], *row[3:]) for row in rows if frame is not None]


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> Looked:
    found = Looked(monkeypatch)
    found.finish()
    return found


def test_blocking_calls_are_told_with_what_they_took(looked: Looked) -> None:
    looked.dist.all_reduce(SMALL)
    looked.dist.all_reduce(SMALL, group=Named("0"))
    looked.dist.all_gather_single("out", Tensor(64))
    looked.dist.barrier()
    looked.finish()
    assert looked.rows() == [
        (2, 3, "all_reduce", 1024, 2, 4.0, 2.0),
        (2, 3, "all_gather", 256, 1, 2.0, 2.0),
        (2, 3, "barrier", 0, 1, 2.0, 2.0),
    ]


def test_an_async_call_is_not_told_since_work_may_hide_a_part_of_it(looked: Looked) -> None:
    looked.dist.all_reduce(SMALL, async_op=True).wait()
    looked.finish()
    assert looked.rows() == [] and looked.waited_s == 2.0


@pytest.mark.parametrize("part", ["loader", "checkpoint"])
def test_a_call_inside_another_part_of_the_step_is_not_told(looked: Looked, part: str) -> None:
    getattr(looked.watch, part).enter(looked.clock.now_ns)
    looked.dist.all_reduce(SMALL)
    getattr(looked.watch, part).leave(looked.clock.now_ns)
    looked.finish()
    assert looked.rows() == []


def test_a_call_that_raises_is_not_told(looked: Looked) -> None:
    with pytest.raises(ValueError, match="no such group"):
        looked.dist.barrier("broken")
    looked.finish()
    assert looked.rows() == []


def test_calls_that_torch_makes_into_one_are_neither_told_nor_taken_for_seen(looked: Looked) -> None:
    looked.watch.coalesced = {"group": []}
    looked.dist.all_reduce(SMALL)
    looked.watch.coalesced = {}
    looked.finish()
    assert looked.rows() == [] and looked.watch.calls == {}


# --- sends and receives ------------------------------------------------------------------------------------


class PointToPoint:
    """torch's four functions: the blocking ones are made of the others."""

    def __init__(self, looked: Looked) -> None:
        work, self.held = looked.dist.Work, []  # type: ignore[var-annotated]

        def isend(tensor: Any, dst: Any = None, group: Any = None, tag: int = 0) -> Any:
            return work()

        def irecv(tensor: Any, src: Any = None, group: Any = None, tag: int = 0) -> Any:
            return work()

        def send(tensor: Any, dst: Any = None, group: Any = None, tag: int = 0) -> None:
            self.isend(tensor, dst, group, tag).wait()

        def recv(tensor: Any, src: Any = None, group: Any = None, tag: int = 0) -> int:
            self.irecv(tensor, src, group, tag).wait()
            return 0

        self.isend, self.irecv, self.send, self.recv = isend, irecv, send, recv
        wrappers.wrap_p2p(self, looked.watch)


def test_sends_and_receives_are_told_by_what_waits_for_them(looked: Looked) -> None:
    p2p = PointToPoint(looked)
    p2p.send(SMALL, 1)
    p2p.recv(Tensor(2), 1)
    work = p2p.isend(Tensor(3), 1)
    looked.clock.pass_s(9)
    work.wait()
    p2p.irecv(Tensor(4), 1).wait()
    p2p.irecv(Tensor(5), 1)
    looked.finish()
    assert looked.rows() == [
        (2, 3, "send", 1024, 1, 2.0, 2.0),
        (2, 3, "recv", 8, 1, 2.0, 2.0),
        (2, 3, "send", 12, 1, 2.0, 2.0),
        (2, 3, "recv", 16, 1, 2.0, 2.0),
    ]
    assert not looked.watch.p2p_waits, "a work that nobody waits for is forgotten"


def test_a_receive_of_a_step_that_is_not_told_is_nobodys_row(looked: Looked) -> None:
    looked.finish(200, duration_s=0.1)
    p2p = PointToPoint(looked)
    looked.watch.edges = None
    work = p2p.irecv(SMALL, 1)
    p2p.send(SMALL, 1)
    looked.finish(600, duration_s=0.1)
    work.wait()
    looked.finish(600, duration_s=0.1)
    assert looked.rows() == []


# --- which steps -------------------------------------------------------------------------------------------


def told_steps(looked: Looked, until: int, duration_s: float) -> list[int]:
    while looked.step < until:
        looked.dist.barrier()
        looked.finish(duration_s=duration_s)
    steps = []
    while rows := looked.rows():
        steps += [row[0] for row in rows]
    return steps


def test_the_first_steps_are_told_each_and_then_one_in_about_ten_seconds(
    looked: Looked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("collectors.hook.edges.STEPS_MAX", 10_000)
    early = told_steps(looked, 64, 0.5)
    assert early == [*range(2, FIRST_TOLD + 1), 48, 64]
    later = told_steps(looked, 256, 0.5)
    apart = {second - first for first, second in zip(later, later[1:], strict=False)}
    assert apart == {16} and TELL_EVERY_S <= 16 * 0.5 < 2 * TELL_EVERY_S


def test_each_step_of_a_slow_job_is_told(looked: Looked) -> None:
    assert told_steps(looked, 80, 12.0)[-20:] == list(range(61, 81))


def test_a_row_of_skipped_steps_is_not_told(looked: Looked) -> None:
    looked.dist.barrier()
    looked.closely.turn(3, 2, 0.5)
    looked.step = 3
    looked.dist.barrier()
    looked.finish()
    assert [row[0] for row in looked.rows()] == [4]


def test_nothing_is_told_where_the_hook_came_too_late_to_see_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = Looked(monkeypatch)
    looked.watch.operations = None
    looked.finish(5)
    assert looked.watch.edges is None and looked.closely.frame() is None


def test_a_process_in_too_many_groups_has_no_waiting_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table()
    found = Closely(Torch(Gpu()), Watch(), table)  # type: ignore[arg-type]
    assert found._operations() == Operations(0, 0)
    table.groups *= closely.GROUPS_MAX + 1
    assert found._operations().seen is None


# --- on a GPU --------------------------------------------------------------------------------------------


def test_once_a_gpu_is_in_use_the_hosts_clock_tells_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = Looked(monkeypatch)
    looked.finish()
    assert looked.watch.edges is not None
    looked.closely.marks._make_clock = lambda: cuda_clock(Torch(Gpu()))
    looked.finish()
    assert looked.watch.edges is None and looked.watch.on_stream


class OnStream(Looked):
    """Step 8 is being marked on a GPU."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(monkeypatch)
        self.gpu = Gpu()
        self.closely.marks._make_clock = lambda: cuda_clock(Torch(self.gpu))
        self.closely.marks.operations = self.watch.operations  # type: ignore[assignment]
        monkeypatch.setattr(Clock, "pass_s", lambda _clock, seconds: self.gpu.compute(seconds))
        self.finish(7)
        assert self.watch.marks is not None

    def marked(self) -> Any:
        marked = self.watch.marks._open
        self.finish()
        self.gpu.host_s = 1e6
        self.finish()
        return marked


def test_what_cpp_waits_for_after_a_pass_lies_between_two_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    on_stream = OnStream(monkeypatch)
    passes = Pass(on_stream)
    passes.run()
    passes.run()
    passes.native = 0
    passes.run()
    on_stream.dist.native(-2)  # the first pass: nobody knew yet
    marked = on_stream.marked()
    assert marked.figures is not None
    assert marked.figures.wait_s == pytest.approx(2.0) and marked.figures.duration_s == pytest.approx(13.0)
    assert on_stream.watch.covered == 2 and on_stream.waited_s == 0.0


def test_between_marked_steps_a_pass_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    on_stream = OnStream(monkeypatch)
    passes = Pass(on_stream)
    passes.run()
    on_stream.marked()
    passes.run()
    assert on_stream.watch.marks is None and on_stream.watch.covered == 0 and not passes.root.hooks


def test_calls_that_only_torch_can_count_lie_between_two_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    on_stream = OnStream(monkeypatch)
    on_stream.dist.monitored_barrier()
    marked = on_stream.marked()
    assert marked.figures is not None and marked.figures.wait_s == pytest.approx(2.0)


def test_graphs_are_noticed_by_torchs_own_class() -> None:
    class Graph:
        did: list[str] = []  # noqa: RUF012 - a fake

        def capture_begin(self, pool: Any = None) -> None:
            if pool == "bad":
                raise ValueError("no such pool")
            self.did.append("begin")

        def capture_end(self) -> None:
            self.did.append("end")

        def replay(self) -> None:
            self.did.append("replay")

    watch, seen = Watch(), []
    wrappers._wrap_graphs(Graph, watch)
    graph = Graph()
    graph.capture_begin()
    seen.append(watch.capturing)
    graph.capture_end()
    with pytest.raises(ValueError, match="no such pool"):
        graph.capture_begin(pool="bad")
    seen.append(watch.capturing)
    graph.replay()
    assert seen == [1, 0] and watch.replays == 1 and graph.did == ["begin", "end", "replay"]


def test_what_telling_costs_is_tried_out_and_charged(looked: Looked) -> None:
    assert 0 <= looked.watch.edge_call_ns < 1_000_000
    looked.dist.all_reduce(SMALL)
    assert (looked.watch.wait_calls, looked.watch.edge_calls) == (1, 1)
