"""Rows in PostgreSQL's binary format: Django's cursor asks for text, where bytes travel as hex.

In: SQL and its values. Out: rows with ``bytes`` for bytea, and for ``real[]`` too: ``float_array`` makes
numpy arrays of those, which as Python lists would cost 30 ns a number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import psycopg
from django.db import connection
from numpy.typing import NDArray
from psycopg.adapt import Buffer, Loader
from psycopg.pq import Format

_FLOAT_ARRAY_OID: Final = 1021
_HEADER_BYTES: Final = 20
"""Of a one-dimensional array: dimensions, flag of nulls, element type, length, lower bound; int32 each."""
_FLAG_OF_NULLS: Final = 7
"""The lowest byte of that field."""
_COPY_HEAD_BYTES: Final = 19
"""Signature, flags and extension of binary COPY. Source: PostgreSQL manual, COPY, "Binary Format"."""
_ELEMENT: Final = np.dtype([("length", ">i4"), ("value", ">f4")])


class _Untouched(Loader):
    """Leaves a value as the server sent it."""

    format = Format.BINARY

    def load(self, data: Buffer) -> bytes:
        return bytes(data)


def fetch(query: str, parameters: Mapping[str, Any] | Sequence[Any] = ()) -> list[tuple[Any, ...]]:
    """All rows of a query, on Django's own connection (so inside its transaction, if there is one).

    Raises: what Django raises for the same fault.
    """
    connection.ensure_connection()
    with connection.wrap_database_errors, psycopg.Cursor(connection.connection) as cursor:
        cursor.format = Format.BINARY
        cursor.adapters.register_loader(_FLOAT_ARRAY_OID, _Untouched)
        cursor.execute(query, parameters or None)
        return cursor.fetchall()


def fetch_table(
    query: str, parameters: Mapping[str, Any] | Sequence[Any], columns: Sequence[tuple[str, str]]
) -> NDArray[Any]:
    """Rows of numbers without NULL as one structured array, made without an object per number.

    Args:
        columns: (name, numpy type) as the server sends them, ``>i8`` for bigint, ``>f4`` for real.

    Raises: what Django raises for the same fault; ``ValueError`` when the rows are of another width.
    """
    kinds: list[Any] = [("", ">i2")]
    for name, kind in columns:
        kinds += [("", ">i4"), (name, kind)]
    row = np.dtype(kinds)
    connection.ensure_connection()
    with (
        connection.wrap_database_errors,
        psycopg.Cursor(connection.connection) as cursor,
        cursor.copy(f"COPY ({query}) TO STDOUT (FORMAT BINARY)", parameters) as copy,
    ):
        packed = b"".join(copy)
    return np.frombuffer(packed, row, (len(packed) - _COPY_HEAD_BYTES) // row.itemsize, _COPY_HEAD_BYTES)


def float_arrays(data: Sequence[bytes | None]) -> NDArray[np.float32]:
    """Many ``real[]``, shape (rows, longest); NaN where one is shorter or has a NULL."""
    first = data[0] if data else None
    plain = first is not None and len(first) > _HEADER_BYTES and not first[_FLAG_OF_NULLS]
    if first and plain and all(one and one[:_HEADER_BYTES] == first[:_HEADER_BYTES] for one in data):
        # One header for all: the same length, and no NULL in any.
        rows = np.frombuffer(b"".join(filter(None, data)), np.uint8).reshape(len(data), len(first))
        values = rows[:, _HEADER_BYTES:].reshape(len(data), -1, 8)[:, :, 4:]
        return np.ascontiguousarray(values).view(">f4")[:, :, 0].astype(np.float32)
    arrays = [float_array(one) for one in data]
    found = np.full((len(arrays), max(map(len, arrays), default=0)), np.nan, np.float32)
    for row, array in enumerate(arrays):
        found[row, : len(array)] = array
    return found


def float_array(data: bytes | None) -> NDArray[np.float32]:
    """A ``real[]`` as the server sends it; NULL elements become NaN, an empty or NULL array has length 0."""
    if data is None or len(data) <= _HEADER_BYTES:
        return np.empty(0, np.float32)
    body = data[_HEADER_BYTES:]
    if not int.from_bytes(data[4:8], "big"):  # the flag of nulls: without any, every element is 8 bytes
        return np.frombuffer(body, _ELEMENT)["value"].astype(np.float32)
    found, place = [], 0
    while place < len(body):
        null = body[place : place + 4] == b"\xff\xff\xff\xff"
        found.append(np.nan if null else np.frombuffer(body, ">f4", 1, place + 4)[0])
        place += 4 if null else 8
    return np.array(found, np.float32)
