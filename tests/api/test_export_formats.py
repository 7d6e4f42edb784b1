"""Tables as files: what is read back is what was written, nothing made up where a number is missing."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator

import numpy as np
import pytest

from clusterwatch.api import export_formats
from clusterwatch.api.export_formats import ParquetMissing, Part, Table

COLUMNS = ("t_ns", "node", "gpu", "mean", "total")


def part(first_s: int, *nodes: str) -> Part:
    count = len(nodes)
    return {
        "t_ns": (first_s + np.arange(count)) * 10**9,
        "node": np.array(nodes, object),
        "gpu": np.array([np.nan, *range(1, count)], np.float64),
        "mean": np.array([np.nan, *[612.3] * (count - 1)], np.float32),
        "total": np.array([2**40 + n for n in range(count)], np.int64),
    }


def table(*parts: Part) -> Table:
    return Table("t", COLUMNS, parts)


def text(made: Table, kind: str) -> str:
    return b"".join(export_formats.written(made, kind)).decode()


def test_csv_has_empty_fields_where_there_is_no_number_and_runs_no_formula() -> None:
    rows = list(csv.reader(io.StringIO(text(table(part(0, "n,1", "=cmd()"), part(60, "@x")), "csv"))))
    assert rows == [
        ["time", "node", "gpu", "mean", "total"],
        ["1970-01-01T00:00:00Z", "n,1", "", "", str(2**40)],
        ["1970-01-01T00:00:01Z", "'=cmd()", "1", "612.3", str(2**40 + 1)],
        ["1970-01-01T00:01:00Z", "'@x", "", "", str(2**40)],
    ]


@pytest.mark.parametrize("sizes", [[], [0], [0, 2], [1, 0, 1]])
def test_json_is_whole_whatever_the_parts(sizes: list[int]) -> None:
    parts = [
        {name: column[:size] for name, column in part(60 * place, "a", "b").items()}
        for place, size in enumerate(sizes)
    ]
    body = json.loads(text(table(*parts), "json"))
    assert body["columns"] == ["time", *COLUMNS[1:]] and len(body["rows"]) == sum(sizes)


def test_json_has_null_where_there_is_no_number() -> None:
    body = json.loads(text(table(part(0, "a", "b")), "json"))
    assert body["rows"] == [
        ["1970-01-01T00:00:00Z", "a", None, None, 2**40],
        ["1970-01-01T00:00:01Z", "b", 1, 612.3, 2**40 + 1],
    ]


def test_parquet_has_types_and_nulls_and_gathers_small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export_formats, "GROUP_ROWS", 3)
    parquet = pytest.importorskip("pyarrow.parquet", reason="the extra `parquet` is not installed")
    data = b"".join(export_formats.written(table(part(0, "a", "b"), part(60, "c"), part(90, "d")), "parquet"))
    file = parquet.ParquetFile(io.BytesIO(data))
    assert file.num_row_groups == 2
    read = file.read()
    assert str(read.schema.field("time").type) == "timestamp[ns, tz=UTC]"
    assert read.column("node").to_pylist() == ["a", "b", "c", "d"]
    assert read.column("gpu").to_pylist() == [None, 1, None, None]
    assert read.column("mean").null_count == 3 and read.column("mean")[1].as_py() == np.float32(612.3)
    assert read.column("time").cast("int64").to_pylist() == [0, 10**9, 60 * 10**9, 90 * 10**9]
    nothing = b"".join(export_formats.written(table(), "parquet"))
    assert parquet.ParquetFile(io.BytesIO(nothing)).read().num_rows == 0


def test_a_server_without_pyarrow_says_so_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export_formats, "has_parquet", lambda: False)
    with pytest.raises(ParquetMissing, match=r"clusterwatch\[parquet\]"):
        export_formats.written(table(), "parquet")


@pytest.mark.parametrize("kind", ["csv", "json"])
def test_a_part_is_asked_for_only_when_the_one_before_was_sent(kind: str) -> None:
    asked = []

    def parts() -> Iterator[Part]:
        for number in range(3):
            asked.append(number)
            yield part(60 * number, "a", "b")

    chunks = export_formats.written(export_formats.begun(Table("t", COLUMNS, parts())), kind)
    assert asked == [0]
    for _ in range(2):  # the head, the first part
        next(chunks)
    assert asked == [0]
    next(chunks)
    assert asked == [0, 1]
