"""The odd node is found, camps are nobody's fault, and what a job chose is compared within the job."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest
import redis
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries

from clusterwatch.accounts.models import Team, User
from clusterwatch.detect import drift, schedule, tasks
from clusterwatch.fleet.models import Cluster, Node
from clusterwatch.jobs import drift as kept
from clusterwatch.jobs import node_view
from clusterwatch.jobs.models import DriftFinding, DriftRun, Job
from clusterwatch.store import hot
from tests.web.seed_drift import fleet, rank_facts, tell

pytestmark = pytest.mark.django_db


@pytest.fixture
def cluster() -> Cluster:
    return Cluster.objects.create(name="lab")


@pytest.fixture
def olga() -> User:
    return User.objects.create(username="olga", role="operator")


def found(cluster: Cluster, user: User) -> kept.DriftView:
    drift.compare(cluster.pk, time.time_ns())
    view = kept.view(cluster.pk, user)
    assert view is not None
    return view


def sentences(view: kept.DriftView) -> list[str]:
    return [one.sentence for group in view.groups for one in group.odd]


def test_the_odd_node_is_found_with_the_counts_it_rests_on(cluster: Cluster, olga: User) -> None:
    nodes = fleet(cluster, 40)
    for node in nodes:
        tell(node, {"host": {"nvidia.driver": "535.183.01"}} if node.name == "gtn-0017" else {})
    view = found(cluster, olga)
    assert sentences(view) == ["39 of 40 nodes have nvidia.driver 550.90.07; gtn-0017 has 535.183.01"]
    (one,) = view.groups[0].odd
    assert (view.state, one.node, one.coverage) == ("odd", nodes[17], 1.0)
    assert one.row.confidence and 0.8 < one.row.confidence < 1
    assert view.groups[0].row.name == "with 8 × NVIDIA H100 80GB HBM3"


def test_a_rollout_blames_nobody(cluster: Cluster, olga: User) -> None:
    for number, node in enumerate(fleet(cluster, 40)):
        tell(node, {"host": {"nvidia.driver": "570.1"}} if number < 12 else {})
    view = found(cluster, olga)
    assert view.state == "camps" and not sentences(view)
    (camps,) = view.groups[0].camps
    assert camps.sentence == (
        "nvidia.driver: 28 have 550.90.07, 12 have 570.1; nodes are in several camps, so none of them is odd"
    )


def test_nodes_that_are_alike_are_fine(cluster: Cluster, olga: User) -> None:
    for node in fleet(cluster, 5):
        tell(node)
    view = found(cluster, olga)
    assert view.state == "fine" and view.groups[0].row.fact_count == 2


def test_three_nodes_prove_nothing(cluster: Cluster, olga: User) -> None:
    for number, node in enumerate(fleet(cluster, 3)):
        tell(node, {"host": {"kernel": str(number == 1)}})
    assert found(cluster, olga).state == "not_enough_data"


def test_without_any_facts_nothing_is_fine(cluster: Cluster, olga: User) -> None:
    fleet(cluster, 8)
    view = found(cluster, olga)
    assert (view.state, view.groups, view.run.silent_count) == ("not_enough_data", (), 8)


def test_nodes_of_another_kind_are_no_peers(cluster: Cluster, olga: User) -> None:
    for node in fleet(cluster, 20):
        tell(node)
    for node in fleet(cluster, 4, gpus=4, prefix="old-"):
        tell(node, {"host": {"nvidia.driver": "470.1"}})
    view = found(cluster, olga)
    assert view.state == "fine" and [group.row.node_count for group in view.groups] == [20, 4]


def test_nodes_of_two_classes_are_no_peers_though_their_gpus_are_equal(cluster: Cluster, olga: User) -> None:
    nodes = fleet(cluster, 24)
    for number, node in enumerate(nodes):
        of_class = {"node_class": "storage" if number < 4 else "train"}
        driver = {"nvidia.driver": "470.1"} if number < 4 or number == 20 else {}
        tell(node, {"host": of_class | driver})
    view = found(cluster, olga)
    assert sentences(view) == ["19 of 20 nodes have nvidia.driver 550.90.07; gtn-0020 has 470.1"]
    kind = "with 8 × NVIDIA H100 80GB HBM3"
    assert [(group.row.name, group.row.node_count) for group in view.groups] == [
        (f"{kind}, class train", 20), (f"{kind}, class storage", 4),
    ]  # fmt: skip
    seen = node_view.view(nodes[0], olga).differs.group
    assert seen is not None and seen.name == f"{kind}, class storage"


def test_a_silent_agent_is_not_compared_and_counted(cluster: Cluster, olga: User) -> None:
    nodes = fleet(cluster, 12)
    for node in nodes[:11]:
        tell(
            node,
            {"host": {"kernel": "old"}} if node is nodes[4] else {},
            age_s=400 if node is nodes[4] else 3,
        )
    view = found(cluster, olga)
    run = view.run
    assert view.state == "fine"
    assert (run.node_count, run.compared_count, run.stale_count, run.silent_count) == (12, 10, 1, 1)


def test_what_nccl_chose_is_compared_within_a_job(cluster: Cluster, olga: User) -> None:
    nodes = fleet(cluster, 30)
    job = Job.objects.create(cluster=cluster, key="7", started_at=timezone.now())
    for number, node in enumerate(nodes):
        name = "7" if number < 20 else "8"
        net = "Socket" if number == 3 or name == "8" else "IB"
        setting = {} if number == 5 else {"NCCL_IB_TC": "106"}
        tell(node, *[rank_facts(name, 8 * number + rank, nccl_net=net, **setting) for rank in range(8)])
    view = found(cluster, olga)
    assert sentences(view) == [
        "19 of 20 nodes have env.NCCL_IB_TC 106; gtn-0005 does not set it",
        "19 of 20 nodes have nccl.net IB; gtn-0003 has Socket",
    ]
    by_name = {group.row.name: group for group in view.groups}
    assert by_name["7"].row.job == job and by_name["8"].row.job is None and by_name["8"].state == "fine"


def test_the_part_that_differs_is_named(cluster: Cluster, olga: User) -> None:
    nodes = fleet(cluster, 30)
    for node in nodes:
        ports = {f"port/mlx5_{n}/1": {"rdma.firmware": "28.39.1002"} for n in range(8)}
        if node is nodes[9]:
            ports["port/mlx5_6/1"] = {"rdma.firmware": "28.36.1010"}
        tell(node, ports)
    assert sentences(found(cluster, olga)) == [
        "29 of 30 nodes have port rdma.firmware 28.39.1002; "
        "gtn-0009 has 7 × 28.39.1002, 1 × 28.36.1010 (port/mlx5_6/1)"
    ]


def test_a_run_replaces_the_one_before_and_keeps_since_when(cluster: Cluster, olga: User) -> None:
    nodes = fleet(cluster, 60)
    for node in nodes:
        tell(node, {"host": {"kernel": "old"}} if node is nodes[2] else {})
    found(cluster, olga)
    long_ago = timezone.now() - timedelta(days=2)
    DriftFinding.objects.update(since=long_ago)
    tell(nodes[3], {"host": {"kernel": "older"}})
    found(cluster, olga)
    since = {row.node_id: row.since for row in DriftFinding.objects.all()}
    assert DriftRun.objects.count() == 1 and len(since) == 2
    assert since[nodes[2].pk] == long_ago < since[nodes[3].pk]
    tell(nodes[2])
    tell(nodes[3])
    assert found(cluster, olga).state == "fine"


def test_jobs_of_another_team_are_not_told(cluster: Cluster, olga: User) -> None:
    team = Team.objects.create(name="others")
    Job.objects.create(cluster=cluster, key="7", team=team, started_at=timezone.now())
    nodes = fleet(cluster, 30)
    for node in nodes:
        job = "7" if node.pk % 2 else "unheard"
        tell(node, rank_facts(job, 0, nccl_net="Socket" if node in nodes[4:6] else "IB"))
    assert len(sentences(found(cluster, olga))) == 2
    vera = User.objects.create(username="vera", role="viewer")
    seen = kept.view(cluster.pk, vera)
    assert seen is not None and [group.row.kind for group in seen.groups] == ["class"]
    kind = "with 8 × NVIDIA H100 80GB HBM3"
    assert not kept.of_node(nodes[4], vera, kind, True).findings
    assert len(kept.of_node(nodes[4], olga, kind, True).findings) == 1
    vera.teams.add(team)
    seen = kept.view(cluster.pk, vera)
    assert seen is not None and {group.row.name for group in seen.groups} >= {"7"}


def test_one_node_that_differs_in_everything_leaves_room_for_others(
    cluster: Cluster, olga: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = fleet(cluster, 50)
    for number, node in enumerate(nodes):
        value = "b" if number == 0 else "a"
        other = {"host": {"zz": "c"}} if number == 1 else {"host": {"zz": "a"}}
        tell(node, {"host": {f"fact-{n:03}": value for n in range(100)}}, other)
    view = found(cluster, olga)
    assert (
        view.odd_count == kept.ODD_OF_NODE_MAX + 1 and view.run.left_out_count == 100 - kept.ODD_OF_NODE_MAX
    )
    monkeypatch.setattr(kept, "ODD_MAX", 10)
    assert found(cluster, olga).odd_count == 10


def test_queries_do_not_grow_with_the_nodes(
    cluster: Cluster, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    for node in fleet(cluster, 300):
        tell(node, rank_facts("7", node.pk, nccl_net="IB"))
    with django_assert_max_num_queries(20):
        drift.compare(cluster.pk, time.time_ns())


def test_a_comparison_of_some_time_ago_is_old(cluster: Cluster, olga: User) -> None:
    for node in fleet(cluster, 5):
        tell(node)
    assert not found(cluster, olga).is_old
    DriftRun.objects.update(ran_at=timezone.now() - timedelta(minutes=6))
    view = kept.view(cluster.pk, olga)
    assert view is not None and view.is_old


def test_a_node_that_left_takes_its_findings_along(cluster: Cluster, olga: User) -> None:
    nodes = fleet(cluster, 30)
    for node in nodes:
        tell(node, {"host": {"kernel": "old"}} if node is nodes[2] else {})
    found(cluster, olga)
    Node.objects.filter(pk=nodes[2].pk).delete()
    assert not DriftFinding.objects.exists()


def test_each_cluster_is_compared_by_one_task_at_a_time(
    cluster: Cluster, valkey: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Cluster.objects.create(name="other")
    sent: list[tuple[tuple[int], int, int]] = []
    monkeypatch.setattr(
        tasks.compare_cluster,
        "apply_async",
        lambda args, countdown, expires: sent.append((args, countdown, expires - countdown)),
    )
    assert tasks.compare_nodes() == 2
    assert sent == [
        ((cluster.pk,), 0, schedule.DRIFT_EVERY_S),
        ((other.pk,), tasks.CLUSTERS_APART_S, schedule.DRIFT_EVERY_S),
    ]
    hot.take_lease(f"detect:drift:{cluster.pk}", "another task", 5)
    assert tasks.compare_cluster(cluster.pk) is False
    hot.drop_lease(f"detect:drift:{cluster.pk}", "another task")
    assert tasks.compare_cluster(cluster.pk) is True and DriftRun.objects.count() == 1
