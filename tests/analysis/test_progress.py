from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterwatch.analysis.model import ProcessState
from clusterwatch.analysis.progress import Judgement, Look, Motion, Reason, glance, judge
from tests.analysis.job_looks import SECOND, START, WORLD_GROUP, idle, look, waiting


def after(before: Look, now: Look) -> Judgement:
    return judge(glance(before), now)


def twice(*calls: dict[int, tuple[int, int, int]] | None, **facts: object) -> Judgement:
    """The same numbers in two looks, 4 s and 5 s after the last progress."""
    return after(look(4, calls, **facts), look(5, calls, **facts))  # type: ignore[arg-type]


# --- moving, stalled, unknown -----------------------------------------------------------------------------


def test_one_look_says_nothing() -> None:
    assert judge(None, look(5, [waiting(), idle()])).worlds[0].motion is Motion.UNKNOWN


def test_two_looks_less_than_a_second_apart_say_nothing() -> None:
    calls = [waiting(), idle()]
    assert after(look(5, calls), look(5.5, calls)).worlds[0].motion is Motion.UNKNOWN


def test_an_open_call_and_no_advance_is_a_stall_since_the_last_progress() -> None:
    judged = twice(waiting(), waiting(), idle())
    (world,) = judged.stalled
    assert world.since_ns == START
    assert world.stall_s(judged.at_ns) == 5.0
    assert world.waiting == (0, 1)


def test_slow_but_moving_is_no_stall() -> None:
    before = look(4, [waiting(11), waiting(11), idle(10)])
    now = look(5, [waiting(11), waiting(11), idle(11)], moved_s=[0, 0, 4.5])
    assert after(before, now).worlds[0].motion is Motion.MOVING
    assert after(before, now).stalled == ()


def test_a_step_without_a_collective_is_an_advance() -> None:
    calls = [waiting(), idle()]
    assert after(look(4, calls, step=5), look(5, calls, step=6)).moving


def test_a_new_process_is_an_advance() -> None:
    assert after(look(4, [waiting(), None]), look(5, [waiting(), idle()])).moving


def test_the_same_frame_seen_twice_proves_nothing() -> None:
    calls = [waiting(), idle()]
    old = {0: 3.8, 1: 3.8}
    assert after(look(4, calls, seen_s=old), look(5, calls, seen_s=old)).worlds[0].motion is Motion.UNKNOWN


def test_frames_that_showed_the_numbers_for_less_than_a_second_prove_nothing() -> None:
    judged = twice(waiting(), idle(), moved_s=4.5)
    assert judged.worlds[0].motion is Motion.UNKNOWN


def test_nobody_who_speaks_is_unknown_and_not_a_stall() -> None:
    judged = twice(waiting(), idle(), seen_s={0: 0.5, 1: 0.5})
    assert judged.worlds[0].motion is Motion.UNKNOWN
    assert (judged.coverage.reported, judged.coverage.stale) == (0, 2)


def test_a_world_that_idles_while_another_moves_is_no_stall() -> None:
    idle_world, busy = idle(10), idle(50)
    before = look(4, [idle_world, busy], world=[0, 1])
    now = look(5, [idle_world, idle(51)], world=[0, 1], moved_s=[0, 4.8])
    assert after(before, now).stalled == ()


def test_a_world_that_waits_while_another_moves_is_stalled() -> None:
    before = look(4, [waiting(), idle(), idle(50)], world=[0, 0, 1])
    now = look(5, [waiting(), idle(), idle(51)], world=[0, 0, 1], moved_s=[0, 0, 4.8])
    assert [world.world for world in after(before, now).stalled] == [0]


def test_nobody_moves_and_nobody_waits_is_a_stall_too() -> None:
    (world,) = twice(idle(), idle()).stalled
    assert world.waiting == ()


# --- who holds the others up ------------------------------------------------------------------------------


def test_the_rank_that_is_behind_is_suspected() -> None:
    (world,) = twice(waiting(), idle(), waiting(), waiting()).stalled
    assert world.suspects == (1,)
    assert world.reasons == (Reason.BEHIND,)
    assert world.groups[0].behind == (1,)
    assert world.groups[0].sequence == 11


def test_a_rank_that_is_behind_because_it_waits_elsewhere_is_not_suspected() -> None:
    other = 2
    ranks = [
        waiting(),
        {WORLD_GROUP: (10, 10, 10), other: (7, 6, 7)},
        {WORLD_GROUP: (10, 10, 10), other: (6, 6, 6)},
    ]
    (world,) = twice(*ranks).stalled
    assert world.suspects == (2,)


def test_op_ids_of_gloo_are_not_compared_between_ranks() -> None:
    blind_to_sequence = [
        {WORLD_GROUP: (31, 30, -1)},
        {WORLD_GROUP: (40, 40, -1)},
        {WORLD_GROUP: (35, 34, -1)},
    ]
    (world,) = twice(*blind_to_sequence).stalled
    assert world.suspects == (1,)
    assert world.reasons == (Reason.OUTSIDE,)


def test_all_in_the_same_open_call_name_nobody() -> None:
    (world,) = twice(waiting(), waiting(), waiting()).stalled
    assert world.all_joined
    assert world.suspects == ()


def test_the_stronger_evidence_wins() -> None:
    dead = {2: ProcessState.EXITED}
    (world,) = twice(waiting(), idle(), idle(), process=dead).stalled
    assert (world.suspects, world.reasons) == ((2,), (Reason.DIED,))


@pytest.mark.parametrize(
    ("state", "reason"),
    [(ProcessState.NODE_SILENT, Reason.NODE_SILENT), (ProcessState.STOPPED, Reason.STOPPED)],
)
def test_process_states_are_reasons(state: ProcessState, reason: Reason) -> None:
    (world,) = twice(waiting(), idle(), waiting(), process={1: state}).stalled
    assert (world.suspects, world.reasons) == ((1,), (reason,))


def test_a_clean_exit_is_told_from_a_death() -> None:
    (world,) = twice(waiting(), idle(), process={1: ProcessState.EXITED}, clean=[1]).stalled
    assert world.reasons == (Reason.FINISHED,)


def test_a_silent_hook_of_a_living_process_is_suspected_before_who_is_behind() -> None:
    silent = {2: 0.5}
    (world,) = twice(waiting(), idle(), waiting(), heard_s=silent).stalled
    assert (world.suspects, world.reasons) == ((2,), (Reason.HOOK_SILENT,))


def test_ranks_of_a_lost_agent_are_suspects_beside_those_behind_and_never_dead() -> None:
    (world,) = twice(waiting(), idle(), idle(), process={2: ProcessState.AGENT_GONE}).stalled
    assert dict(zip(world.suspects, world.reasons, strict=True)) == {
        1: Reason.BEHIND,
        2: Reason.UNOBSERVED,
    }


def test_the_phase_is_that_of_the_rank_that_holds_the_others_up() -> None:
    (world,) = twice(waiting(), idle(), waiting(), phase={1: "checkpoint"}).stalled
    assert world.phase == "checkpoint"


def test_ranks_without_any_group_are_making_their_groups() -> None:
    (world,) = twice({}, {}).stalled
    assert world.phase == "startup"


def test_coverage_counts_ranks_that_were_never_reported() -> None:
    judged = twice(waiting(), waiting(), None)
    assert (judged.coverage.expected, judged.coverage.reported, judged.coverage.stale) == (3, 2, 0)
    assert judged.stalled[0].suspects == (2,)


# --- properties -------------------------------------------------------------------------------------------

_numbers = st.tuples(st.integers(0, 50), st.integers(0, 50), st.integers(-1, 50))
_rank = st.dictionaries(st.integers(1, 4), _numbers, max_size=3)


@given(st.lists(_rank, min_size=1, max_size=6), st.data())
def test_never_stalled_when_any_number_moved(
    ranks: list[dict[int, tuple[int, int, int]]], data: st.DataObject
) -> None:
    changed = [dict(one) for one in ranks]
    victim = data.draw(st.integers(0, len(ranks) - 1))
    group = data.draw(st.integers(1, 4))
    before = changed[victim].get(group, (0, 0, -2))
    changed[victim][group] = data.draw(_numbers.filter(lambda numbers: numbers != before))
    judged = after(look(4, ranks), look(5, changed))
    assert judged.worlds[0].motion is Motion.MOVING


@given(st.lists(_rank, min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_the_verdict_does_not_depend_on_the_order_of_rows(
    ranks: list[dict[int, tuple[int, int, int]]], order: object
) -> None:
    now = look(5, ranks)
    rows = list(range(len(now.row)))
    order.shuffle(rows)  # type: ignore[attr-defined]
    columns = {name: getattr(now, name) for name in Look.__slots__}
    mixed = Look(
        **columns | {n: columns[n][rows] for n in ("row", "group_id", "enqueued", "completed", "sequence")}
    )
    first = glance(look(4, ranks))
    assert judge(first, mixed) == judge(first, now)


@given(st.lists(_rank, min_size=1, max_size=6))
def test_waiting_ranks_are_those_with_an_open_call_of_their_own(
    ranks: list[dict[int, tuple[int, int, int]]],
) -> None:
    judged = after(look(4, ranks), look(5, ranks))
    open_ranks = {i for i, one in enumerate(ranks) if any(e > c for e, c, _ in one.values())}
    for world in judged.stalled:
        assert set(world.waiting) == open_ranks


def test_a_large_job_is_judged_in_well_under_a_tick() -> None:
    count = 24_576
    numbers = np.arange(count)
    base = look(4, [waiting()] * 2)
    columns = {name: getattr(base, name) for name in Look.__slots__}
    wide = {n: np.resize(v, count) for n, v in columns.items() if isinstance(v, np.ndarray)}
    wide |= {"rank": numbers, "rank_id": numbers, "row": numbers}
    before = Look(**columns | wide)
    now = Look(**columns | wide | {"at_ns": before.at_ns + SECOND, "seen_ns": before.seen_ns + SECOND})
    judged = after(before, now)
    assert len(judged.stalled[0].waiting) == count
