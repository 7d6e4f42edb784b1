"""Evidence of any shape becomes a bounded table."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from clusterwatch.web.payloads import CELL_MAX_CHARS, COLUMNS_MAX, ROWS_MAX, payload_table

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=300),
    lambda inner: st.lists(inner, max_size=30) | st.dictionaries(st.text(max_size=20), inner, max_size=12),
    max_leaves=40,
)


@given(JSON)
def test_whatever_comes_the_table_is_bounded(payload: object) -> None:
    table = payload_table(payload)
    assert len(table.rows) <= ROWS_MAX
    assert all(len(row) <= max(COLUMNS_MAX, 2) for row in table.rows)
    assert all(len(cell) <= CELL_MAX_CHARS for row in table.rows for cell in row)


def test_a_list_of_objects_has_a_head_and_leaves_empty_columns_out() -> None:
    table = payload_table([{"rank": 1, "exit_code": None}, {"rank": 2, "exit_code": None}])
    assert table.head == ["rank"] and table.rows == [["1"], ["2"]]


def test_rows_beyond_the_bound_are_counted() -> None:
    assert payload_table([{"rank": r} for r in range(100)]).more == 100 - ROWS_MAX


def test_lists_of_ranks_become_runs() -> None:
    assert payload_table({"waiting_ranks": [0, 1, 2, 7]}).rows == [["waiting ranks", "0-2, 7"]]


def test_rows_under_a_known_key_are_the_table_with_the_columns_worth_showing() -> None:
    payload = {
        "counts": {"running": 1},
        "ranks": [{"gpu_uuid": "x", "pid": 7, "rank": 3, "process": "running"}],
    }
    table = payload_table(payload, "process")
    assert table.head == ["rank", "pid", "process"] and table.rows == [["3", "7", "running"]]


def test_signals_of_parts_are_told_as_lines_with_times_of_day() -> None:
    signal = {"kind": "xid", "at_ns": 1_764_720_000 * 10**9, "until_ns": None, "host": "node-a", "code": 79}
    held = {"signal": signal | {"part": "gpu/GPU-7", "text": "Xid 79"}, "told_ns": 1, "over_ns": None}
    table = payload_table({"why": ["x"], "held": [held], "left_out_count": 0}, "signals")
    assert table.head == ["UTC", "text", "host", "part", "kind", "code"]
    assert table.rows == [["2025-12-03 00:00:00", "Xid 79", "node-a", "gpu/GPU-7", "xid", "79"]]


def test_a_moment_that_is_none_is_shown_as_it_came() -> None:
    table = payload_table([{"at_ns": "soon"}, {"at_ns": 2**80}], "cause")
    assert table.rows == [["soon"], [str(2**80)]]


def test_packed_rings_are_told_by_rank_and_size_and_never_poured_out() -> None:
    table = payload_table({"ranks": {"5": "a" * 4096}, "total": 1}, "trace")
    assert table.rows == [["5", "3.0\u202fKiB"]]
