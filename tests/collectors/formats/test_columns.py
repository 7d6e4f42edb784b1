"""Columns on the wire: what is packed comes back, and what cannot be a trace is refused."""

from __future__ import annotations

from array import array
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.formats import flight_recorder
from collectors.formats.columns import (
    NULL,
    Entries,
    Signature,
    TraceColumns,
    check,
    pack,
    unpack,
    within,
    within_plain,
)
from collectors.formats.trace import TraceError, TraceGroup

TIMES = ("record_id", "sequence", "p2p_sequence", "op_id", "created_ns", "started_ns", "completed_ns")


def trace(count: int = 3, **changes: list[int]) -> TraceColumns:
    columns = {name: [NULL] * count for name in TIMES + ("duration_ns", "timeout_ms")}
    columns |= {"group": [0] * count, "signature": [0] * count, "stack": [NULL] * count}
    columns |= {"state": [2] * count, "retired": [1] * count} | changes
    kinds = {name: getattr(Entries(), name).typecode for name in columns}
    entries = Entries(**{name: array(kinds[name], values) for name, values in columns.items()})
    group = TraceGroup("0", "default_pg", (0, 1, 2, 3), 7, 5, None, 4)
    return TraceColumns(1, "2.10", "nccl", (group,), (Signature("barrier"),), (("f (a.py:1)",),), entries)


@given(st.lists(st.integers(NULL, 2**63 - 1), max_size=20), st.sampled_from(TIMES))
def test_what_is_packed_comes_back(values: list[int], name: str) -> None:
    whole = trace(len(values), **{name: values})
    assert unpack(pack(whole)) == whole


@given(
    st.data(),
    st.lists(st.integers(-5, 5) | st.integers(-(2**63), 2**63 - 1), min_size=1),
    st.sampled_from(TIMES),
)
def test_numbers_below_unknown_are_refused_and_no_others(
    data: st.DataObject, values: list[int], name: str
) -> None:
    found = trace(len(values), **{name: data.draw(st.permutations(values))})
    if min(values) < NULL:
        with pytest.raises(TraceError, match=name):
            check(found)
    else:
        check(found)


@pytest.mark.parametrize(
    ("name", "bad"),
    [("group", 1), ("group", -1), ("signature", 1), ("stack", 1), ("stack", -2), ("state", 3), ("state", -1),
     ("retired", 2)],
)  # fmt: skip
def test_an_index_outside_its_table_is_refused(name: str, bad: int) -> None:
    good = trace()
    column = array(getattr(good.entries, name).typecode, getattr(good.entries, name))
    column[1] = bad
    with pytest.raises(TraceError, match=name):
        check(replace(good, entries=replace(good.entries, **{name: column})))


def test_columns_of_unequal_length_are_refused() -> None:
    good = trace()
    with pytest.raises(TraceError, match="unequal"):
        check(replace(good, entries=replace(good.entries, op_id=array("q", [1]))))


@given(st.lists(st.integers(-3, 300) | st.integers(-(2**31), 2**31 - 1), min_size=1), st.integers(1, 400))
def test_indices_are_checked_alike_with_the_compiled_piece_and_without(values: list[int], end: int) -> None:
    for low in (NULL, 0):
        expected = all(low <= value < end for value in values)
        assert within(array("i", values), low, end) == within_plain(array("i", values), low, end) == expected


@given(st.lists(st.integers(-128, 127), min_size=1), st.integers(1, 3))
def test_flags_are_checked_alike_with_the_compiled_piece_and_without(values: list[int], end: int) -> None:
    expected = all(0 <= value < end for value in values)
    assert within(array("b", values), 0, end) == within_plain(array("b", values), 0, end) == expected


@given(st.lists(st.integers(-3, 3) | st.integers(-(2**63), 2**63 - 1), min_size=1))
def test_numbers_are_checked_alike_with_the_compiled_piece_and_without(values: list[int]) -> None:
    expected = min(values) >= NULL
    assert (
        within(array("q", values), NULL, 2**63) == within_plain(array("q", values), NULL, 2**63) == expected
    )


def test_a_column_of_another_type_is_no_column() -> None:
    if flight_recorder.compiled_reader is None:
        pytest.skip("the compiled reader is not built")
    for column in (array("d", [1.0]), array("H", [1]), b"x", memoryview(b"xy")[::2]):
        with pytest.raises((TypeError, BufferError)):
            flight_recorder.compiled_reader.bounds(column)
    with pytest.raises(ValueError, match="empty"):
        flight_recorder.compiled_reader.bounds(array("q"))


def test_equal_tables_of_two_ranks_are_one_object() -> None:
    one, other = unpack(pack(trace())), unpack(pack(replace(trace(), rank=2)))
    assert one.signatures is other.signatures
    assert one.stacks is other.stacks
