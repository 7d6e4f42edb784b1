"""Simulated jobs: groups that agree with each other, and progress that never stands still or goes back."""

import numpy as np
import pytest

from clusterwatch.simulate import topology
from clusterwatch.simulate.training import GROUPS, Run, RunningJob, plan
from collectors.wire.records import PHASES

S = 1_000_000_000
BEGUN = 1_796_000_000 * S


def columns(job: RunningJob, now_ns: int) -> dict[str, np.ndarray]:
    """Hot progress of all ranks of a job, rows by rank."""
    parts = [job.progress(node, now_ns) for node in range(job.plan.node_count)]
    kinds = {
        "step": "<i8",
        "moved_ns": "<i8",
        "heard_ns": "<i8",
        "phase": "u1",
        "enqueued": "<i8",
        "completed": "<i8",
    }
    found = {
        name: np.concatenate([np.frombuffer(getattr(p, name), kind) for p in parts])
        for name, kind in kinds.items()
    }
    group_count = np.frombuffer(parts[0].group_count, "<u2")[0]
    return found | {name: found[name].reshape(-1, group_count) for name in ("enqueued", "completed")}


def running(gpus: int, place: int = 0) -> RunningJob:
    nodes = topology.build(gpus, seed=0)
    return RunningJob(plan(len(nodes), 0)[place], nodes, Run(0, BEGUN), seed=0)


@pytest.mark.parametrize("node_count", [1, 2, 3, 7, 8, 64, 256, 3_072])
def test_jobs_never_share_a_node_and_leave_some_idle(node_count):
    jobs = plan(node_count, seed=0)
    used = [node for job in jobs for node in range(job.first_node, job.first_node + job.node_count)]
    assert len(used) == len(set(used)) <= node_count
    assert max(used, default=0) < node_count
    assert all(job.data * job.pipeline == job.node_count for job in jobs)


@pytest.mark.parametrize(("gpus", "place"), [(512, 0), (512, 1), (512, 2), (16, 0)])
def test_every_member_of_a_group_names_the_same_members(gpus, place):
    job = running(gpus, place).plan
    members: dict[tuple[str, str], list[int]] = {}
    for rank in range(job.world_size):
        for group in job.groups(rank):
            assert rank in group.ranks
            assert members.setdefault((group.desc, group.name), group.ranks) == group.ranks
    names = [name for _, name in members]
    assert len(names) == len(set(names)), "two groups of one name"
    for desc in {desc for desc, _ in members}:
        covered = sorted(rank for (d, _), ranks in members.items() if d == desc for rank in ranks)
        assert covered == list(range(job.world_size))


def test_256_ranks_are_tensor_8_pipeline_16_data_2():
    job = running(512).plan
    assert [(g.desc, len(g.ranks)) for g in job.groups(0)] == [("tp", 8), ("pp", 16), ("dp", 2)]


def test_every_rank_moves_every_second_in_every_group():
    for place in range(3):
        job = running(512, place)
        seconds = [columns(job, BEGUN + (100 + second) * S) for second in range(60)]
        for before, after in zip(seconds[:-1], seconds[1:], strict=True):
            assert (after["enqueued"] > before["enqueued"]).all()
            assert (after["completed"] > before["completed"]).all()
        assert (seconds[-1]["step"] > seconds[0]["step"]).all()


def test_a_rank_moved_just_now_and_waits_in_one_call_at_most():
    now = BEGUN + 12_345 * S
    found = columns(running(512), now)
    assert (found["moved_ns"] <= now).all() and (found["moved_ns"] > now - S).all()
    assert set(np.unique(found["enqueued"] - found["completed"])) <= {0, 1}
    assert {PHASES[phase] for phase in found["phase"]} == {"train"}


def test_members_of_a_group_are_a_few_calls_apart_at_most():
    job = running(512)
    found = columns(job, BEGUN + 5_000 * S)
    for rank in range(0, job.plan.world_size, 37):
        for group in job.plan.groups(rank):
            held = found["enqueued"][group.ranks, GROUPS.index(group.desc)]
            assert held.max() - held.min() <= 2


def test_steps_of_neighbouring_minutes_are_whole_and_without_a_hole():
    job = running(64)
    minute = 60 * S
    rows = [job.steps_between(0, BEGUN + m * minute, BEGUN + (m + 1) * minute) for m in range(5)]
    numbers = np.concatenate([row[0] for row in rows])
    assert numbers.tolist() == list(range(len(numbers))) and len(numbers) >= 5 * 60 / job.plan.step_s - 1
    for number, (found, ends, durations) in enumerate(rows):
        assert ((ends >= BEGUN + number * minute) & (ends < BEGUN + (number + 1) * minute)).all()
        assert durations.shape == (8, len(found))
        assert np.allclose(durations, job.plan.step_s, rtol=0.05)


def test_what_ranks_say_of_themselves_fits_their_place():
    job = running(512)
    inventories = list(job.inventories(3, BEGUN))
    assert [record.id.rank for record in inventories] == list(range(24, 32))
    assert {record.host for record in inventories} == {"gpu-r002-n02"}
    assert len({record.gpu_uuid for record in inventories}) == 8
