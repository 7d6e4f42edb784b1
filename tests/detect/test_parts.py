"""What nodes and devices tell by serial becomes histories, from their packed readings to page and REST."""

from __future__ import annotations

import time
from typing import Any

import pytest
from django.test import Client

from clusterwatch.accounts.models import User
from clusterwatch.detect import parts, schedule, tasks
from clusterwatch.fleet.models import Cluster, Node, Part, PartPlacement
from clusterwatch.store import device_readings, node_readings
from clusterwatch.store.device_readings import DeviceRow
from clusterwatch.store.node_readings import NodeRow
from collectors.wire import readings

pytestmark = pytest.mark.django_db
SECOND = 10**9


@pytest.fixture
def cluster() -> Cluster:
    return Cluster.objects.create(name="lab")


def packed(told: dict[str, dict[str, str]]) -> bytes:
    """``part_count`` by entity, with its labels."""
    entities, count = list(told), len(told)
    table = readings.Table(
        sources=[readings.SourceWord("optics", "ok", 60.0, 1.0)], entities=entities, metrics=["part_count"],
        qualities=["ok"], entity=list(range(count)), metric=[0] * count, source=[0] * count,
        quality=[0] * count, value=[1] * count, labels=[{}, *told.values()], label=list(range(1, count + 1)),
    )  # fmt: skip
    return readings.pack(table)


def node(cluster: Cluster, name: str, now_ns: int, told: dict[str, dict[str, str]]) -> Node:
    found, _ = Node.objects.get_or_create(cluster=cluster, name=name, machine_id=name)
    row = NodeRow(found.pk, cluster.pk, now_ns, "e", now_ns, packed(told))
    node_readings.put([row], now_ns)
    return found


def bmc(cluster: Cluster, host: Node, now_ns: int, told: dict[str, dict[str, str]]) -> None:
    row = DeviceRow(
        cluster.pk, "bmc", f"bmc-{host.name}", host.pk, "redfish", "ok", host.name, now_ns, "e", now_ns,
        packed(told),
    )  # fmt: skip
    device_readings.put([row], now_ns)


OPTICS: dict[str, Any] = {"port/mlx5_0/1": {"serial": "MT2231VS00877", "part_number": "MMA4Z00"}}
PSU: dict[str, Any] = {"psu/1": {"serial": "PSU-77-1", "model": "3kW"}}


def places() -> list[tuple[str, str, str, str]]:
    rows = PartPlacement.objects.filter(until__isnull=True).select_related("part").order_by("slot")
    return [(row.part.kind, row.part.serial, row.host, row.slot) for row in rows]


def test_nodes_and_their_bmcs_tell_parts_of_one_host(cluster: Cluster, valkey: object) -> None:
    now_ns = time.time_ns()
    host = node(cluster, "n1", now_ns, OPTICS)
    bmc(cluster, host, now_ns, PSU)
    assert parts.look(cluster.pk, now_ns).told == 2
    assert places() == [
        ("optics", "MT2231VS00877", "n1", "port/mlx5_0/1"), ("psu", "PSU-77-1", "n1", "psu/1"),
    ]  # fmt: skip
    assert Part.objects.get(kind="optics").model == "MMA4Z00"


def test_an_old_word_says_nothing_and_removes_nothing(cluster: Cluster, valkey: object) -> None:
    now_ns = time.time_ns()
    node(cluster, "n1", now_ns, OPTICS)
    parts.look(cluster.pk, now_ns)
    assert parts.look(cluster.pk, now_ns + 3_600 * SECOND).told == 0
    assert len(places()) == 1


def test_the_task_looks_at_each_cluster_once(cluster: Cluster, valkey: object) -> None:
    node(cluster, "n1", time.time_ns(), OPTICS)
    assert tasks.look_at_cluster_parts(cluster.pk) and len(places()) == 1
    assert tasks.look_at_parts.name == schedule.PARTS_TASK


def test_a_serial_is_found_shown_and_told_over_rest(cluster: Cluster, valkey: object, client: Client) -> None:
    now_ns = time.time_ns()
    node(cluster, "n1", now_ns, OPTICS)
    parts.look(cluster.pk, now_ns)
    client.force_login(User.objects.create_user("olga", password="x", role="operator"))
    part = Part.objects.get()
    found = client.get("/search", {"q": "mt2231vs"})
    assert found.headers["Location"] == f"/parts/{part.pk}"
    page = client.get(f"/parts/{part.pk}").content.decode()
    assert "MT2231VS00877" in page and "/nodes/n1?cluster=" in page and "there as far as we know" in page
    assert "MT2231VS00877" in client.get("/parts", {"kind": "optics"}).content.decode()
    assert "MT2231VS00877" in client.get("/nodes/n1").content.decode()
    told = client.get("/api/v1/parts", {"serial": "MT2231VS00877", "host": "n1"}).json()["results"]
    assert [one["id"] for one in told] == [part.pk]
    assert client.get("/api/v1/parts", {"host": "n2"}).json()["results"] == []
    one = client.get(f"/api/v1/parts/{part.pk}").json()
    assert (one["kind"], one["placements"][0]["slot"], one["incidents"]) == ("optics", "port/mlx5_0/1", [])
    assert client.get("/api/v1/parts/999999").status_code == 404
