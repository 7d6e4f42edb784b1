"""One row per node: the newest look of everything it has, with its true age."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from django.db import connection

from clusterwatch.store import node_readings, partitions
from clusterwatch.store.node_readings import NodeRow, latest
from collectors.wire import readings
from tests.collectors.wire.samples import TABLE

pytestmark = pytest.mark.django_db
NOW_NS = 1_800_000_000 * 10**9
S = 10**9


def row(
    node: int = 1, t_ns: int = NOW_NS, epoch: str = "e1", sequence: int = 1, power: float = 1.0
) -> NodeRow:
    table = msgspec.structs.replace(TABLE, value=[power, None, 7, 0])
    return NodeRow(node, 5, t_ns, epoch, sequence, readings.pack(table))


def put(*rows: NodeRow, received_ns: int = NOW_NS) -> None:
    node_readings.put(rows, received_ns)


def power(node: int = 1) -> Any:
    found = latest(node, NOW_NS)
    return None if found is None else found.entities["gpu/GPU-0"][0].value


def test_values_come_back_by_entity_with_unit_reason_source_and_labels() -> None:
    put(NodeRow(1, 5, NOW_NS - 4 * S, "e1", 9, readings.pack(TABLE)), received_ns=NOW_NS - 3 * S)
    found = latest(1, NOW_NS)
    assert found is not None
    assert list(found.entities) == ["gpu/GPU-0", "nic/eth2"]
    good, lost = found.entities["gpu/GPU-0"]
    assert (good.metric, good.value, good.unit, good.quality) == ("power_w", 312.5, "w", "ok")
    assert (lost.value, lost.quality, lost.labels) == (None, "lost", {"gpu_instance": "3"})
    total, link = found.entities["nic/eth2"]
    assert (total.value, total.quality, total.unit) == (2**63 + 5, "first_sample", "total")
    assert (link.value, link.unit, link.source) == (0, "count", "ethernet")
    assert found.left_out == 2


def test_an_age_is_that_of_the_look_and_not_of_the_record() -> None:
    put(NodeRow(1, 5, NOW_NS - 4 * S, "e1", 9, readings.pack(TABLE)), received_ns=NOW_NS - 3 * S)
    found = latest(1, NOW_NS)
    assert found is not None
    assert found.age_s == 4.0
    ethernet, gpu, mounts = found.sources
    assert (ethernet.age_s, ethernet.stale) == (4.25, False)
    assert (gpu.age_s, gpu.state, gpu.stale) == (75.5, "hangs since 5 s or more", False)
    assert (mounts.age_s, mounts.stale) == (None, True)
    later = latest(1, NOW_NS + 50 * S)
    assert later is not None
    assert later.sources[1].stale, "120 s are more than 90 s and two periods of 10 s"
    assert [value.stale for value in later.entities["gpu/GPU-0"]] == [True, True]
    assert [value.stale for value in later.entities["nic/eth2"]] == [False, False]


def test_a_clock_that_runs_ahead_makes_nothing_look_fresh() -> None:
    put(row(t_ns=NOW_NS + 300 * S), received_ns=NOW_NS - 200 * S)
    found = latest(1, NOW_NS)
    assert found is not None
    assert found.age_s == 200.0


def test_a_record_that_lay_in_the_spool_is_as_old_as_its_making() -> None:
    put(row(t_ns=NOW_NS - 3_600 * S), received_ns=NOW_NS)
    found = latest(1, NOW_NS)
    assert found is not None
    assert found.age_s == 3_600.0


def test_a_row_never_goes_back_in_its_own_spool_whatever_the_clock_says() -> None:
    put(row(sequence=8, power=8.0))
    put(row(sequence=7, power=7.0, t_ns=NOW_NS + S))
    assert power() == 8.0
    put(row(sequence=9, power=9.0, t_ns=NOW_NS - 3_600 * S))
    assert power() == 9.0, "the node's clock was set back: its numbers still rise"


def test_a_new_spool_replaces_the_old_one_and_an_older_copy_does_not() -> None:
    put(row(sequence=900, power=1.0))
    put(row(epoch="e2", sequence=1, power=2.0, t_ns=NOW_NS + S))
    assert power() == 2.0
    put(row(epoch="e0", sequence=50, power=3.0, t_ns=NOW_NS - S))
    assert power() == 2.0


@pytest.mark.parametrize("turned", [False, True])
def test_of_several_records_in_one_commit_the_newest_stays(turned: bool) -> None:
    told = [row(sequence=n, power=float(n)) for n in (1, 2, 3)] + [row(node=2, power=20.0)]
    put(*(reversed(told) if turned else told))
    assert (power(1), power(2)) == (3.0, 20.0)


def test_many_nodes_cost_one_row_each() -> None:
    for number in range(3):
        put(*(row(node=node, sequence=number) for node in range(300)))
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM node_readings")
        assert cursor.fetchone() == (300,)


def test_a_node_that_never_sent_any_has_none() -> None:
    assert latest(404, NOW_NS) is None


def test_maintenance_drops_what_a_node_said_that_was_not_heard_for_a_month() -> None:
    put(row(node=1), received_ns=NOW_NS - 31 * 86_400 * S)
    put(row(node=2), received_ns=NOW_NS - 29 * 86_400 * S)
    partitions.maintain(NOW_NS)
    assert latest(1, NOW_NS) is None
    assert latest(2, NOW_NS) is not None


@pytest.mark.parametrize(
    ("metric", "unit"),
    [
        ("rx_bytes_per_s", "bytes_per_s"), ("read_ops_per_s", "per_s"), ("pcie_speed_gts", "gts"),
        ("raw_ber_ratio", "ratio"), ("carrier_changes_delta_count", "delta_count"), ("read_rtt_s", "s"),
        ("temperature_c", "c"), ("nonsense", None), ("w", None),
    ],
)  # fmt: skip
def test_a_unit_is_what_the_name_ends_with(metric: str, unit: str | None) -> None:
    assert node_readings.unit_of(metric) == unit
