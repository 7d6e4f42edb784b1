"""Phases from the numbers the wrappers write."""

from __future__ import annotations

import time
from typing import Any

from collectors.hook.phases import LONG_NS, Phases
from collectors.hook.steps import StepCounter
from collectors.hook.watch import Operations, Watch, now_ns


class Optimizer:
    """Stands for torch's."""


def make(steps: int) -> tuple[Watch, Phases]:
    watch = Watch()
    counter = StepCounter(watch, lambda: Operations(watch.backwards, None))
    optimizer = Optimizer()
    for _ in range(steps):
        watch.backwards += 1
        counter.after_optimizer_step(optimizer)
    return watch, Phases(watch, counter, time.time_ns() - 10**9)


def test_starts_up_until_the_first_step() -> None:
    _watch, phases = make(steps=0)
    assert phases.update() is None
    assert phases.phase == "startup"


def test_trains_after_it() -> None:
    _watch, phases = make(steps=1)
    frame = phases.update()
    assert frame is not None
    assert (frame["before"], frame["phase"]) == ("startup", "train")
    assert frame["before_s"] >= 1.0


def test_a_short_wait_for_data_stays_training() -> None:
    watch, phases = make(steps=1)
    phases.update()
    watch.loader.enter(now_ns())
    assert phases.update() is None


def test_a_long_wait_for_data_began_when_the_wait_began() -> None:
    watch, phases = make(steps=1)
    phases.update()
    time.sleep(0.01)
    entered = now_ns() - LONG_NS
    watch.loader.enter(entered)
    frame = phases.update()
    assert frame is not None and frame["phase"] == "data_loading"
    watch.loader.leave(now_ns())
    after = phases.update()
    assert after is not None and (after["before"], after["phase"]) == ("data_loading", "train")


def test_a_checkpoint_shows_at_once_and_wins_over_evaluation() -> None:
    watch, phases = make(steps=1)
    watch.evaluating = now_ns() - 2 * LONG_NS
    watch.checkpoint.enter(now_ns())
    frame = phases.update()
    assert frame is not None and frame["phase"] == "checkpoint"


def test_time_never_runs_backwards_between_phases() -> None:
    watch, phases = make(steps=1)
    phases.update()
    since = phases.since_ns
    watch.compiling.enter(now_ns() - 10 * LONG_NS)
    frame = phases.update()
    assert frame is not None and frame["before_s"] == 0.0 and phases.since_ns == since


def test_without_a_step_counter_it_says_unknown() -> None:
    phases = Phases(Watch(), None, time.time_ns())
    assert phases.phase == "unknown"
    assert phases.update() is None


def test_leaving_the_world_is_a_teardown_until_the_next_one() -> None:
    watch, phases = make(steps=1)
    phases.update()
    watch.torn_down = now_ns()
    frame: Any = phases.update()
    assert frame["phase"] == "teardown"
    watch.torn_down = None
    assert phases.update() is not None and phases.phase == "train"
