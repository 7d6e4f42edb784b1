"""Exactly once: one cursor per (cluster, node, epoch, lane), locked and advanced by each commit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from django.db import connection

LANES_KNOWN_MAX: Final = 200_000
"""Cursor rows a writer remembers: a spool made anew is a new lane."""


class LaneKey(NamedTuple):
    """Who sends: one sequence of numbers."""

    cluster: str
    node: str
    epoch: str
    lane: str


@dataclass(frozen=True, slots=True)
class Advance:
    """What one commit adds to a cursor; counts are increments."""

    sequence: int
    stored_count: int = 0
    rejected_count: int = 0
    expired_count: int = 0
    dropped_count: int = 0


def read(keys: Sequence[LaneKey]) -> dict[LaneKey, int]:
    """Highest committed sequence per lane; lanes never seen are left out."""
    return {key: sequence for key, (_, sequence) in _select(keys, lock=False).items()}


class Lanes:
    """The cursor rows a writer has met: a commit finds them by number, which costs a tenth of finding them by
    four texts. Belongs to one thread."""

    def __init__(self) -> None:
        self._rows: dict[LaneKey, int] = {}

    def lock(self, keys: Iterable[LaneKey]) -> dict[LaneKey, int]:
        """Locks the lanes' rows until the transaction ends, returns their sequences; missing ones are made.

        Rows are locked in one order everywhere, so two gateways never wait for each other in a circle.
        """
        wanted = sorted(set(keys))
        known = [self._rows[key] for key in wanted if key in self._rows]
        if len(known) == len(wanted):
            found = _lock_rows(known)
            if found.keys() == set(wanted):
                return found
        rows = _lock_keys(wanted)
        if len(self._rows) > LANES_KNOWN_MAX:
            self._rows.clear()
        self._rows |= {key: row for key, (row, _) in rows.items()}
        return {key: sequence for key, (_, sequence) in rows.items()}

    def advance(self, changes: Mapping[LaneKey, Advance]) -> None:
        """Moves locked cursors on, in the transaction that stores their records."""
        if not changes:
            return
        moves = list(changes.values())
        with connection.cursor() as cursor:
            cursor.execute(
                "UPDATE store_ingestcursor AS c SET sequence = k.sequence,"
                " stored_count = c.stored_count + k.stored, rejected_count = c.rejected_count + k.rejected,"
                " expired_count = c.expired_count + k.expired, dropped_count = c.dropped_count + k.dropped,"
                " updated_at = now()"
                " FROM unnest(%s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[],"
                " %s::bigint[]) AS k(id, sequence, stored, rejected, expired, dropped) WHERE c.id = k.id",
                [
                    _array(self._rows[key] for key in changes),
                    _array(move.sequence for move in moves),
                    _array(move.stored_count for move in moves),
                    _array(move.rejected_count for move in moves),
                    _array(move.expired_count for move in moves),
                    _array(move.dropped_count for move in moves),
                ],
            )


def _lock_rows(rows: Iterable[int]) -> dict[LaneKey, int]:
    """Sequences of rows by what they are the cursor of: a number may have come to mean another lane."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT cluster, node, epoch, lane, sequence FROM store_ingestcursor"
            " WHERE id = ANY(%s::bigint[]) ORDER BY id FOR UPDATE",
            [_array(rows)],
        )
        return {LaneKey(*row[:4]): row[4] for row in cursor.fetchall()}


def _lock_keys(wanted: Sequence[LaneKey]) -> dict[LaneKey, tuple[int, int]]:
    """(row, sequence) of each lane; rows that are not there are made."""
    found = _select(wanted, lock=True)
    missing = [key for key in wanted if key not in found]
    if not missing:
        return found
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO store_ingestcursor (cluster, node, epoch, lane, sequence, stored_count,"
            " rejected_count, expired_count, dropped_count, updated_at)"
            " SELECT k.cluster, k.node, k.epoch, k.lane, 0, 0, 0, 0, 0, now()"
            " FROM unnest(%s::text[], %s::text[], %s::text[], %s::text[])"
            " AS k(cluster, node, epoch, lane)"
            " ON CONFLICT (cluster, node, epoch, lane) DO NOTHING",
            _columns(missing),
        )
    return _select(wanted, lock=True)


def _array(numbers: Iterable[int]) -> str:
    """An array of integers as PostgreSQL writes it: psycopg quotes a list element by element."""
    return f"{{{','.join(map(str, numbers))}}}"


def _columns(keys: Sequence[LaneKey]) -> list[list[str]]:
    return [[key[part] for key in keys] for part in range(4)]


def _select(keys: Sequence[LaneKey], *, lock: bool) -> dict[LaneKey, tuple[int, int]]:
    query = (
        "SELECT c.cluster, c.node, c.epoch, c.lane, c.id, c.sequence FROM store_ingestcursor c"
        " JOIN unnest(%s::text[], %s::text[], %s::text[], %s::text[]) AS k(cluster, node, epoch, lane)"
        " ON (c.cluster, c.node, c.epoch, c.lane) = (k.cluster, k.node, k.epoch, k.lane)"
    )
    if lock:
        query += " ORDER BY c.id FOR UPDATE OF c"
    with connection.cursor() as cursor:
        cursor.execute(query, _columns(keys))
        return {LaneKey(*row[:4]): (row[4], row[5]) for row in cursor.fetchall()}
