"""One row per device: the newest that any poller told, and who it sees at its ports."""

from __future__ import annotations

import pytest
from django.db import connection

from clusterwatch.store import device_readings, partitions
from clusterwatch.store.device_readings import DeviceRow, TooManyDevices, host_of, is_same_host
from clusterwatch.store.models import Device, DeviceNeighbour
from collectors.wire import readings

pytestmark = pytest.mark.django_db
NOW_NS = 1_800_000_000 * 10**9
S = 10**9


def table(*peers: tuple[str, str, str], drops: int = 1) -> readings.Table:
    """A switch whose n-th port sees the n-th peer (name, port, mac)."""
    ports = [f"switchport/leaf-1/Eth{number}" for number in range(1, len(peers) + 1)] or ["switch/leaf-1"]
    labels = [{}, *({"peer": peer, "peer_port": port, "peer_mac": mac} for peer, port, mac in peers)]
    places = list(range(len(peers)))
    word = readings.SourceWord("switch_snmp", "ok", 15.0, 2.0)
    return readings.Table(
        [word], ports, ["tx_discards_total", "neighbour_count"],
        ["ok"], [0, *places], [0, *[1] * len(peers)], [0] * (1 + len(peers)), [0] * (1 + len(peers)),
        [drops, *[1] * len(peers)], labels, [0, *range(1, len(peers) + 1)],
    )  # fmt: skip


def row(told: readings.Table, **changes: object) -> DeviceRow:
    whole = DeviceRow(5, "switch", "leaf-1", 1, "switch_snmp", "ok", "", NOW_NS, "e1", 1, readings.pack(told))
    return whole._replace(**changes)


def drops() -> object:
    found = device_readings.latest(Device.objects.get(name="leaf-1"), NOW_NS)
    return found.entities[next(iter(found.entities))][0].value


def peers() -> list[tuple[str, str]]:
    return list(DeviceNeighbour.objects.order_by("id").values_list("port", "peer_host"))


def test_values_and_neighbours_come_back_with_their_age() -> None:
    device_readings.put(
        [row(table(("GT-7.dc1", "eth2", "AA:BB:CC:00:00:01")), node_name="Gt-9.dc1")], NOW_NS + S
    )
    device = Device.objects.get()
    assert (device.node_host, device.period_s, device.poller) == ("gt-9", 15.0, "switch_snmp")
    found = device_readings.latest(device, NOW_NS + 4 * S)
    assert found.age_s == 4.0 and found.sources[0].age_s == 6.0
    drop, seen = found.entities["switchport/leaf-1/Eth1"]
    assert (drop.value, drop.unit, seen.labels["peer"]) == (1, "total", "GT-7.dc1")
    kept = DeviceNeighbour.objects.get()
    assert (kept.peer_host, kept.peer_port, kept.peer_mac) == ("gt-7", "eth2", "aa:bb:cc:00:00:01")


def test_an_older_word_never_replaces_a_newer_one() -> None:
    device_readings.put([row(table(drops=1), sequence=5)], NOW_NS)
    device_readings.put([row(table(drops=2), sequence=4, t_ns=NOW_NS + 60 * S)], NOW_NS)
    assert drops() == 1, "of one spool the number decides, since a clock may be set back"
    device_readings.put([row(table(drops=3), sequence=1, epoch="e2", t_ns=NOW_NS - S)], NOW_NS)
    assert drops() == 1, "between spools the time decides"
    device_readings.put([row(table(drops=4), sequence=1, node_id=2, t_ns=NOW_NS + S)], NOW_NS)
    assert drops() == 4 and Device.objects.get().node_id == 2, "another node asks it now"
    device_readings.put([row(table(drops=6), sequence=9, node_id=2, t_ns=NOW_NS + 2 * S)], NOW_NS)
    newer = row(table(drops=7), sequence=8, node_id=2)
    device_readings.put([row(table(drops=8), sequence=10, node_id=2), newer], NOW_NS)
    assert drops() == 8, "of several in one transaction the newest"


def test_neighbours_are_replaced_with_their_device_only() -> None:
    device_readings.put([row(table(("gt-1", "a", ""), ("gt-2", "b", "")))], NOW_NS)
    device_readings.put([row(table(("gt-9", "a", "")), name="leaf-2")], NOW_NS)
    before = list(DeviceNeighbour.objects.values_list("id", flat=True))
    device_readings.put([row(table(("gt-1", "a", ""), ("gt-2", "b", ""), drops=9), sequence=2)], NOW_NS)
    assert list(DeviceNeighbour.objects.values_list("id", flat=True)) == before, (
        "the same cables are not written"
    )
    device_readings.put([row(table(("gt-3", "a", "")), sequence=3)], NOW_NS)
    assert [host for _, host in peers()] == ["gt-9", "gt-3"]
    device_readings.put([row(table(), sequence=2)], NOW_NS)
    assert [host for _, host in peers()] == ["gt-9", "gt-3"], "an older word has no say"


def test_a_device_that_gives_no_answer_keeps_its_cables() -> None:
    device_readings.put([row(table(("gt-1", "a", "")))], NOW_NS)
    device_readings.put([row(table(), sequence=2, state="timeout")], NOW_NS)
    assert [host for _, host in peers()] == ["gt-1"] and Device.objects.get().state == "timeout"
    device_readings.put([row(table(), sequence=3)], NOW_NS)
    assert peers() == [], "one that answers and sees nobody has lost them"


def test_the_same_name_in_another_cluster_is_another_device() -> None:
    device_readings.put([row(table(drops=1)), row(table(drops=2), cluster_id=6)], NOW_NS)
    assert Device.objects.count() == 2
    assert Device.objects.filter(cluster_id=6).count() == 1


def test_a_cluster_cannot_be_filled_with_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_readings, "DEVICES_MAX", 2)
    device_readings.put([row(table()), row(table(), name="leaf-2")], NOW_NS)
    with pytest.raises(TooManyDevices, match="2 devices"):
        device_readings.put([row(table(), name="leaf-3")], NOW_NS)
    device_readings.put([row(table(drops=5), sequence=2), row(table(), name="leaf-3", cluster_id=6)], NOW_NS)
    assert drops() == 5, "those that are there go on"


def test_a_device_nobody_speaks_of_is_dropped_after_a_month() -> None:
    device_readings.put([row(table(("gt-1", "a", "")))], NOW_NS)
    device_readings.put([row(table(), name="leaf-2")], NOW_NS + 29 * 86_400 * S)
    partitions.maintain(NOW_NS + 31 * 86_400 * S)
    assert list(Device.objects.values_list("name", flat=True)) == ["leaf-2"]
    assert peers() == []


@pytest.mark.parametrize(
    ("told", "host"),
    [("GT-7.dc1.example", "gt-7"), ("10.0.0.7", "10.0.0.7"), ("AA:BB:CC:00:00:01", "aa:bb:cc:00:00:01"),
     ("fd00::1", "fd00::1"), ("gt7", "gt7")],
)  # fmt: skip
def test_an_address_is_not_shortened_at_its_dots(told: str, host: str) -> None:
    assert host_of(told) == host


def test_two_domains_are_two_hosts() -> None:
    assert is_same_host("gt-7", "GT-7.dc1") and is_same_host("gt-7.dc1", "gt-7.DC1")
    assert not is_same_host("gt-7.dc1", "gt-7.dc2") and not is_same_host("10.0.0.1", "10.0.0.2")


def test_far_ends_are_found_by_an_index() -> None:
    for query in (
        DeviceNeighbour.objects.filter(cluster_id=5, peer_host="gt-7"),
        DeviceNeighbour.objects.filter(cluster_id=5, peer_mac__in=["aa:bb:cc:00:00:01"]),
    ):
        with connection.cursor() as cursor:  # a table of few rows is scanned whatever its indexes are
            cursor.execute("SET LOCAL enable_seqscan = off")
        assert "Index" in query.explain()
