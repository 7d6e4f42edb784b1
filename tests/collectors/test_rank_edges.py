"""Calls that hooks tell, from a message of theirs to a record."""

from __future__ import annotations

from typing import Any

import pytest

from collectors import hook_messages as messages
from collectors.hook import protocol
from collectors.wire import codec, limits, records
from tests.collectors.test_ranks import Node

FRAME: dict[str, Any] = {
    "k": "edges", "t_ns": 5, "ops": ["all_reduce", "send"], "step": [8, 8], "group": [0, 3], "op": [0, 1],
    "size_bytes": [4096, 64], "count": [12, 2], "sum_s": [0.5, 0.02], "min_s": [0.03, 0.01],
    "p10_s": [0.03, 0.01], "p50_s": [0.04, 0.01],
}  # fmt: skip


def read(**changes: Any) -> Any:
    ((kind, message), _blob), = messages.Reader().feed(protocol.pack(FRAME | changes))
    assert kind == "edges"
    return message


@pytest.mark.parametrize(
    "changes",
    [
        {"step": [8]},
        {"p50_s": [0.1]},
        {"op": [0, 2]},
        {"op": [0, -1]},
        {"min_s": [0.03, -0.01]},
        {"sum_s": [0.5, 86_401.0]},
        {"sum_s": ["0.5", 0.1]},
        {"count": [12, -1]},
        {"size_bytes": [4096, 2**60]},
        {"group": [0, limits.GROUPS_PER_RANK_MAX]},
        {"ops": ["x" * 256, "send"]},
        {"ops": [f"op{number}" for number in range(limits.EDGE_OPS_MAX + 1)]},
        {name: FRAME[name] * 2_000 for name in FRAME if name not in ("k", "t_ns", "ops")},
    ],
)
def test_what_no_hook_would_say_costs_the_connection(changes: dict[str, Any]) -> None:
    read()
    with pytest.raises(protocol.ProtocolError):
        read(**changes)


def test_a_number_that_is_none_costs_the_connection() -> None:
    frame = protocol.pack(FRAME | {"sum_s": [float("nan"), 0.02]})
    with pytest.raises(protocol.ProtocolError):
        messages.Reader().feed(frame)


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Node:
    return Node(monkeypatch)


def told(node: Node) -> list[records.Edges]:
    return [record for record in node.emitted if isinstance(record, records.Edges)]


def test_they_leave_with_the_steps_as_one_record_whose_ops_are_named_once(node: Node) -> None:
    node.table.add_edges(node.rank, read())
    node.table.add_edges(node.rank, read(ops=["send", "barrier"], step=[16, 16]))
    assert told(node) == []
    node.table.flush_all_steps()
    (record,) = told(node)
    assert record.id == node.rank.id and record.t_ns == node.at_ns
    assert record.ops == ["all_reduce", "send", "barrier"]
    assert (record.step, record.op) == ([8, 8, 16, 16], [0, 1, 1, 2])
    assert record.group == [0, 3, 0, 3] and record.count == [12, 2, 12, 2]
    assert codec.decode_record(codec.encode(record)) == record
    node.table.flush_all_steps()
    assert len(told(node)) == 1


def test_many_of_them_leave_before_the_record_grows_too_large(node: Node) -> None:
    columns = {name: FRAME[name] * 1_000 for name in FRAME if name not in ("k", "t_ns", "ops")}
    for _ in range(5):
        node.table.add_edges(node.rank, read(**columns))
    node.table.flush_all_steps()
    assert [len(record.step) for record in told(node)] == [4_000, 4_000, 2_000]
    assert all(len(codec.encode(record)) < limits.RECORD_MAX_BYTES for record in told(node))


def test_a_hook_that_always_finds_new_ops_fills_no_record(node: Node) -> None:
    for number in range(40):
        node.table.add_edges(node.rank, read(ops=[f"a{number}", f"b{number}"]))
    node.table.flush_all_steps()
    assert sum(len(record.step) for record in told(node)) == 80
    assert max(len(record.ops) for record in told(node)) == limits.EDGE_OPS_MAX


def test_what_a_rank_told_before_a_new_world_is_not_lost(node: Node) -> None:
    node.table.add_edges(node.rank, read())
    node.table.hello(node.rank.pid, messages.Hello(v=1, rank=3, world_size=8, job="j", world="w#1"))
    (record,) = told(node)
    assert record.id.world == ""
