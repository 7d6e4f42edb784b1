"""Progress in frames is what the traces of the same world hold, moving or stuck."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from clusterwatch.simulate import kept, start
from clusterwatch.simulate.answers import Answers
from clusterwatch.simulate.kept import Settings
from clusterwatch.simulate.world import World
from collectors.formats import columns as trace_columns
from collectors.wire.records import CaptureOrder, Trace

S = 1_000_000_000
BEGIN = 1_796_000_000 * S


def story(*faults: str, gpus: int = 512) -> tuple[World, ...]:
    settings = Settings("simulated", gpus, 0, Path(), "ws://none", faults=faults)
    return start.story(settings, kept.Run(0, BEGIN), BEGIN)[0].worlds


def after(seconds: float) -> int:
    return BEGIN + int(seconds * S)


def traced(world: World, rank: int, t_ns: int, want: str = "ring") -> trace_columns.TraceColumns | None:
    order = CaptureOrder(1, world.plan.job, [want], [rank])
    found = Answers(world, 0).answer(order, rank // world.plan.gpus_per_node, t_ns)
    return next((trace_columns.unpack(r.columns) for r in found if isinstance(r, Trace)), None)


@pytest.mark.parametrize(
    "fault", ["rank_stuck", "op_mismatch", "p2p_lost", "cross_group_cycle", "symmetric_stall", "nic_down"]
)
def test_numbers_of_a_stalled_world_are_those_of_its_traces(fault: str):
    worlds = story(f"{fault}@30")
    (world,) = [w for w in worlds if w.progress.stalls]
    t_ns = after(90)
    found = world.columns(slice(0, world.plan.node_count), t_ns)
    culprits = [plan.rank for plan in world.progress.stalls[0].trace.plans]
    for rank in {*culprits, *range(0, world.plan.size, 5)}:
        groups = traced(world, rank, t_ns).groups
        place = divmod(rank, world.plan.gpus_per_node)
        assert [group.last_enqueued for group in groups] == found.enqueued[place].tolist()
        assert [group.last_completed for group in groups] == found.completed[place].tolist()
    assert world.timeline.moment(t_ns).done_ratio != 0.0
    later = world.columns(slice(0, world.plan.node_count), after(120))
    assert (later.enqueued == found.enqueued).all() and (later.moved_ns == found.moved_ns).all()


def test_nobody_reports_a_move_after_the_stall_began_or_in_the_future():
    (world,) = [w for w in story("rank_stuck@30") if w.progress.stalls]
    nodes = slice(0, world.plan.node_count)
    for seconds in (25, 31, 90):
        found = world.columns(nodes, after(seconds))
        assert (found.moved_ns <= after(seconds)).all()
    assert (world.columns(nodes, after(90)).moved_ns < after(40)).all()


def test_a_healthy_world_moves_every_second_and_its_numbers_only_grow():
    world = story()[0]
    seen = [world.columns(slice(0, world.plan.node_count), after(t)) for t in range(10, 30)]
    for before, now in zip(seen[:-1], seen[1:], strict=True):
        assert (now.completed >= before.completed).all() and (now.enqueued >= before.enqueued).all()
        assert (now.enqueued >= now.completed).all()
        assert (now.completed.sum(axis=2) > before.completed.sum(axis=2)).any()
        assert (now.moved_ns >= before.moved_ns).all()


def test_sends_and_receives_have_no_collective_number():
    world = story()[0]
    found = world.columns(slice(0, 1), after(20))
    p2p = [role == "pp" for role in world.plan.layout.roles]
    assert any(p2p) and (found.sequence[..., p2p] == -1).all()
    others = np.logical_not(p2p)
    assert (found.sequence[..., others] == found.enqueued[..., others]).all()


def test_a_checkpoint_stops_the_numbers_of_everybody_with_no_call_open():
    world = story()[0]
    at_s = next(t for t in range(300, 330) if world.timeline.moment(after(t)).phase == 4)
    found = world.columns(slice(0, world.plan.node_count), after(at_s + 1))
    assert (found.enqueued == found.completed).all() and (found.phase == 4).all()


def test_times_in_a_trace_are_of_now():
    world = story()[0]
    t_ns = after(200)
    created = np.frombuffer(traced(world, 3, t_ns).entries.created_ns, np.int64)
    assert t_ns - 60 * S < created.max() < t_ns + S


def test_a_killed_rank_leaves_no_trace():
    (world,) = [w for w in story("rank_killed@30") if w.progress.stalls]
    (plan,) = world.progress.stalls[0].trace.plans
    assert traced(world, plan.rank, after(90)) is None
    assert traced(world, (plan.rank + 1) % world.plan.size, after(90)) is not None
