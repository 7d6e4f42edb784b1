"""Exactly once: one cursor per (cluster, node, epoch, lane), locked and advanced by each commit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from django.db import connection


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
    return _select(keys, lock=False)


def lock(keys: Iterable[LaneKey]) -> dict[LaneKey, int]:
    """Locks the lanes' rows until the transaction ends and returns their sequences; missing ones are made.

    Rows are locked in one order everywhere, so two gateways never wait for each other in a circle.
    """
    wanted = sorted(set(keys))
    found = _select(wanted, lock=True)
    if len(found) < len(wanted):
        with connection.cursor() as cursor:
            cursor.execute(
                "INSERT INTO store_ingestcursor (cluster, node, epoch, lane, sequence, stored_count,"
                " rejected_count, expired_count, dropped_count, updated_at)"
                " SELECT k.cluster, k.node, k.epoch, k.lane, 0, 0, 0, 0, 0, now()"
                " FROM unnest(%s::text[], %s::text[], %s::text[], %s::text[])"
                " AS k(cluster, node, epoch, lane)"
                " ON CONFLICT (cluster, node, epoch, lane) DO NOTHING",
                _columns([key for key in wanted if key not in found]),
            )
        found = _select(wanted, lock=True)
    return found


def advance(changes: Mapping[LaneKey, Advance]) -> None:
    """Moves locked cursors on, in the transaction that stores their records."""
    if not changes:
        return
    keys, moves = list(changes), list(changes.values())
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE store_ingestcursor AS c SET sequence = k.sequence,"
            " stored_count = c.stored_count + k.stored, rejected_count = c.rejected_count + k.rejected,"
            " expired_count = c.expired_count + k.expired, dropped_count = c.dropped_count + k.dropped,"
            " updated_at = now()"
            " FROM unnest(%s::text[], %s::text[], %s::text[], %s::text[], %s::bigint[], %s::bigint[],"
            " %s::bigint[], %s::bigint[], %s::bigint[])"
            " AS k(cluster, node, epoch, lane, sequence, stored, rejected, expired, dropped)"
            " WHERE (c.cluster, c.node, c.epoch, c.lane) = (k.cluster, k.node, k.epoch, k.lane)",
            [
                *_columns(keys),
                [move.sequence for move in moves],
                [move.stored_count for move in moves],
                [move.rejected_count for move in moves],
                [move.expired_count for move in moves],
                [move.dropped_count for move in moves],
            ],
        )


def _columns(keys: Sequence[LaneKey]) -> list[list[str]]:
    return [[key[part] for key in keys] for part in range(4)]


def _select(keys: Sequence[LaneKey], *, lock: bool) -> dict[LaneKey, int]:
    query = (
        "SELECT c.cluster, c.node, c.epoch, c.lane, c.sequence FROM store_ingestcursor c"
        " JOIN unnest(%s::text[], %s::text[], %s::text[], %s::text[]) AS k(cluster, node, epoch, lane)"
        " ON (c.cluster, c.node, c.epoch, c.lane) = (k.cluster, k.node, k.epoch, k.lane)"
    )
    if lock:
        query += " ORDER BY c.id FOR UPDATE OF c"
    with connection.cursor() as cursor:
        cursor.execute(query, _columns(keys))
        return {LaneKey(*row[:4]): row[4] for row in cursor.fetchall()}
