"""Members of groups, from whatever tells them."""

from __future__ import annotations

from clusterwatch.analysis import Observation
from clusterwatch.analysis.groups import World, build
from tests.analysis.looks import traces
from tests.data.blocking_job import World as BlockingJob
from tests.data.recorder import Job, parallel, steps


def world(job: Job, without: tuple[int, ...] = ()) -> World:
    return build(Observation(traces=traces(job, without)))


def members(found: World, desc: str) -> list[tuple[int, ...]]:
    return sorted(tuple(sorted(g.members)) for g in found.groups if g.desc == desc)


def test_pg_config_tells_the_members() -> None:
    job = Job(4)
    job.group("1", "tp", (2, 3))
    job.all()
    assert members(world(job), "tp") == [(2, 3)]
    assert world(job).size == 4


def test_gloo_members_come_from_who_recorded_the_group() -> None:
    job = parallel("gloo")
    steps(job, 2)
    assert members(world(job), "tp") == [(0, 1), (2, 3), (4, 5), (6, 7)]


def test_a_member_without_a_dump_is_found_by_the_shape_of_the_siblings() -> None:
    job = parallel("gloo")
    steps(job, 2)
    found = world(job, without=(6,))
    assert members(found, "tp") == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert members(found, "dp") == [(0, 2), (1, 3), (4, 6), (5, 7)]
    assert found.no_dump == (6,)


def test_two_lost_members_are_placed_by_their_spacing() -> None:
    job = parallel("gloo")
    steps(job, 2)
    assert members(world(job, without=(0, 6)), "dp") == [(0, 2), (1, 3), (4, 6), (5, 7)]


def test_the_last_rank_is_known_to_exist_by_its_lonely_partner() -> None:
    job = BlockingJob().run()
    assert world(job, without=(7,)).size == 8


def test_the_world_group_holds_every_rank_though_few_called_it() -> None:
    job = Job(4, "gloo")
    job.group("1", "tp", (0, 1))
    job.group("2", "tp", (2, 3))
    job.all(group="1")
    job.all(group="2")
    job.all(ranks=(0, 1))
    assert members(world(job), "default_pg") == [(0, 1, 2, 3)]
