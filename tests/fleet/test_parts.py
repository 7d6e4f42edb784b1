"""Parts keep their history by serial: moved, replaced, told twice; what is no serial makes no part."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pytest_django import DjangoAssertNumQueries

from clusterwatch.fleet import part_history, parts
from clusterwatch.fleet.models import Cluster, Part
from clusterwatch.fleet.parts import Seen, Taken

NOW = datetime(2026, 12, 3, 9, tzinfo=UTC)


@pytest.fixture
def cluster(db: None) -> Cluster:
    return Cluster.objects.create(name="lab")


def gpu(serial: str, host: str = "a", index: int = 0) -> Seen:
    return Seen("gpu", serial, host, f"gpu/{index}", gpu_uuid=f"GPU-{serial}", model="H100")


def take(cluster: Cluster, seen: Iterable[Seen], minutes: int = 0) -> Taken:
    return parts.take(cluster.pk, seen, NOW + timedelta(minutes=minutes))


def history(serial: str) -> list[tuple[str, str, str, bool]]:
    part = Part.objects.get(serial=serial)
    return [(one.host, one.slot, one.ended, one.until is None) for one in part_history.placements(part)]


def test_a_part_stays_one_while_it_is_told_from_one_place(cluster: Cluster) -> None:
    assert take(cluster, [gpu("1650001")]) == Taken(told=1, begun=1, ended=0, twice=0, no_serials=0)
    assert take(cluster, [gpu("1650001")], minutes=5) == Taken(1, 0, 0, 0, 0)
    take(cluster, [gpu("1650001")], minutes=40)
    (placed,) = part_history.placements(Part.objects.get())
    assert (placed.since, placed.seen_at) == (NOW, NOW + timedelta(minutes=40))


def test_a_replaced_part_ends_where_another_serial_sits(cluster: Cluster) -> None:
    take(cluster, [gpu("1650001")])
    assert take(cluster, [gpu("1650002")], minutes=5).ended == 1
    assert history("1650001") == [("a", "gpu/0", "replaced", False)]
    assert history("1650002") == [("a", "gpu/0", "", True)]
    assert part_history.replaced_since(cluster.pk, "a", "gpu/0", NOW) == 1
    (other,) = part_history.others_in_place(part_history.placements(Part.objects.get(serial="1650002"))[0])
    assert other.part.serial == "1650001"


def test_a_part_that_shows_up_elsewhere_has_moved(cluster: Cluster) -> None:
    take(cluster, [gpu("1650001")])
    take(cluster, [gpu("1650001", "b", 3)], minutes=5)
    assert history("1650001") == [("b", "gpu/3", "", True), ("a", "gpu/0", "moved", False)]


def test_two_parts_that_change_places_are_two_histories(cluster: Cluster) -> None:
    take(cluster, [gpu("1650001"), gpu("1650002", "b")])
    take(cluster, [gpu("1650002"), gpu("1650001", "b")], minutes=5)
    assert [row[:2] for row in history("1650001")] == [("b", "gpu/0"), ("a", "gpu/0")]
    assert [row[:2] for row in history("1650002")] == [("a", "gpu/0"), ("b", "gpu/0")]


def test_what_is_not_told_any_more_is_last_seen_and_not_gone(cluster: Cluster) -> None:
    take(cluster, [gpu("1650001"), gpu("1650002", "b")])
    assert take(cluster, [gpu("1650002", "b")], minutes=500).ended == 0
    (placed,) = part_history.placements(Part.objects.get(serial="1650001"))
    assert (placed.until, placed.seen_at) == (None, NOW)


def test_a_serial_told_in_two_places_at_once_is_said(cluster: Cluster) -> None:
    assert take(cluster, [gpu("1650001"), gpu("1650001", "b")]).twice == 1
    assert [row[3] for row in history("1650001")] == [True, True]


def test_of_two_places_the_one_that_falls_silent_ends_nothing(cluster: Cluster) -> None:
    take(cluster, [gpu("1650001"), gpu("1650001", "b")])
    assert take(cluster, [gpu("1650001")], minutes=5).ended == 0
    assert take(cluster, [gpu("1650001"), gpu("1650001", "b")], minutes=10).begun == 0
    assert len(history("1650001")) == 2


def test_a_place_that_stood_empty_in_between_was_refilled(cluster: Cluster) -> None:
    take(cluster, [gpu("1650001")])
    take(cluster, [gpu("1650001", "b")], minutes=5)
    take(cluster, [gpu("1650001", "b"), gpu("1650002")], minutes=10)
    assert part_history.replaced_since(cluster.pk, "a", "gpu/0", NOW) == 1
    assert part_history.replaced_since(cluster.pk, "b", "gpu/0", NOW) == 0


def test_a_gpu_known_by_its_uuid_first_keeps_its_history(cluster: Cluster) -> None:
    by_uuid = Seen("gpu", "GPU-1650001", "a", "gpu/0", gpu_uuid="GPU-1650001")
    take(cluster, [by_uuid])
    assert take(cluster, [gpu("1650001")], minutes=5) == Taken(1, 0, 0, 0, 0)
    assert take(cluster, [by_uuid], minutes=10) == Taken(1, 0, 0, 0, 0)
    assert Part.objects.get().serial == "1650001"


def test_one_text_on_many_parts_is_no_serial(cluster: Cluster) -> None:
    told = [gpu("VENDOR-SN", host) for host in "abcdef"]
    assert take(cluster, [*told, gpu("1650001", "z")]) == Taken(1, 1, 0, 0, 6)
    assert list(Part.objects.values_list("serial", flat=True)) == ["1650001"]


@pytest.mark.parametrize(
    "text", ["", "  ", "0", "000000", "N/A", "None", "Not Specified", "abc", "x" * 65, "12\x0034", "-----"]
)
def test_what_is_no_serial_makes_no_part(text: str) -> None:
    assert parts.clean_serial(text) is None


@given(st.text(max_size=200))
def test_any_text_is_a_serial_or_none(text: str) -> None:
    told = parts.clean_serial(text)
    assert told is None or (4 <= len(told) <= 64 and told.isprintable() and told == told.strip())


@pytest.mark.parametrize(
    ("slot", "part", "kind"),
    [
        ("gpu/3", "", "gpu"), ("port/mlx5_0/1", "", "optics"), ("nic/eth0", "", "optics"),
        ("psu/1", "", "psu"), ("bmc/n1", "GPU_SXM_1", "gpu_sxm"), ("", "", "part"), ("x" * 80, "", "x" * 20),
    ],
)  # fmt: skip
def test_the_kind_is_told_by_the_place(slot: str, part: str, kind: str) -> None:
    assert parts.kind_of(slot, part) == kind


def test_a_serial_of_two_clusters_is_two_parts(cluster: Cluster) -> None:
    twin = Cluster.objects.create(name="twin")
    take(cluster, [gpu("1650001")])
    take(twin, [gpu("1650001")])
    assert Part.objects.count() == 2 and {row.until for row in part_history.at(cluster.pk, "a")} == {None}


def test_many_parts_cost_few_queries(
    cluster: Cluster, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    told = [gpu(f"16{number:06}", f"n{number // 8}", number % 8) for number in range(1_600)]
    with django_assert_max_num_queries(8):
        take(cluster, told)
    with django_assert_max_num_queries(8):
        assert take(cluster, told, minutes=5).begun == 0
