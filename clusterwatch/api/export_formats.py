"""Tables as CSV, JSON and Parquet, part by part: what is in memory is one part, whatever the table's length.

In: ``Part``s of equal columns. Out: bytes. Pure. Parquet is written by pyarrow, the reference library, which
alone writes row groups to a stream as they come; it is 170 MB, so it is an extra: ``pip install
clusterwatch[parquet]``.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import orjson
from numpy.typing import NDArray

from clusterwatch.api.arrays import at, numbers

TYPES: Final = {
    "csv": "text/csv; charset=utf-8",
    "json": "application/json",
    "parquet": "application/vnd.apache.parquet",
}
GROUP_ROWS: Final = 65_536
"""Rows of a row group of Parquet: some MB in memory."""
PARQUET_MISSING: Final = (
    "this server cannot write Parquet: install it with `pip install clusterwatch[parquet]`,"
    " or ask for csv or json"
)
_WHOLE: Final = frozenset({"gpu"})
"""Columns of whole numbers that may lack one, so they come as floats."""
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")
"""How a text begins that a spreadsheet would run; names come from nodes. Source: OWASP, CSV injection."""

Column = NDArray[Any]
Part = Mapping[str, Column]
"""Columns of equal length: ``t_ns`` (int64), numbers, or texts as an array of objects."""


class ParquetMissing(Exception):
    """pyarrow is not installed; the text says what to do."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table that is made while it is read."""

    name: str
    """of the file, without an ending"""
    columns: tuple[str, ...]
    parts: Iterable[Part]


def has_parquet() -> bool:
    return importlib.util.find_spec("pyarrow") is not None


def written(table: Table, kind: str) -> Iterator[bytes]:
    """The table as bytes of one of ``TYPES``.

    Raises:
        ParquetMissing: at once, not at the first byte.
    """
    if kind == "parquet":
        if not has_parquet():
            raise ParquetMissing(PARQUET_MISSING)
        return _parquet(table)
    return _csv(table) if kind == "csv" else _json(table)


def _rows(part: Part, columns: tuple[str, ...]) -> Iterator[tuple[Any, ...]]:
    """Rows of plain values; None where there is no number."""
    return zip(*(_plain(name, part[name]) for name in columns), strict=True)


def _plain(name: str, column: Column) -> list[Any]:
    if name == "t_ns":
        # Times repeat, row after row.
        known = {t_ns: at(t_ns) for t_ns in np.unique(column).tolist()}
        return [known[t_ns] for t_ns in column.tolist()]
    if column.dtype == object:
        return list(column)
    if column.dtype == np.float32:  # the shortest text of a float32, not of the double it fits in
        column = column.astype(str).astype(np.float64)
    elif column.dtype == np.float64:
        column = numbers(column)
    values: list[Any] = column.tolist()
    if column.dtype.kind != "f":
        return values
    number = int if name in _WHOLE else float
    return [number(value) if math.isfinite(value) else None for value in values]


def _shown(columns: tuple[str, ...]) -> list[str]:
    """Column names as people read them: times are written as texts."""
    return ["time" if name == "t_ns" else name for name in columns]


def _csv(table: Table) -> Iterator[bytes]:
    """RFC 4180; an empty field is "no number"."""
    yield (",".join(_shown(table.columns)) + "\r\n").encode()
    for part in table.parts:
        text = io.StringIO(newline="")
        csv.writer(text).writerows(map(_harmless, _rows(part, table.columns)))
        yield text.getvalue().encode()


def _harmless(row: tuple[Any, ...]) -> list[Any]:
    return [f"'{one}" if isinstance(one, str) and one.startswith(_FORMULA) else one for one in row]


def _json(table: Table) -> Iterator[bytes]:
    """``{"columns": [...], "rows": [[...], ...]}``; null is "no number"."""
    yield b'{"columns":' + orjson.dumps(_shown(table.columns)) + b',"rows":['
    between = b""
    for part in table.parts:
        rows = orjson.dumps(list(_rows(part, table.columns)))[1:-1]
        if rows:
            yield between + rows
            between = b","
    yield b"]}"


class _Pipe(io.RawIOBase):
    """A file that can only be written, and whose bytes are taken out in between."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._place = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._parts.append(bytes(data))
        self._place += len(self._parts[-1])
        return len(self._parts[-1])

    def tell(self) -> int:
        return self._place

    def take(self) -> bytes:
        taken = b"".join(self._parts)
        self._parts.clear()
        return taken


def _parquet(table: Table) -> Iterator[bytes]:
    """Row groups of at least ``GROUP_ROWS``; times are timestamps in ns UTC, missing numbers are nulls."""
    # pyarrow takes 0.2 s and 60 MB to load, and most servers never need it.
    import pyarrow
    import pyarrow.parquet

    def batch(part: Part) -> Any:
        arrays = [_arrow(pyarrow, name, part[name]) for name in table.columns]
        return pyarrow.table(arrays, names=_shown(table.columns))

    pipe = _Pipe()
    nothing = {name: np.empty(0, np.int64 if name == "t_ns" else np.float64) for name in table.columns}
    groups = _groups(batch(part) for part in table.parts)
    first = next(groups, None) or [batch(nothing)]
    with pyarrow.parquet.ParquetWriter(pipe, first[0].schema, compression="zstd") as writer:
        for group in itertools.chain([first], groups):
            writer.write_table(pyarrow.concat_tables(group), row_group_size=2 * GROUP_ROWS)
            yield pipe.take()
    yield pipe.take()


def _groups(batches: Iterable[Any]) -> Iterator[list[Any]]:
    """Batches together until they have ``GROUP_ROWS`` rows: many small row groups are slow to read."""
    group: list[Any] = []
    for batch in batches:
        group.append(batch)
        if sum(one.num_rows for one in group) >= GROUP_ROWS:
            yield group
            group = []
    if group:
        yield group


def _arrow(pyarrow: Any, name: str, column: Column) -> Any:
    if name == "t_ns":
        return pyarrow.array(column, pyarrow.timestamp("ns", "UTC"))
    if column.dtype == object:
        return pyarrow.array(list(column), pyarrow.string())
    if column.dtype.kind != "f":
        return pyarrow.array(column)
    missing = ~np.isfinite(column)
    if name in _WHOLE:
        return pyarrow.array(np.where(missing, 0, column).astype(np.int32), mask=missing)
    return pyarrow.array(column, mask=missing)


def begun(table: Table) -> Table:
    """The same table with its first part made: what is refused is an answer, not a broken download."""
    parts = iter(table.parts)
    first = list(itertools.islice(parts, 1))
    return Table(table.name, table.columns, itertools.chain(first, parts))
