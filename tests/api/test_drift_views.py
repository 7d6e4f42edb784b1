"""Nodes that differ from their peers over REST: the counts they rest on, coverage, and who may see it."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

from django.test import Client
from django.utils import timezone

from clusterwatch.accounts.models import Team
from clusterwatch.detect import drift
from clusterwatch.fleet.models import Cluster
from clusterwatch.jobs.models import DriftRun, Job
from tests.api.conftest import Caller
from tests.web.seed_drift import fleet, rank_facts, tell


def get(client: Client, path: str, status: int = 200) -> Any:
    answer = client.get(f"/api/v1{path}")
    assert answer.status_code == status, answer.content[:500]
    return answer.json()


def compared(count: int = 40, **job: Any) -> Cluster:
    """A cluster of which the fourth node has another driver, and in a job the fifth another network."""
    cluster = Cluster.objects.create(name="big")
    if job:
        Job.objects.create(cluster=cluster, key="7", started_at=timezone.now(), **job)
    for number, node in enumerate(fleet(cluster, count)):
        host = {"host": {"nvidia.driver": "535.1"}} if number == 3 else {}
        net = rank_facts("7", number, nccl_net="Socket" if number == 4 else "IB") if job else {}
        tell(node, host, net)
    drift.compare(cluster.pk, time.time_ns())
    return cluster


def test_the_odd_node_with_its_counts_and_coverage(users: object, as_token: Caller) -> None:
    cluster = compared()
    told = get(as_token(), f"/clusters/{cluster.pk}/drift")
    assert (told["cluster"], told["state"], told["stale"], told["left_out"]) == ("big", "odd", False, 0)
    assert told["coverage"] == {"expected": 40, "compared": 40, "stale": 0, "silent": 0, "damaged": 0}
    (group,) = told["groups"]
    assert (group["kind"], group["job"], group["state"], group["fact_count"]) == ("class", None, "odd", 2)
    (one,) = group["odd"]
    assert (one["node"], one["fact"], one["value"], one["usual"]) == (
        "gtn-0003", "nvidia.driver", "535.1", "550.90.07",
    )  # fmt: skip
    assert (one["usual_count"], one["known_count"], one["peer_count"], one["coverage"]) == (39, 40, 40, 1.0)
    assert one["sentence"] == "39 of 40 nodes have nvidia.driver 550.90.07; gtn-0003 has 535.1"


def test_camps_name_nobody(users: object, as_token: Caller) -> None:
    cluster = Cluster.objects.create(name="big")
    for number, node in enumerate(fleet(cluster, 10)):
        tell(node, {"host": {"kernel": "new"}} if number < 4 else {})
    drift.compare(cluster.pk, time.time_ns())
    told = get(as_token(), f"/clusters/{cluster.pk}/drift")
    (group,) = told["groups"]
    assert told["state"] == group["state"] == "camps" and group["odd"] == []
    assert group["camps"][0]["camps"] == [
        {"value": "6.8.0-45-generic", "nodes": 6},
        {"value": "new", "nodes": 4},
    ]


def test_before_the_first_comparison_nothing_is_fine(users: object, as_token: Caller) -> None:
    cluster = Cluster.objects.create(name="big")
    told = get(as_token(), f"/clusters/{cluster.pk}/drift")
    assert (told["state"], told["ran_at"], told["coverage"], told["groups"]) == (
        "not_enough_data",
        None,
        None,
        [],
    )


def test_an_old_comparison_says_so(users: object, as_token: Caller) -> None:
    cluster = compared()
    DriftRun.objects.update(ran_at=timezone.now() - timedelta(hours=1))
    assert get(as_token(), f"/clusters/{cluster.pk}/drift")["stale"] is True
    assert get(as_token(), "/nodes/gtn-0001")["differs"]["state"] == "not_enough_data"


def test_a_wrong_cluster_and_a_token_of_another_one_get_nothing(users: object, as_token: Caller) -> None:
    cluster = compared()
    for client, pk in ((as_token(), 999_999), (as_token(cluster="other"), cluster.pk)):
        assert get(client, f"/clusters/{pk}/drift", 404)["code"] == "not_found"
    assert Client().get(f"/api/v1/clusters/{cluster.pk}/drift").status_code == 401


def test_a_job_of_another_team_is_not_told_to_a_viewer(users: object, as_token: Caller) -> None:
    cluster = compared(team=Team.objects.create(name="others"))
    kinds = {
        name: [one["kind"] for one in get(as_token(name), f"/clusters/{cluster.pk}/drift")["groups"]]
        for name in ("olga", "vera")
    }
    assert kinds == {"olga": ["class", "job"], "vera": ["class"]}
    assert get(as_token("vera"), "/nodes/gtn-0004")["differs"]["odd"] == []


def test_a_node_tells_how_it_differs(users: object, as_token: Caller) -> None:
    compared(team=None)
    odd, of_job, fine = (get(as_token(), f"/nodes/gtn-000{n}")["differs"] for n in (3, 4, 5))
    assert [one["fact"] for one in odd["odd"]] == ["nvidia.driver"] and odd["state"] == "odd"
    assert [one["fact"] for one in of_job["odd"]] == ["nccl.net"]
    assert (fine["state"], fine["odd"]) == ("fine", [])
