"""Groups and their recorder numbers, with torch's table played by plain objects."""

from __future__ import annotations

import weakref
from types import SimpleNamespace
from typing import Any

import pytest

from collectors.hook.groups import NEVER, Group, GroupTable, backend_kinds, operations
from collectors.hook.recorder import Recorder, Status
from collectors.hook.watch import Operations, Watch


class Handle:
    """Stands for torch's ProcessGroup."""

    def __init__(self, desc: str, operations: int = 0) -> None:
        self.group_desc = desc
        self.operations = operations

    def _get_sequence_number_for_group(self) -> int:
        if self.operations < 0:
            raise RuntimeError("this backend does not count")
        return self.operations


class World:
    """Stands for torch's table of groups."""

    def __init__(self) -> None:
        self.pg_map: dict[Handle, tuple[str, None]] = {}
        self.pg_names: dict[Handle, str] = {}
        self.pg_group_ranks: dict[Handle, dict[int, int]] = {}
        self.default_pg: Handle | None = None

    def add(self, name: str, ranks: list[int], backend: str = "gloo", operations: int = 0) -> Handle:
        handle = Handle(f"desc {name}", operations)
        self.pg_map[handle] = (backend, None)
        self.pg_names[handle] = name
        self.pg_group_ranks[handle] = {rank: place for place, rank in enumerate(ranks)}
        self.default_pg = self.default_pg or handle
        return handle

    def clear(self) -> None:
        self.__init__()  # type: ignore[misc]


def make() -> tuple[World, GroupTable]:
    world = World()
    return world, GroupTable(SimpleNamespace(_world=world))


def recorder(name: str, names: dict[int, str]) -> Recorder:
    import json

    entries = [{"pg_id": number, "process_group": [text, ""]} for number, text in names.items()]
    return Recorder(name, lambda **_: b"", lambda **_: json.dumps({"entries": entries}).encode())


def numbers(table: GroupTable) -> dict[str, dict[str, int]]:
    return {group.name: group.numbers for group in table.groups}


def test_groups_are_numbered_as_their_backends_are_made() -> None:
    world, table = make()
    world.add("0", [0, 1, 2, 3])
    world.add("3", [2, 0])
    assert table.refresh()
    assert numbers(table) == {"0": {"generic": 0}, "3": {"generic": 1}}
    assert [group.ranks for group in table.groups] == [[0, 1, 2, 3], [2, 0]]
    assert not table.refresh()


def test_each_kind_of_backend_counts_for_itself() -> None:
    world, table = make()
    world.add("0", [0, 1], "cpu:gloo,cuda:nccl")
    world.add("1", [0, 1], "nccl")
    world.add("2", [0, 1], "gloo")
    table.refresh()
    assert numbers(table) == {
        "0": {"generic": 0, "nccl": 0},
        "1": {"nccl": 1},
        "2": {"generic": 1},
    }


def test_numbers_go_on_in_a_second_world_and_indexes_start_again() -> None:
    world, table = make()
    world.add("0", [0, 1])
    table.refresh()
    world.clear()
    assert table.refresh() and table.groups == []
    world.add("0", [0, 1])
    table.refresh()
    assert numbers(table) == {"0": {"generic": 1}}
    assert table.groups[0].index == 0


def test_the_ring_corrects_a_number_that_a_wrapper_backend_took() -> None:
    world, table = make()
    world.add("0", [0, 1])
    world.add("1", [0, 1])
    table.refresh()
    status: Status = {0: (3, 3), 2: (5, 4)}
    assert table.confirm(recorder("generic", {0: "0", 2: "1"}), status)
    assert numbers(table)["1"] == {"generic": 2}
    assert not table.confirm(recorder("generic", {0: "0", 2: "1"}), status)
    assert table.progress({"generic": status}, {}) == [[0, 3, 3, 0], [1, 5, 4, 0]]


def test_a_full_ring_is_not_read_outside_a_capture() -> None:
    world, table = make()
    world.add("0", [0, 1])
    table.refresh()

    def never(**_: Any) -> bytes:
        raise AssertionError("read")

    assert not table.confirm(Recorder("generic", never, never), {0: (2_000, 2_000)})


def test_sequence_on_gloo_leaves_sends_out() -> None:
    world, table = make()
    world.add("0", [0, 1], operations=10)
    world.add("1", [0, 1], operations=7)
    table.refresh()
    rows = table.progress({}, {"": 3, "1": 2})
    assert [row[3] for row in rows] == [7, 5]
    assert [row[3] for row in table.progress({}, None)] == [NEVER, NEVER]


def test_sequence_on_nccl_counts_collectives_itself() -> None:
    world, table = make()
    world.add("0", [0, 1], "nccl", operations=10)
    table.refresh()
    assert table.progress({}, None) == [[0, 0, 0, 10]]


def test_a_backend_that_does_not_count_is_unknown() -> None:
    world, table = make()
    world.add("0", [0, 1], "ucc", operations=-1)
    table.refresh()
    assert table.progress({}, {})[0][3] == NEVER


def test_a_torch_that_keeps_its_table_elsewhere_has_no_groups() -> None:
    table = GroupTable(SimpleNamespace())
    assert not table.refresh() and table.groups == []


def test_a_group_is_let_go_when_torch_lets_go() -> None:
    world, table = make()
    world.add("0", [0, 1], operations=4)
    table.refresh()
    world.clear()
    assert table.groups[0].operations() == NEVER


def test_kinds_of_a_backend() -> None:
    assert backend_kinds("cpu:gloo,cuda:nccl") == ["gloo", "nccl"]
    assert backend_kinds("gloo") == ["gloo"]
    assert backend_kinds("cpu:gloo,cuda:gloo") == ["gloo"]
    assert backend_kinds("") == []


# --- counts of groups ------------------------------------------------------------------------------------


KEPT: list[Handle] = []


def counting(made: int, backend: str = "gloo", name: str = "7", is_default: bool = False) -> Group:
    KEPT.append(Handle("", made))
    gloo = "gloo" in backend
    return Group(0, name, "", backend, [0, 1], weakref.ref(KEPT[-1]), is_default, is_gloo=gloo, blocks=gloo)


def test_sends_and_receives_are_among_the_calls_that_gloo_counts() -> None:
    watch = Watch()
    watch.calls, watch.p2p_count = {"": 3, "0": 1, "7": 2}, {"7": 4}
    found = operations([counting(4, name="0", is_default=True), counting(6)], watch, is_timed=True)
    assert found == Operations(10, 10)


@pytest.mark.parametrize(
    ("groups", "is_timed"),
    [
        ([counting(5, "nccl")], True),
        ([counting(5), counting(5, "nccl")], True),
        ([counting(NEVER)], True),
        ([counting(5)], False),
    ],
)
def test_waiting_cannot_be_told_where_a_backend_does_not_block_or_count(
    groups: list[Group], is_timed: bool
) -> None:
    assert operations(groups, Watch(), is_timed).seen is None
