"""Columns on the wire: what is packed comes back, and what cannot be a trace is refused."""

from __future__ import annotations

from array import array
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.formats.columns import NULL, Entries, Signature, TraceColumns, check, pack, unpack
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
