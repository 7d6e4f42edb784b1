"""Who sat where in a past minute: replaced GPUs, nodes that came later, places that were taken away."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from clusterwatch.fleet.models import Cluster, Node, Slot
from clusterwatch.fleet.slot_history import slots_at

pytestmark = pytest.mark.django_db
BEGIN = datetime(2026, 12, 1, tzinfo=UTC)


def ns(minute: float) -> int:
    return int((BEGIN + timedelta(minutes=minute)).timestamp()) * 10**9


def put(
    cluster: Cluster, node: Node, gpu: int | None, number: int, since: float, until: float | None = None
) -> None:
    slot = Slot.objects.create(cluster=cluster, node=node, gpu_index=gpu, number=number)
    Slot.objects.filter(pk=slot.pk).update(
        since=BEGIN + timedelta(minutes=since),
        until=None if until is None else BEGIN + timedelta(minutes=until),
    )


@pytest.fixture
def cluster() -> Cluster:
    """n0: GPU 0 replaced in minute 10; GPU 1 taken away in minute 30. n1: no GPU, from minute 20."""
    made = Cluster.objects.create(name="tiny", slot_count=4, slots_version=4)
    first = Node.objects.create(cluster=made, name="n0", machine_id="m0")
    second = Node.objects.create(cluster=made, name="n1", machine_id="m1")
    put(made, first, 0, 0, 0, 10.5)
    put(made, first, 0, 2, 10.5)
    put(made, first, 1, 1, 0, 30)
    put(made, second, None, 3, 20)
    return made


def rows(cluster: Cluster, minute: int) -> list[list[int]]:
    table = slots_at(cluster.pk, ns(minute))
    assert (table.slot_count, table.slots_version) == (4, 4)
    assert table.node_id.tolist() == sorted(Node.objects.values_list("pk", flat=True))
    return [list(row) for row in table.numbers.tolist()]


def test_a_replaced_gpu_has_its_old_slot_before_and_its_new_one_from_that_minute(cluster: Cluster) -> None:
    assert rows(cluster, 9)[0] == [0, 1]
    assert rows(cluster, 10)[0] == [2, 1]
    assert rows(cluster, 29)[0] == [2, 1]


def test_a_place_that_was_taken_away_has_none_and_the_others_close_up(cluster: Cluster) -> None:
    assert rows(cluster, 30) == [[2], [3]]


def test_a_first_slot_counts_for_all_time_before_it(cluster: Cluster) -> None:
    assert rows(cluster, -5) == [[0, 1], [3, -1]]


def test_a_cluster_without_slots_has_an_empty_table() -> None:
    empty = Cluster.objects.create(name="empty")
    assert slots_at(empty.pk, ns(0)).numbers.shape == (0, 0)
