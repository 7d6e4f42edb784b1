from __future__ import annotations

import pytest

from clusterwatch.analysis.gaps import limits
from clusterwatch.analysis.model import Coverage
from clusterwatch.analysis.progress import Judgement, Motion, WorldState, glance
from clusterwatch.detect.memory import LOOK_MAX_AGE_NS, Memory, WorldMemory, load, save
from clusterwatch.store import hot
from tests.analysis.job_looks import SECOND, idle, look, waiting


def judged(motion: Motion, moved_s: float, phase: str = "train") -> Judgement:
    world = WorldState(0, motion, int(moved_s * SECOND), phase, rank_count=2)
    return Judgement(int(moved_s * SECOND), (world,), Coverage())


def test_a_gap_is_learned_when_it_ends_under_the_phase_in_which_it_stood() -> None:
    memory = Memory(0)
    memory.learn(judged(Motion.MOVING, 100.0))
    memory.learn(judged(Motion.STALLED, 100.0, "checkpoint"))
    memory.learn(judged(Motion.MOVING, 120.0))
    history = memory.worlds[0].history("checkpoint")
    assert history is not None
    assert history.quantile_s() == pytest.approx(20.0, rel=0.2)
    assert memory.worlds[0].history("train") is None


def test_a_fault_is_not_learned_as_a_habit_but_many_are() -> None:
    world = WorldMemory()
    for _ in range(60):
        world.take(1.0, "train")
    world.take(500.0, "train")
    assert limits("train", world.history("train")).open_s == 10.0
    for _ in range(5):
        world.take(500.0, "train")
    assert limits("train", world.history("train")).open_s > 1000.0


def test_no_gap_spans_the_time_in_which_we_were_blind() -> None:
    memory = Memory(0)
    memory.learn(judged(Motion.MOVING, 100.0))
    memory.keep(glance(look(1, [waiting(), idle()])))
    assert memory.glance(memory.at_ns + LOOK_MAX_AGE_NS + 1) is None
    memory.learn(judged(Motion.MOVING, 160.0))
    assert memory.worlds[0].gaps == {}


def test_memory_survives_in_hot_state(valkey: object) -> None:
    memory = Memory(3)
    memory.learn(judged(Motion.MOVING, 100.0))
    memory.learn(judged(Motion.MOVING, 101.0))
    memory.keep(glance(look(1, [waiting(), idle()])))
    save(7, memory)
    assert load(7, 3) == memory
    found = load(7, 3).glance(memory.at_ns + SECOND)
    assert found is not None
    assert found.rank_id.tolist() == [100, 101]


def test_the_next_attempt_keeps_the_gaps_and_nothing_else(valkey: object) -> None:
    memory = Memory(3, capture_ids=[5], gone_ns=9)
    memory.worlds[0] = WorldMemory(moved_ns=5, gaps={"train": (4, 2)})
    save(7, memory)
    found = load(7, 4)
    assert found == Memory(4, worlds={0: WorldMemory(gaps={"train": (4, 2)})})


@pytest.mark.parametrize("blob", [b"", b"junk", b"\x93\x01\x02\x03"])
def test_an_unreadable_memory_is_a_fresh_one(valkey: object, blob: bytes) -> None:
    hot.save_look(7, blob)
    assert load(7, 1) == Memory(1)
