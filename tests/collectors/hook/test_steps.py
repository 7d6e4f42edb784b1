"""The step counter alone: a clock of its own, optimizers that are plain objects."""

from __future__ import annotations

from collectors.hook.steps import COLUMNS, StepCounter
from collectors.hook.watch import Operations, Watch


class Optimizer:
    """Stands for torch's: only its identity counts."""


class Loop:
    """A training loop that only counts."""

    def __init__(self) -> None:
        self.watch = Watch()
        self.collectives = 0
        self.seen: int | None = None
        self.counter = StepCounter(self.watch, lambda: Operations(self.collectives, self.seen))

    def work(self, collectives: int = 4, backwards: int = 1) -> None:
        self.collectives += collectives
        self.watch.backwards += backwards

    def step(self, optimizer: Optimizer, collectives: int = 4) -> int:
        self.work(collectives)
        self.counter.after_optimizer_step(optimizer)
        return self.counter.step


def test_counts_one_for_each_step() -> None:
    loop, optimizer = Loop(), Optimizer()
    assert [loop.step(optimizer) for _ in range(4)] == [1, 2, 3, 4]


def test_the_first_step_has_no_row_because_nobody_saw_it_begin() -> None:
    loop, optimizer = Loop(), Optimizer()
    loop.step(optimizer)
    assert loop.counter.take() is None
    loop.step(optimizer)
    columns = loop.counter.take()
    assert columns is not None and columns["step"] == [2]
    assert loop.counter.take() is None


def test_a_second_call_without_work_is_the_same_step() -> None:
    loop, optimizer = Loop(), Optimizer()
    loop.step(optimizer)
    loop.counter.after_optimizer_step(optimizer)
    assert loop.counter.step == 1


def test_a_step_without_collectives_counts_by_its_backward_pass() -> None:
    loop, optimizer = Loop(), Optimizer()
    assert [loop.step(optimizer, collectives=0) for _ in range(3)] == [1, 2, 3]


def test_optimizers_that_communicate_between_each_other_count_once() -> None:
    loop, first, second = Loop(), Optimizer(), Optimizer()
    for _ in range(5):
        loop.step(first)
        loop.step(second)
    assert loop.counter.step == 5


def test_order_of_chained_optimizers_may_change() -> None:
    loop, first, second = Loop(), Optimizer(), Optimizer()
    for number in range(6):
        for optimizer in (first, second) if number % 2 == 0 else (second, first):
            loop.step(optimizer)
    assert loop.counter.step == 6


def test_a_replaced_optimizer_goes_on_counting() -> None:
    loop, optimizer = Loop(), Optimizer()
    for _ in range(3):
        loop.step(optimizer)
    other = Optimizer()
    for _ in range(4):
        loop.step(other)
    assert loop.counter.step == 7


def test_an_optimizer_that_died_is_replaced_at_once() -> None:
    loop = Loop()
    loop.step(Optimizer())
    assert loop.step(Optimizer()) == 2


def test_a_skipped_step_is_counted_once_the_period_is_proven() -> None:
    loop, optimizer = Loop(), Optimizer()
    for _ in range(5):
        loop.step(optimizer)
    loop.work()
    assert loop.step(optimizer) == 7
    columns = loop.counter.take()
    assert columns is not None and columns["step"] == [2, 3, 4, 5, 7]


def test_no_skip_is_made_up_before_the_period_is_proven() -> None:
    loop, optimizer = Loop(), Optimizer()
    loop.step(optimizer)
    loop.work()
    assert loop.step(optimizer) == 2


def test_an_evaluation_with_collectives_is_no_skipped_step() -> None:
    loop, optimizer = Loop(), Optimizer()
    for _ in range(5):
        loop.step(optimizer)
    loop.work(collectives=8, backwards=0)
    assert loop.step(optimizer) == 6


def test_batches_count_only_where_no_optimizer_was_seen() -> None:
    loop = Loop()
    for _ in range(70):
        loop.watch.batches += 1
        loop.counter.after_batch()
    assert loop.counter.step == 70
    loop.step(Optimizer())
    loop.watch.batches += 1
    loop.counter.after_batch()
    assert loop.counter.step == 71


def test_a_row_holds_what_happened_between_two_steps() -> None:
    loop, optimizer = Loop(), Optimizer()
    loop.step(optimizer)
    loop.watch.loader.total_ns += 2_000_000_000
    loop.watch.checkpoint.total_ns += 500_000_000
    loop.watch.gc.total_ns += 250_000_000
    loop.step(optimizer)
    columns = loop.counter.take()
    assert columns is not None
    assert (columns["data_wait_s"], columns["checkpoint_s"], columns["gc_s"]) == ([2.0], [0.5], [0.25])


def test_rows_nobody_fetches_are_bounded() -> None:
    loop, optimizer = Loop(), Optimizer()
    for _ in range(1_500):
        loop.step(optimizer)
    columns = loop.counter.take()
    assert columns is not None and len(columns["step"]) == 1_000 and columns["step"][-1] == 1_500


def waits_of(loop: Loop) -> list[float | None]:
    columns = loop.counter.take()
    assert columns is not None and set(columns) == set(COLUMNS) - {"late_launch"}
    return columns["wait_s"]


def test_a_step_tells_how_long_it_waited() -> None:
    loop, optimizer = Loop(), Optimizer()
    loop.seen = 0
    for _ in range(3):
        loop.seen += 4
        loop.watch.waiting.total_ns += 250_000_000
        loop.step(optimizer)
    assert waits_of(loop) == [0.25, 0.25]


def test_calls_that_cpp_waited_for_count_as_seen() -> None:
    loop, optimizer = Loop(), Optimizer()
    loop.seen = 0
    for _ in range(2):
        loop.watch.covered += 4
        loop.step(optimizer)
    assert waits_of(loop) == [0.0]


def test_waiting_is_unknown_where_a_call_was_not_seen_or_nobody_can_look() -> None:
    loop, optimizer = Loop(), Optimizer()
    loop.seen = 0
    for seen in (4, 3, 4):
        loop.seen += seen
        loop.step(optimizer)
    assert waits_of(loop) == [None, 0.0] and not loop.watch.has_unseen
    loop.seen = None
    loop.step(optimizer)
    assert waits_of(loop) == [None] and loop.watch.has_unseen
