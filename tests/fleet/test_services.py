"""Slots: one per GPU, never reused, with a history."""

from __future__ import annotations

from typing import Any

import pytest

from clusterwatch.fleet.models import Cluster, Node, Slot
from clusterwatch.fleet.queries import open_slots, slots_of_node
from clusterwatch.fleet.services import ensure_cluster, register_node
from collectors.wire.records import GpuIdentity, Hello, LaneNext

pytestmark = pytest.mark.django_db


@pytest.fixture
def cluster() -> Cluster:
    return ensure_cluster("tiny")


def hello(node: str, *uuids: str | None, **more: Any) -> Hello:
    return Hello(
        version="1.0",
        cluster="tiny",
        node=node,
        machine_id=f"m-{node}",
        boot_id="b",
        epoch="e",
        agent_version="1",
        t_ns=1,
        next=LaneNext(1, 1),
        gpus=[GpuIdentity(index, uuid) for index, uuid in enumerate(uuids)],
        **more,
    )


def test_each_gpu_gets_a_slot_and_a_node_without_any_gets_one(cluster: Cluster) -> None:
    assert register_node(cluster, hello("a", "u1", "u2")).slots == (0, 1)
    assert register_node(cluster, hello("b")).slots == (2,)
    assert Cluster.objects.get().slot_count == 3


def test_the_same_hello_gives_the_same_slots(cluster: Cluster) -> None:
    register_node(cluster, hello("a", "u1", "u2"))
    version = Cluster.objects.get().slots_version
    assert register_node(cluster, hello("a", "u1", "u2", rack="r7")).slots == (0, 1)
    assert Cluster.objects.get().slots_version == version
    assert Node.objects.get().rack == "r7"


def test_a_changed_gpu_closes_its_slot_and_gets_a_new_number(cluster: Cluster) -> None:
    place = register_node(cluster, hello("a", "u1", "u2"))
    assert register_node(cluster, hello("a", "u1", "NEW")).slots == (0, 2)
    history = slots_of_node(place.node_id, closed=True)
    assert [(s.number, s.gpu_uuid, s.until is None) for s in history] == [
        (0, "u1", True), (1, "u2", False), (2, "NEW", True),
    ]  # fmt: skip
    assert [slot.number for slot in open_slots(cluster.pk)] == [0, 2]


def test_a_gpu_that_left_closes_its_slot_and_its_number_is_never_given_again(cluster: Cluster) -> None:
    register_node(cluster, hello("a", "u1", "u2"))
    assert register_node(cluster, hello("a", "u1")).slots == (0,)
    assert register_node(cluster, hello("a", "u1", "u2")).slots == (0, 2)


def test_a_driver_that_forgot_its_gpus_or_their_names_changes_no_slot(cluster: Cluster) -> None:
    register_node(cluster, hello("a", "u1", "u2"))
    assert register_node(cluster, hello("a")).slots == (0, 1)
    assert register_node(cluster, hello("a", None, None)).slots == (0, 1)
    assert not Slot.objects.filter(until__isnull=False).exists()


def test_a_node_that_gets_its_first_gpus_leaves_its_own_slot(cluster: Cluster) -> None:
    assert register_node(cluster, hello("a")).slots == (0,)
    assert register_node(cluster, hello("a", "u1")).slots == (1,)


def test_what_a_hello_does_not_know_stays(cluster: Cluster) -> None:
    register_node(cluster, hello("a", rack="r1", cpu_count=8))
    register_node(cluster, hello("a"))
    node = Node.objects.get()
    assert (node.rack, node.cpu_count) == ("r1", 8)


def test_a_cluster_is_simulated_or_not_for_ever(cluster: Cluster) -> None:
    with pytest.raises(ValueError, match="not simulated"):
        ensure_cluster("tiny", simulated=True)
