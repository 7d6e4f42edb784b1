"""Pulse reads the database again only where something changed, and then sees it."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from django.utils import timezone

from clusterwatch.analysis.motion import EXIT_FAILED
from clusterwatch.fleet.models import Cluster, Node, Slot
from clusterwatch.ingest.layout import Layouts
from clusterwatch.jobs.models import Group, Job, Rank

pytestmark = pytest.mark.django_db


@pytest.fixture
def cluster() -> Cluster:
    cluster = Cluster.objects.create(name="tiny", slot_count=2, slots_version=1)
    node = Node.objects.create(cluster=cluster, name="gpu-a", machine_id="a")
    Slot.objects.create(cluster=cluster, number=0, node=node, gpu_index=0, until=timezone.now())
    Slot.objects.create(cluster=cluster, number=1, node=node, gpu_index=0)
    return cluster


def add_rank(job: Job, number: int) -> Rank:
    node = Node.objects.get(cluster=job.cluster)
    return Rank.objects.create(
        job=job, attempt=job.attempt, rank=number, world_size=2, node=node, host=node.name, ref=number,
        epoch="e", pid=number + 1, started_at=timezone.now(),
    )  # fmt: skip


@pytest.fixture
def job(cluster: Cluster) -> Job:
    job = Job.objects.create(cluster=cluster, key="88213", started_at=timezone.now())
    add_rank(job, 1)
    add_rank(job, 0)
    return job


def fresh() -> Layouts:
    layouts = Layouts()
    layouts.refresh(())
    return layouts


def test_a_closed_slot_has_no_node(cluster: Cluster):
    layout = fresh().clusters[cluster.pk]
    node = Node.objects.get()
    assert layout.node.tolist() == [-1, node.pk] and dict(layout.names) == {node.pk: "gpu-a"}


def test_ranks_come_in_order_with_unknown_gpus_as_such(job: Job):
    layout = fresh().jobs[job.pk]
    assert layout.rank.tolist() == [0, 1] and layout.gpu.tolist() == [-1, -1]
    assert layout.hosts == ("gpu-a",)


def test_a_quiet_second_costs_four_queries_and_reads_no_rank(job: Job, django_assert_num_queries: Any):
    layouts = fresh()
    before = layouts.jobs[job.pk], layouts.clusters[job.cluster_id]
    with django_assert_num_queries(4):
        layouts.refresh(())
    assert layouts.jobs[job.pk] is before[0] and layouts.clusters[job.cluster_id] is before[1]


def ends(job: Job) -> None:
    Rank.objects.filter(job=job, rank=1).update(exited_at=datetime.now(UTC), exit_code=1)


def joins(job: Job) -> None:
    add_rank(job, 2)


def begins_anew(job: Job) -> None:
    Job.objects.filter(pk=job.pk).update(attempt=1)
    add_rank(Job.objects.get(pk=job.pk), 0)


def makes_a_group(job: Job) -> None:
    Group.objects.create(job=job, attempt=0, name="0", members_hash="x", ranks=[0, 1])


@pytest.mark.parametrize(
    ("act", "seen"),
    [
        (ends, lambda layout: layout.exit.tolist() == [0, EXIT_FAILED]),
        (joins, lambda layout: layout.rank.tolist() == [0, 1, 2]),
        (begins_anew, lambda layout: (layout.attempt, layout.rank.tolist()) == (1, [0])),
        (makes_a_group, lambda layout: [g.ranks for g in layout.groups.values()] == [(0, 1)]),
    ],
)
def test_a_change_is_seen_in_the_next_second(
    job: Job, act: Callable[[Job], None], seen: Callable[[Any], bool]
):
    layouts = fresh()
    assert not seen(layouts.jobs[job.pk])
    act(job)
    layouts.refresh(())
    assert seen(layouts.jobs[job.pk])


def test_an_ended_job_is_read_only_while_somebody_watches_it(job: Job):
    Job.objects.filter(pk=job.pk).update(state="ended", ended_at=timezone.now())
    layouts = fresh()
    assert job.pk not in layouts.jobs
    layouts.refresh([job.pk])
    assert layouts.jobs[job.pk].state == "ended"


def test_a_new_gpu_in_a_place_is_seen_by_the_version(cluster: Cluster):
    layouts = fresh()
    Slot.objects.create(cluster=cluster, number=2, node=Node.objects.get(), gpu_index=1)
    Cluster.objects.update(slot_count=3, slots_version=2)
    layouts.refresh(())
    assert layouts.clusters[cluster.pk].gpu.tolist() == [-1, 0, 1]
