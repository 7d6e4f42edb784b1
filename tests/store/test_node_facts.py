"""Facts of many nodes out of their packed rows."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterwatch.store import binary_reads, node_facts, node_readings, packed_rows
from clusterwatch.store.node_facts import facts_of, of_nodes
from clusterwatch.store.node_readings import NodeRow
from collectors.wire import readings
from tests.web.seed_drift import facts_table

NOW_NS = 1_800_000_000 * 10**9
S = 10**9


def put(node: int, table: readings.Table | bytes, age_s: int = 3) -> None:
    data = table if isinstance(table, bytes) else readings.pack(table)
    t_ns = NOW_NS - age_s * S
    node_readings.put([NodeRow(node, 5, t_ns, "e1", 1, data)], t_ns)


def unpacked(table: readings.Table, sent_s: float = 3.0) -> node_facts.Facts:
    return facts_of(readings.pack(table), sent_s, {})


def test_facts_come_by_entity_and_other_values_do_not() -> None:
    table = facts_table(
        {"host": {"kernel": "6.8", "empty": ""}, "gpu/G": {"vbios": "96"}},
        [("host", "load_count", 3.0, "ok"), ("gpu/G", "power_w", 300.0, "ok")],
    )
    assert unpacked(table) == {"host": {"kernel": "6.8", "empty": ""}, "gpu/G": {"vbios": "96"}}


def test_a_row_without_facts_or_labels_has_none() -> None:
    assert unpacked(facts_table({}, [("host", "load_count", 3.0, "ok")])) == {}
    bare = facts_table({}, [("host", "fact_count", 1.0, "ok")])
    assert unpacked(msgspec.structs.replace(bare, labels=[], label=[])) == {}


@pytest.mark.parametrize(
    ("mask", "lock"), [(0x2, "held by application clocks"), (0, "free"), (0x1, None), (0x4, None)]
)
def test_what_sources_of_gpus_tell_anyway(mask: int, lock: str | None) -> None:
    found = unpacked(
        facts_table(
            {},
            [
                ("gpu/G", "power_limit_w", 699.96, "ok"),
                ("gpu/H", "power_limit_w", None, "lost"),
                ("gpu/G", "throttle_reasons_mask", mask, "ok"),
            ],
        )
    )
    assert found["gpu/G"]["gpu.power_limit_w"] == "700" and "gpu/H" not in found
    assert found["gpu/G"].get("gpu.clock_lock") == lock


def test_what_a_source_said_long_ago_is_not_known_any_more() -> None:
    table = facts_table({"host": {"kernel": "6.8"}}, age_s=85.0)
    assert unpacked(table, 3.0) and not unpacked(table, 30.0), "90 s and two periods of 1 s"


def test_a_node_that_tells_too_much_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_facts, "FACTS_MAX", 5)
    found = unpacked(facts_table({"host": {f"fact-{n}": "x" for n in range(9)}}))
    assert len(found["host"]) == 5


@pytest.mark.django_db
def test_a_node_that_is_gone_or_damaged_is_told_as_that() -> None:
    put(1, facts_table({"host": {"kernel": "6.8"}}))
    put(2, facts_table({"host": {"kernel": "6.8"}}), age_s=200)
    put(3, b"garbage")
    found = {one.node_id: one for one in of_nodes([1, 2, 3, 4], NOW_NS)}
    assert found[1].facts == {"host": {"kernel": "6.8"}} and set(found) == {1, 2, 3}
    assert found[2].is_stale and not found[2].facts
    assert found[3].is_damaged and not found[3].facts


@pytest.mark.django_db
def test_a_clock_that_runs_ahead_does_not_bring_a_node_back() -> None:
    data = readings.pack(facts_table({"host": {"kernel": "6.8"}}))
    node_readings.put([NodeRow(1, 5, NOW_NS + 900 * S, "e1", 1, data)], NOW_NS - 900 * S)
    (one,) = of_nodes([1], NOW_NS)
    assert one.is_stale


@pytest.mark.django_db
def test_many_nodes_cost_one_query_for_each_batch() -> None:
    for node in range(600):
        put(node, facts_table({"host": {"kernel": "6.8"}}))
    asked: list[object] = []
    fetch = binary_reads.fetch

    def counted(query: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        asked.append(parameters)
        return fetch(query, parameters)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(binary_reads, "fetch", counted)
        assert len(list(of_nodes(list(range(600)), NOW_NS))) == 600
    assert len(asked) == 3


@given(st.binary(max_size=200))
def test_any_bytes_are_a_fault_that_is_caught(data: bytes) -> None:
    with contextlib.suppress(*packed_rows.DAMAGED):
        facts_of(data, 1.0, {})
