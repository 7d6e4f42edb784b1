"""Waiting inside collectives, with plain functions in torch's place and a clock of our own."""

from __future__ import annotations

import gc
import inspect
import pickle
import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.hook import waits
from collectors.hook.watch import Operations, Watch

S = 1_000_000_000


class Clock:
    """Stands still unless told."""

    now_ns = 10 * S

    def pass_s(self, seconds: float) -> None:
        self.now_ns += int(seconds * S)


class Named:
    """A group, as far as a wrapper asks."""

    def __init__(self, name: str) -> None:
        self.group_name = name


class Nameless:
    """A group torch has no name for: it raises."""

    @property
    def group_name(self) -> str:
        raise RuntimeError("ProcessGroup name not set")


class Distributed:
    """Collectives that take as long as a test says, and torch's own count of them."""

    def __init__(self, clock: Clock, take_s: float = 2.0) -> None:
        made = self.made = [0]

        class Work:
            def wait(self, timeout: Any = None) -> bool:
                clock.pass_s(take_s)
                return True

        def all_reduce(tensor: Any, op: Any = "sum", group: Any = None, async_op: bool = False) -> Any:
            made[0] += 1
            work = Work()
            if async_op:
                return work
            work.wait()
            return None

        def all_gather_single(output: Any, tensor: Any, group: Any = None, async_op: bool = False) -> Any:
            return self.all_reduce(tensor, group=group, async_op=async_op)

        def barrier(group: Any = None) -> None:
            if group == "broken":
                raise ValueError("no such group")
            clock.pass_s(take_s)
            made[0] += 1

        def monitored_barrier() -> None:
            clock.pass_s(take_s)
            made[0] += 3

        self.Work: Any = Work
        self.all_reduce: Any = all_reduce
        self.all_gather_single: Any = all_gather_single
        self.barrier: Any = barrier
        self.monitored_barrier: Any = monitored_barrier
        self.native: Callable[[int], None] = lambda count: made.__setitem__(0, made[0] + count)


class Setting:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = Clock()
        self.watch = Watch()
        self.watch.active = True
        self.dist = Distributed(self.clock)
        self.plain = {name: getattr(self.dist, name) for name in ("all_reduce", "barrier")}
        self.watch.operations = lambda: Operations(self.dist.made[0], sum(self.watch.calls.values()))
        waits.wrap_calls(self.dist, self.watch)
        monkeypatch.setattr(waits, "perf_counter_ns", lambda: self.clock.now_ns)

    @property
    def waited_s(self) -> float:
        return self.watch.waiting.total_ns / S

    @property
    def unseen(self) -> int:
        return self.dist.made[0] - sum(self.watch.calls.values()) - self.watch.covered


@pytest.fixture
def given_dist(monkeypatch: pytest.MonkeyPatch) -> Setting:
    return Setting(monkeypatch)


def test_a_blocking_call_waits_from_its_begin_to_its_end(given_dist: Setting) -> None:
    given_dist.dist.all_reduce("tensor")
    assert given_dist.waited_s == 2.0 and given_dist.unseen == 0


def test_time_of_an_async_call_counts_in_its_wait_and_only_there(given_dist: Setting) -> None:
    work = given_dist.dist.all_reduce("tensor", async_op=True)
    given_dist.clock.pass_s(5)
    assert given_dist.waited_s == 0.0
    work.wait()
    work.wait()
    assert given_dist.waited_s == 4.0 and given_dist.unseen == 0 and given_dist.watch.calls == {"": 1}


def test_an_async_call_that_nobody_waits_for_is_not_seen(given_dist: Setting) -> None:
    work = given_dist.dist.all_reduce("tensor", async_op=True)
    assert len(given_dist.watch.unwaited) == 1
    del work
    gc.collect()
    assert given_dist.unseen == 1 and not given_dist.watch.unwaited


def test_a_collective_made_of_another_counts_once(given_dist: Setting) -> None:
    given_dist.dist.all_gather_single("out", "in", Named("3"))
    assert given_dist.watch.calls == {"3": 1} and given_dist.waited_s == 2.0


@pytest.mark.parametrize("group", [object(), Nameless()])
def test_a_group_of_others_counts_for_nobody(given_dist: Setting, group: Any) -> None:
    given_dist.dist.barrier(group)
    assert given_dist.watch.calls == {}


def test_what_raises_still_raises_and_leaves_nothing_open(given_dist: Setting) -> None:
    with pytest.raises(ValueError, match="no such group"):
        given_dist.dist.barrier("broken")
    given_dist.dist.barrier()
    assert given_dist.waited_s == 2.0 and given_dist.watch.calls == {"": 1}


def test_calls_that_only_torch_can_count_are_covered(given_dist: Setting) -> None:
    given_dist.dist.monitored_barrier()
    assert given_dist.unseen == 0 and given_dist.watch.covered == 3 and given_dist.waited_s == 2.0


@pytest.mark.parametrize("part", ["loader", "checkpoint"])
def test_waiting_inside_another_part_of_the_step_is_that_parts(given_dist: Setting, part: str) -> None:
    span = getattr(given_dist.watch, part)
    span.enter(given_dist.clock.now_ns)
    given_dist.dist.all_reduce("tensor")
    given_dist.dist.all_reduce("tensor", async_op=True).wait()
    given_dist.dist.monitored_barrier()
    span.leave(given_dist.clock.now_ns)
    assert given_dist.waited_s == 0.0 and given_dist.unseen == 0


def test_another_thread_waits_for_itself(given_dist: Setting) -> None:
    other = threading.Thread(target=given_dist.dist.all_reduce, args=("tensor",))
    other.start()
    other.join()
    assert given_dist.waited_s == 0.0 and given_dist.unseen == 1


def test_a_silenced_hook_does_nothing(given_dist: Setting) -> None:
    given_dist.watch.active = False
    given_dist.dist.all_reduce("tensor", async_op=True).wait()
    given_dist.dist.barrier()
    assert (given_dist.waited_s, given_dist.watch.calls, given_dist.watch.wait_calls) == (0.0, {}, 0)


def test_a_wrapper_keeps_name_and_signature_and_waits_are_known_as_an_override(given_dist: Setting) -> None:
    assert given_dist.dist.all_reduce.__name__ == "all_reduce"
    assert inspect.signature(given_dist.dist.all_reduce) == inspect.signature(given_dist.plain["all_reduce"])
    code = given_dist.dist.Work.wait.__code__
    assert code.co_name == "wait" and code.co_varnames[0] == "self" and code.co_argcount == 1


def test_more_unwaited_calls_than_are_remembered_stay_unseen(
    given_dist: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waits, "UNWAITED_MAX", 3)
    works = [given_dist.dist.all_reduce("tensor", async_op=True) for _ in range(5)]
    for work in works:
        work.wait()
    assert given_dist.unseen == 2 and not given_dist.watch.unwaited


def test_own_cost_is_tried_out_and_charged(given_dist: Setting) -> None:
    assert 0 < given_dist.watch.wait_call_ns < 1_000_000
    given_dist.dist.all_reduce("tensor")
    assert given_dist.watch.wait_calls == 1


@given(st.lists(st.sampled_from(["call", "async", "wait", "drop", "native"]), max_size=30))
def test_never_more_is_seen_than_was_made_and_what_is_unseen_is_told(calls: list[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        setting, works, unwaited = Setting(patch), [], 0
        for what in calls:
            if what == "call":
                setting.dist.all_reduce("tensor")
            elif what == "async":
                works.append(setting.dist.all_reduce("tensor", async_op=True))
            elif what == "native":
                setting.dist.native(1)
            elif works and what == "wait":
                works.pop().wait()
            elif works:
                works.pop()
                unwaited += 1
        assert setting.unseen == calls.count("native") + unwaited + len(works)
        assert setting.waited_s == 2.0 * sum(setting.watch.calls.values())


def test_a_wrapped_function_can_still_be_pickled_by_its_name() -> None:
    watch = Watch()
    globals()["reduce_here"] = waits._counted(reduce_here, watch)
    assert pickle.loads(pickle.dumps(globals()["reduce_here"])) is globals()["reduce_here"]  # noqa: S301


def reduce_here(tensor: Any, group: Any = None) -> None:
    """Found by its name."""


# --- backward passes -------------------------------------------------------------------------------------


class Root:
    """A loss: hooks on it run when the pass begins."""

    requires_grad, grad_fn = True, "SumBackward"

    def __init__(self) -> None:
        self.hooks: list[Callable[[Any], None]] = []

    def register_hook(self, hook: Callable[[Any], None]) -> Any:
        self.hooks.append(hook)
        root = self

        class Handle:
            def remove(self) -> None:
                root.hooks.remove(hook)

        return Handle()


class Engine:
    """The autograd engine: runs callbacks in order when all gradients are there."""

    def __init__(self) -> None:
        self.queue: list[Callable[[], None]] = []

    def queue_callback(self, callback: Callable[[], None]) -> None:
        self.queue.append(callback)


class Pass:
    """Backward passes of a model whose gradients C++ reduces: 3 s of work, then 2 s of waiting."""

    def __init__(self, setting: Setting) -> None:
        self.setting, self.engine, self.native = setting, Engine(), 2
        self.root = Root()
        self.backward = waits.Backward(setting.watch, self.engine)

    def original(self, tensors: Any = None) -> str:
        for hook in list(self.root.hooks):
            hook("gradient")
        self.setting.clock.pass_s(3)
        self.setting.dist.native(self.native)
        self.engine.queue.append(lambda: self.setting.clock.pass_s(2 if self.native else 0))
        while self.engine.queue:
            self.engine.queue.pop(0)()
        return "done"

    def run(self, *roots: Any) -> None:
        assert self.backward.run(self.original, roots or (self.root,), {}) == "done"


def test_what_cpp_waits_for_after_a_pass_counts_from_the_second_pass_on(given_dist: Setting) -> None:
    passes = Pass(given_dist)
    passes.run()
    assert given_dist.unseen == 2 and given_dist.waited_s == 0.0
    passes.run()
    passes.run([passes.root])
    assert given_dist.unseen == 2 and given_dist.waited_s == 4.0 and given_dist.watch.covered == 4
    assert not passes.root.hooks, "nothing stays on the job's tensors"


def test_a_pass_without_collectives_waits_for_nobody(given_dist: Setting) -> None:
    passes = Pass(given_dist)
    passes.run()
    passes.native = 0
    passes.run()
    assert given_dist.waited_s == 0.0 and given_dist.watch.covered == 0


def test_passes_are_looked_at_only_where_steps_hold_calls_that_nobody_saw(given_dist: Setting) -> None:
    passes, counted, looks = Pass(given_dist), given_dist.watch.operations, 0
    assert counted is not None

    def look() -> Operations:
        nonlocal looks
        looks += 1
        return counted()

    given_dist.watch.operations = look
    passes.native = 0
    for _ in range(4 * waits.LOOKED_AT):
        passes.run()
    assert looks == 2 * (waits.LOOKED_AT + 3), "of steps that stay unknown now and then"
    given_dist.watch.has_unseen = False
    for _ in range(2 * waits.LOOKED_AT):
        passes.run()
    assert looks == 2 * (waits.LOOKED_AT + 3), "of steps without such calls never"
    given_dist.watch.has_unseen, passes.native = True, 2
    for _ in range(waits.LOOKED_AT + 10):
        passes.run()
    assert given_dist.waited_s == 20.0 and given_dist.unseen == 2 * waits.LOOKED_AT


@pytest.mark.parametrize("roots", [(None,), ((),), (Nameless(),)])
def test_a_pass_without_a_root_to_hook_on_leaves_its_calls_unseen(given_dist: Setting, roots: Any) -> None:
    passes = Pass(given_dist)
    passes.run()
    passes.run(*roots)
    assert given_dist.unseen == 4 and given_dist.waited_s == 0.0


def test_a_compiled_pass_is_left_alone(given_dist: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    class Compiled:
        compiled_autograd_enabled = True

    passes = Pass(given_dist)
    passes.run()
    monkeypatch.setitem(waits.sys.modules, "torch._dynamo.compiled_autograd", Compiled)  # type: ignore[attr-defined]
    passes.run()
    assert given_dist.unseen == 4 and given_dist.waited_s == 0.0


def test_a_pass_inside_a_pass_is_a_part_of_it(given_dist: Setting) -> None:
    passes = Pass(given_dist)
    passes.run()
    inner = passes.original

    def outer(tensors: Any = None) -> str:
        passes.backward.run(inner, (passes.root,), {})
        return "done"

    passes.backward.run(outer, (passes.root,), {})
    assert given_dist.watch.covered == 2


def test_a_pass_that_raises_takes_its_hook_away(given_dist: Setting) -> None:
    passes = Pass(given_dist)
    passes.run()

    def fails(tensors: Any) -> None:
        raise RuntimeError("no graph")

    with pytest.raises(RuntimeError, match="no graph"):
        passes.backward.run(fails, (passes.root,), {})
    assert not passes.root.hooks
    passes.run()
    assert given_dist.waited_s == 2.0


def test_an_engine_that_takes_no_callback_costs_the_number_and_not_the_pass(given_dist: Setting) -> None:
    passes = Pass(given_dist)
    passes.run()

    def refuse(callback: Callable[[], None]) -> None:
        raise RuntimeError("final callbacks can only be installed during backward pass")

    passes.engine.queue_callback = refuse  # type: ignore[method-assign]
    passes.run()
    assert given_dist.waited_s == 0.0 and given_dist.unseen == 4
