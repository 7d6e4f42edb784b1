"""What hot state says of ranks and groups, in words."""

from __future__ import annotations

import time

import django
import pytest
import redis

django.setup()

from clusterwatch.jobs import progress  # noqa: E402  (models load only after Django is set up)
from clusterwatch.jobs.models import Rank  # noqa: E402
from clusterwatch.jobs.queries import current_ranks, groups_of  # noqa: E402
from clusterwatch.jobs.shapes import job_groups, kind_of  # noqa: E402
from tests.web.seed import Seeded, heartbeat, seed  # noqa: E402


@pytest.fixture
def seeded(db: None, valkey: redis.Redis) -> Seeded:
    return seed(simulated_nodes=4, history=False)


def states(seeded: Seeded) -> dict[int, str]:
    heartbeat(seeded)
    return {
        view.rank: view.state for view in progress.rank_views(seeded.job, list(current_ranks(seeded.job)))
    }


def test_the_rank_its_peers_wait_for_is_behind_and_the_peers_wait(seeded: Seeded) -> None:
    found = states(seeded)
    assert found[5] == "behind"
    assert {found[rank] for rank in (0, 1, 2, 3, 4, 6, 7)} == {"waiting"}


def test_a_rank_that_moved_within_three_seconds_moves_whatever_it_lags(seeded: Seeded) -> None:
    heartbeat(seeded, progress_at_ns=time.time_ns())
    views = progress.rank_views(seeded.job, list(current_ranks(seeded.job)))
    assert {view.state for view in views} == {"moving"}


def test_an_exit_beats_every_other_word_and_says_how(seeded: Seeded) -> None:
    Rank.objects.filter(job=seeded.job, rank=2).update(exited_at=seeded.job.started_at, exit_signal=9)
    Rank.objects.filter(job=seeded.job, rank=3).update(exited_at=seeded.job.started_at, exit_code=0)
    heartbeat(seeded)
    views = {v.rank: v for v in progress.rank_views(seeded.job, list(current_ranks(seeded.job)))}
    assert (views[2].state, views[2].why) == ("failed", "ended by signal 9")
    assert views[3].state == "ended"


def test_without_hot_state_everything_is_unknown_and_nothing_is_zero(
    seeded: Seeded, valkey: redis.Redis
) -> None:
    valkey.flushall()
    views = progress.rank_views(seeded.job, list(current_ranks(seeded.job)))
    assert {view.state for view in views} == {"unknown"}
    assert {(view.step, view.phase, view.last_progress_at) for view in views} == {(None, None, None)}
    groups = progress.group_views(seeded.job, list(groups_of(seeded.job)), list(current_ranks(seeded.job)))
    assert {(group.state, group.sequence) for group in groups} == {("unknown", None)}
    assert progress.job_live([seeded.job.pk]) == {}


def test_groups_fold_by_kind_and_size_with_the_stuck_ones_first(seeded: Seeded) -> None:
    heartbeat(seeded)
    looks = progress.Looks(seeded.job.pk)
    facts = progress.rank_facts(seeded.job, 100)
    found = job_groups(seeded.job, looks, facts, groups_max=100, per_shape=2, standing_max=8)
    shapes = found.shapes
    told = {shape.kind: (shape.total, shape.size, shape.counts) for shape in shapes}
    assert told["tp"] == (4, 2, {"stuck": 1, "ok": 3})
    assert told["pp"] == (4, 2, {"ok": 4})
    assert shapes[0].groups[0].state == "stuck"
    assert shapes[0].groups[0].missing == (5,)
    assert {len(shape.groups) for shape in shapes if shape.total > 1} == {2}
    assert [(call.desc, call.missing) for call in found.standing] == [
        (view.desc, view.missing)
        for view in progress.group_views(
            seeded.job, list(groups_of(seeded.job)), list(current_ranks(seeded.job))
        )
        if view.state == "stuck"
    ]


@pytest.mark.parametrize(
    ("desc", "name", "kind"),
    [("tp_0", "3", "tp"), ("Tensor.3.8", "3", "tensor"), ("", "mesh_dp", "mesh_dp"), ("", "12", "unnamed")],
)
def test_a_group_s_kind_is_its_description_without_its_numbers(desc: str, name: str, kind: str) -> None:
    assert kind_of(name, desc) == kind
