"""Transfers of a job since a moment, from what several nodes told."""

from __future__ import annotations

import time
from typing import Any

import pytest
from django.db import connection

from clusterwatch.store import edge_history, series
from collectors.wire.records import Edges, RankId

pytestmark = pytest.mark.stack

S_NS = 10**9
CLUSTER, JOB = 7, 72
AT_NS = time.time_ns() // S_NS * S_NS - 300 * S_NS


@pytest.fixture(autouse=True)
def _empty(transactional_db: None) -> None:
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE edges, late_minute")


def told(
    rank: int, step: int, *, at_s: int = 0, ops: tuple[str, ...] = ("all_reduce",), **more: Any
) -> Edges:
    columns: dict[str, Any] = {
        "group": [1], "op": [0], "size_bytes": [4_096], "count": [3], "sum_s": [0.75], "min_s": [0.125],
        "p10_s": [0.25], "p50_s": [0.5],
    }  # fmt: skip
    who = RankId("job", rank, more.pop("attempt", 0), more.pop("world", ""))
    return Edges(t_ns=AT_NS + at_s * S_NS, id=who, ops=list(ops), step=[step], **(columns | more))


def store(node: int, *records: Edges) -> None:
    rows = series.Rows()
    for number, record in enumerate(records):
        rows.add_told("edges", (CLUSTER, node, "e"), node * 1_000 + number, JOB, record)
    series.PartitionCache().prepare([("edges", record.t_ns) for record in records])
    rows.write()


def test_rows_come_back_by_step_and_rank_with_the_words_of_all_nodes() -> None:
    store(1, told(1, 11), told(0, 10), told(1, 10, ops=("send", "recv"), op=[1]))
    store(2, told(8, 10, ops=("recv",)))
    found = edge_history.since(JOB, 0, AT_NS)
    assert list(zip(found.step.tolist(), found.rank.tolist(), strict=True)) == [
        (10, 0), (10, 1), (10, 8), (11, 1),
    ]  # fmt: skip
    assert [found.ops[op] for op in found.op] == ["all_reduce", "recv", "recv", "all_reduce"]
    row = (found.group[0], found.size_bytes[0], found.count[0], found.sum_s[0], found.min_s[0])
    assert row == (1, 4_096, 3, 0.75, 0.125)
    assert (found.p10_s[0], found.p50_s[0], found.at_ns[0]) == (0.25, 0.5, AT_NS)
    assert found.is_whole and found.worlds == ("",)


def test_rows_before_the_moment_and_of_other_attempts_are_left_out() -> None:
    store(1, told(0, 9, at_s=-61), told(0, 10, at_s=5), told(0, 11, attempt=1))
    assert edge_history.since(JOB, 0, AT_NS).step.tolist() == [10]
    assert edge_history.since(JOB, 0, AT_NS, AT_NS + 4 * S_NS).step.tolist() == []
    assert edge_history.since(JOB, 1, AT_NS).step.tolist() == [11]
    assert edge_history.since(JOB + 1, 0, AT_NS).ops == ()


def test_worlds_of_a_job_are_told_apart() -> None:
    store(1, told(0, 10, world="actor"), told(0, 10, world="learner"))
    found = edge_history.since(JOB, 0, AT_NS)
    assert found.worlds == ("actor", "learner") and sorted(found.world.tolist()) == [0, 1]


def test_more_than_is_read_at_once_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edge_history, "FRAMES_MAX", 1)
    store(1, told(0, 10))
    store(2, told(1, 11, at_s=1))
    found = edge_history.since(JOB, 0, AT_NS)
    assert not found.is_whole and found.step.tolist() == [10]
