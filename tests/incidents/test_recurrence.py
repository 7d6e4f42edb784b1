"""A part that comes back is said by serial; a place that stays sick is told apart from a sick part."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from clusterwatch.fleet import parts
from clusterwatch.fleet.models import Cluster, Part
from clusterwatch.fleet.parts import Seen
from clusterwatch.incidents import recurrence
from clusterwatch.incidents.models import Incident

pytestmark = pytest.mark.django_db
NOW = datetime(2026, 12, 3, 9, tzinfo=UTC)


@pytest.fixture
def cluster() -> Cluster:
    return Cluster.objects.create(name="lab")


def named(cluster: Cluster, days_ago: float, host: str, gpu: int, uuid: str, paged: bool = True) -> Incident:
    at = NOW - timedelta(days=days_ago)
    told: dict[str, Any] = {"culprits": [{"rank": 3, "host": host, "gpu": gpu, "gpu_uuid": uuid, "pid": 1}]}
    return Incident.objects.create(
        cluster=cluster, fingerprint=f"{host}{gpu}{uuid}{days_ago}", state="resolved", severity="warning",
        verdict="slow_gpu", fault_class="hardware", summary="slow", diagnosis=told, since=at, suspected_at=at,
        opened_at=at if paged else None, resolved_at=at, checked_at=at,
    )  # fmt: skip


def sits(cluster: Cluster, days_ago: float, host: str, gpu: int, serial: str) -> None:
    seen = Seen("gpu", serial, host, f"gpu/{gpu}", gpu_uuid=f"GPU-{serial}")
    parts.take(cluster.pk, [seen], NOW - timedelta(days=days_ago))


def sentences(incident: Incident) -> list[str]:
    return [one.sentence for one in recurrence.of_incident(incident, Incident.objects.all())]


def test_the_third_time_is_said_with_how_often_it_was_replaced(cluster: Cluster) -> None:
    sits(cluster, 25, "n7", 3, "1650001")
    named(cluster, 20, "n7", 3, "GPU-1650001")
    named(cluster, 5, "n7", 3, "GPU-1650001")
    newest = named(cluster, 0, "n7", 3, "GPU-1650001")
    assert sentences(newest) == ["Third time in 30 days that GPU 1650001 is named; replaced there never."]


def test_a_part_that_carried_its_fault_along_is_told_by_its_earlier_host(cluster: Cluster) -> None:
    sits(cluster, 25, "n7", 3, "1650001")
    named(cluster, 20, "n7", 3, "GPU-1650001")
    sits(cluster, 10, "n9", 0, "1650001")
    newest = named(cluster, 0, "n9", 0, "GPU-1650001")
    assert "it carried its fault along from n7" in sentences(newest)[0]


def test_a_place_that_stays_sick_after_a_repair_is_told_as_the_place(cluster: Cluster) -> None:
    sits(cluster, 25, "n7", 3, "1650001")
    named(cluster, 20, "n7", 3, "GPU-1650001")
    sits(cluster, 10, "n7", 3, "1650002")
    newest = named(cluster, 0, "n7", 3, "GPU-1650002")
    assert sentences(newest) == [
        "The place gpu/3 of n7 was named once with another part in it: look at the place, not at the part; "
        "replaced there once."
    ]


@pytest.mark.parametrize(("days_ago", "paged"), [(40, True), (5, False)])
def test_what_is_long_ago_or_never_paged_is_not_counted(
    cluster: Cluster, days_ago: float, paged: bool
) -> None:
    named(cluster, days_ago, "n7", 3, "GPU-1650001", paged)
    assert sentences(named(cluster, 0, "n7", 3, "GPU-1650001")) == []


def test_another_gpu_of_the_host_is_another_part(cluster: Cluster) -> None:
    named(cluster, 5, "n7", 2, "GPU-1650009")
    assert sentences(named(cluster, 0, "n7", 3, "GPU-1650001")) == []


def test_hostile_culprits_are_passed_over(cluster: Cluster) -> None:
    newest = named(cluster, 0, "n7", 3, "GPU-1650001")
    newest.diagnosis = {"culprits": [1, {"host": 3, "gpu": "x"}, {}, None]}
    assert sentences(newest) == []


def test_lemons_are_gpus_and_hosts_named_twice_the_worst_first(cluster: Cluster) -> None:
    sits(cluster, 60, "n7", 3, "1650001")
    for days_ago in (50, 20, 5, 1):
        named(cluster, days_ago, "n7", 3, "GPU-1650001")
    for days_ago in (3, 2):
        named(cluster, days_ago, "n8", 1, "GPU-1650002")
    named(cluster, 4, "n9", 1, "GPU-1650003")
    found = recurrence.lemons(cluster.pk, Incident.objects.all(), NOW)
    assert [(one.name, one.recent_count, len(one.incidents)) for one in found] == [
        ("GPU-1650001", 3, 4), ("GPU-1650002", 2, 2),
    ]  # fmt: skip
    assert found[0].part == Part.objects.get() and found[0].hosts == {"n7"}


def test_incidents_of_a_part_follow_it(cluster: Cluster) -> None:
    sits(cluster, 60, "n7", 3, "1650001")
    older, newer = named(cluster, 20, "n7", 3, "GPU-1650001"), named(cluster, 1, "n9", 0, "GPU-1650001")
    named(cluster, 1, "n7", 3, "GPU-1650002")
    assert recurrence.of_part(Part.objects.get(), Incident.objects.all()) == [newer, older]
