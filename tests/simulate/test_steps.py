"""Steps of simulated ranks: every second of a step is somebody's, and all ranks of a step take the same."""

from __future__ import annotations

import numpy as np
import pytest

from clusterwatch.simulate.steps import StepShift, finished, step_records, step_times
from tests.simulate.faults.lived import BEGIN, Lived, at

LIVED = Lived()
WORLD = LIVED.scene.worlds[0]
RANKS = range(8, 24)
SILICON = np.linspace(-2, 2, len(RANKS)).astype(np.float32)


def times(*shifts: StepShift, first: float = 20, last: float = 200):
    return step_times(WORLD, finished(WORLD, at(first), at(last)), RANKS, SILICON, shifts, seed=0)


def test_the_parts_of_a_step_are_its_whole():
    found = times()
    parts = found.work_s + found.collective_s + found.data_wait_s + found.checkpoint_s + found.gc_s
    assert parts == pytest.approx(found.duration_s, abs=1e-9)
    assert np.median(found.duration_s) == pytest.approx(WORLD.plan.step_s, rel=0.001)


def test_a_gpu_that_is_a_little_slower_for_ever_waits_a_little_less():
    found = times()
    assert np.corrcoef(SILICON, found.work_s.mean(axis=1))[0, 1] > 0.99
    assert np.corrcoef(SILICON, found.collective_s.mean(axis=1))[0, 1] < -0.99
    spread = found.work_s.mean(axis=1).std() / found.work_s.mean()
    assert 0.002 < spread < 0.02


def test_the_step_after_a_checkpoint_holds_it_and_no_other_does():
    found = times(first=280, last=360)
    saved = found.checkpoint_s[0]
    assert (saved > 0).sum() == 1 and saved.max() == pytest.approx(8.0, abs=0.3)
    assert found.duration_s[0, saved.argmax()] == pytest.approx(WORLD.plan.step_s + 8.0, abs=0.1)
    assert np.delete(found.duration_s[0], saved.argmax()).max() < WORLD.plan.step_s + 0.1


def test_minutes_follow_each_other_without_a_gap_or_a_double():
    numbers = [n for m in range(5) for n in finished(WORLD, at(60 * m), at(60 * m + 60)).step.tolist()]
    assert numbers == list(range(1, len(numbers) + 1))


def test_a_shift_changes_its_ranks_in_its_time_only():
    shift = StepShift([9], "data_wait", at(60), at(120), add_s=0.5)
    usual, changed = times(), times(shift)
    differs = np.argwhere(usual.data_wait_s != changed.data_wait_s)
    assert set(differs[:, 0].tolist()) == {1}
    ends = usual.end_ns[differs[:, 1]]
    assert ends.min() >= at(60) and ends.max() < at(120) and len(ends) > 10
    assert (changed.collective_s[1] <= usual.collective_s[1]).all()


def test_records_name_their_rank_and_carry_the_nodes_clock():
    found = times(last=60)
    made = list(step_records(WORLD, RANKS, found, at(60), 5 * 10**9))
    assert [record.id.rank for record in made] == list(RANKS)
    assert all(len(record.step) == len(record.duration_s) == len(found.step) for record in made)
    assert made[0].end_ns[0] == int(found.end_ns[0]) + 5 * 10**9 and made[0].t_ns == at(60) + 5 * 10**9


def test_records_tell_the_parts_of_their_steps():
    for record in step_records(WORLD, RANKS, times(), at(200), 0):
        for row, duration_s in enumerate(record.duration_s):
            parts = (record.wait_s, record.data_wait_s, record.checkpoint_s)
            own_s = duration_s - sum(part[row] for part in parts)
            assert 0.65 * WORLD.plan.step_s < own_s < 0.8 * WORLD.plan.step_s
        assert all(0 <= share < 0.1 for share in record.late_launch)


def test_what_a_slow_rank_takes_longer_the_others_wait():
    slowed, first = Lived("slow_gpu@30"), Lived().scene.worlds
    world, slow = slowed.world, list(slowed.truth.culprit_ranks)
    healthy = next(one for one in first if one.plan.first_node == world.plan.first_node)
    before, after = Lived().steps(healthy, 60, 120), slowed.steps(world, 60, 120)
    rest = np.setdiff1d(np.arange(world.plan.size), slow)

    def grew(part: str, who: object) -> float:
        return float(np.median(getattr(after, part)[who]) - np.median(getattr(before, part)[who]))

    longer = grew("duration_s", rest)
    assert longer > 0.03 * world.plan.step_s
    assert grew("work_s", slow) == pytest.approx(longer, rel=0.1)
    assert grew("collective_s", rest) == pytest.approx(longer, rel=0.1)
    assert grew("work_s", rest) == pytest.approx(0, abs=0.01)
    assert grew("collective_s", slow) == pytest.approx(0, abs=0.1 * longer)


def test_a_span_without_steps_has_no_record():
    found = times(first=0, last=2)
    assert not len(found.step) and list(step_records(WORLD, RANKS, found, BEGIN, 0)) == []
