"""Jobs of a simulated cluster: a dozen kinds of splits, whole nodes, no node twice, no invented person."""

from __future__ import annotations

import pytest

from clusterwatch.simulate.plans import plan
from clusterwatch.simulate.topology import Shape

SHAPES = (Shape(), Shape(4, 72), Shape(72), Shape(3), Shape(4), Shape(1))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("nodes", [1, 2, 7, 16, 64, 500])
def test_worlds_fill_whole_nodes_and_no_node_twice(shape: Shape, nodes: int):
    worlds = [world for job in plan(nodes, 0, shape) for world in job.worlds]
    used = [node for world in worlds for node in range(world.first_node, world.end_node)]
    assert len(used) == len(set(used)) and max(used, default=0) < nodes
    assert worlds or nodes * shape.gpus_per_node <= 2, "a single GPU, or two of which one stays idle"
    assert all(world.size == world.node_count * shape.gpus_per_node for world in worlds)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_tensor_group_stays_inside_of_an_nvlink_domain(shape: Shape):
    for job in plan(360, 0, shape):
        for world in job.worlds:
            for index in range(0, world.size // world.layout.tensor, 7):
                ranks = range(index * world.layout.tensor, (index + 1) * world.layout.tensor)
                domains = {world.node_of(rank) // shape.domain_nodes for rank in ranks}
                assert len(domains) == 1


def test_the_full_cluster_runs_a_dozen_jobs_split_every_way():
    jobs = plan(3_072, 0, Shape())
    layouts = [world.layout for job in jobs for world in job.worlds]
    assert len(jobs) == 12
    assert max(len(layout.roles) for layout in layouts) == 8
    assert {"pipeline", "context", "expert", "data"} <= {
        name
        for layout in layouts
        for name in ("pipeline", "context", "expert", "data")
        if getattr(layout, name) > 1
    }
    busy = sum(world.node_count for job in jobs for world in job.worlds)
    assert 0.8 < busy / 3_072 < 0.95


def test_a_reinforcement_job_has_two_worlds_with_roles_of_their_own():
    (job,) = [job for job in plan(3_072, 0, Shape()) if len(job.worlds) > 1]
    assert [world.role for world in job.worlds] == ["learner", "actor"]
    assert len({world.world for world in job.worlds}) == 2 and {world.job for world in job.worlds} == {
        job.key
    }


def test_accounts_are_services_and_keys_follow_the_seed():
    jobs = plan(3_072, 0, Shape())
    assert all(job.account.startswith("svc-") for job in jobs)
    assert {job.key for job in jobs}.isdisjoint({job.key for job in plan(3_072, 1, Shape())})


def test_ranks_and_gpus_find_each_other():
    world = plan(64, 0, Shape())[1].worlds[0]
    for rank in (0, 9, world.size - 1):
        node = world.node_of(rank)
        assert world.rank_of(node, rank % 8) == rank and rank in world.ranks_of(node)
    assert world.rank_of(world.first_node - 1, 0) is None and world.rank_of(world.end_node, 0) is None
