"""The time of a world: start-up, steps, checkpoints, evaluations; and what slows, stops and restarts it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterwatch.simulate.timeline import CHECKPOINT, EVALUATION, STARTUP, TRAIN, Timeline

S = 1_000_000_000
BEGIN = 1_796_000_000 * S


def after(seconds: float) -> int:
    return BEGIN + int(seconds * S)


def world(step_s: float = 4.0) -> Timeline:
    return Timeline(BEGIN, step_s, startup_s=20.0)


def test_a_world_starts_up_trains_saves_and_evaluates():
    timeline = world()
    assert timeline.moment(after(5)).phase == STARTUP
    assert timeline.moment(after(20.1)).phase == TRAIN
    assert timeline.moment(after(322)).phase == CHECKPOINT
    assert timeline.moment(after(640)).phase == EVALUATION
    assert timeline.moment(after(655)).phase == TRAIN
    assert timeline.moment(after(322)).phase_since_ns == after(320)


def test_a_step_number_counts_finished_steps_and_stands_in_pauses():
    timeline = world()
    assert [timeline.moment(after(t)).step for t in (20, 23.9, 24.1, 319, 321, 327, 329, 333)] == [
        0, 0, 1, 74, 75, 75, 75, 76,
    ]  # fmt: skip


@given(st.lists(st.floats(0, 3_000), min_size=2, max_size=2), st.sampled_from([0.9, 2.6, 4.0, 6.0]))
def test_step_ends_of_neighbouring_spans_are_those_of_the_whole(edges: list[float], step_s: float):
    first, middle = sorted(edges)
    timeline = world(step_s)
    parts = [timeline.step_ends(after(a), after(b)) for a, b in ((first, middle), (middle, 3_001))]
    whole = timeline.step_ends(after(first), after(3_001))
    assert np.concatenate([part[0] for part in parts]).tolist() == whole[0].tolist()
    assert np.allclose(np.concatenate([part[1] for part in parts]), whole[1], atol=2)
    assert (
        whole[0].tolist() == list(range(int(whole[0][0]), int(whole[0][-1]) + 1)) if len(whole[0]) else True
    )


def test_a_slowdown_stretches_the_steps_inside_and_no_other():
    timeline = world()
    timeline.slow_down(after(100), after(160), 1.5)
    _, ends = timeline.step_ends(after(60), after(240))
    gaps = np.diff(ends) / 1e9
    assert gaps[:9] == pytest.approx([4.0] * 9, abs=1e-6)
    assert gaps[11:19] == pytest.approx([6.0] * 8, abs=1e-6)
    assert gaps[-8:] == pytest.approx([4.0] * 8, abs=1e-6)


def test_a_stalled_step_ends_only_after_the_world_goes_on():
    timeline = world()
    step = timeline.stop_in_step(after(101), after(160))
    assert timeline.moment(after(130)).step == step == 21
    numbers, ends = timeline.step_ends(after(90), after(170))
    assert numbers.tolist() == list(range(18, 25))
    late = int(ends[numbers.tolist().index(step + 1)])
    assert after(160) <= late < after(161)
    assert timeline.moment(after(130)).phase == TRAIN


def test_a_world_that_never_goes_on_stays_in_its_step_for_ever():
    timeline = world()
    step = timeline.stop_in_step(after(101), None)
    assert timeline.moment(after(100_000)).step == step
    assert timeline.step_ends(after(110), after(100_000))[0].tolist() == []


def test_a_stall_that_is_asked_for_during_startup_comes_in_the_first_step():
    assert world().stop_in_step(after(1), None) == 0


def test_a_restart_begins_the_next_attempt_from_the_last_checkpoint():
    timeline = world()
    timeline.stop_in_step(after(400), None)
    assert timeline.restart(after(420), after(430)) == 1
    before, up, again = (timeline.moment(after(t)) for t in (425, 440, 451))
    assert (before.attempt, up.attempt, again.attempt) == (0, 1, 1)
    assert up.phase == STARTUP and again.phase == TRAIN
    assert again.first_step == again.step == timeline.steps_between
    numbers, _ = timeline.step_ends(after(430), after(470))
    assert numbers[0] == timeline.steps_between + 1


def test_an_extra_checkpoint_is_a_pause_in_its_own_phase():
    timeline = world()
    at_ns = timeline.pause(after(101), after(140), CHECKPOINT)
    assert after(104) <= at_ns < after(104.1)
    assert timeline.moment(after(120)).phase == CHECKPOINT and timeline.moment(after(103)).phase == TRAIN
    assert timeline.moment(after(141)).phase == TRAIN and timeline.moment(after(120)).done_ratio == 0.0


@given(st.floats(0, 2_000))
def test_wall_time_and_job_time_are_each_others_inverse(seconds: float):
    timeline = world()
    timeline.slow_down(after(100), after(300), 1.3)
    timeline.stop_in_step(after(400), after(450))
    t_ns = after(seconds)
    if timeline.rate(t_ns) > 0:
        piece = timeline.moment(t_ns).piece
        assert timeline.wall_ns(timeline.job_s(t_ns), piece) == pytest.approx(t_ns, abs=2_000)
