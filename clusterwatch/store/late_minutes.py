"""Which minutes of a fleet are built, and which must be built again because a block came late.

``fleet_minute`` of a minute is made once, from the rollups that are there; its *horizon* is the newest minute
for which that has begun. A transaction that stores a rollup at or below the horizon notes its minute. Both
sides take one advisory lock, ingest shared and the builder alone for the moment in which it moves the
horizon: so a transaction either ended before the builder reads, or sees the moved horizon.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from django.db import OperationalError, connection, transaction

_HORIZON_LOCK: Final = 0x636C7768
"""Advisory lock, with the cluster."""
LOCK_TIMEOUT_MS: Final = 2_000
"""Ingest queues behind a builder that waits: it gives up soon and comes again."""


@dataclass(frozen=True, slots=True)
class LateMinute:
    """A minute to be built again; ``notes`` rises with each transaction that brought something for it."""

    t_ns: int
    notes: int


def note(minutes: Collection[tuple[int, int]]) -> None:
    """Notes the (cluster, minute) pairs that are below their cluster's horizon.

    Call last in the transaction that stores the rollups: rows of ``late_minute`` stay locked until its end.
    """
    if not minutes:
        return
    ordered = sorted(minutes)
    clusters = sorted({cluster_id for cluster_id, _ in ordered})
    with connection.cursor() as cursor:
        # Two statements, so that the second one sees what was committed while the first one waited.
        cursor.execute(
            "SELECT pg_advisory_xact_lock_shared(%s, c) FROM unnest(%s::integer[]) AS c",
            [_HORIZON_LOCK, [_lock_number(cluster_id) for cluster_id in clusters]],
        )
        cursor.execute(
            "INSERT INTO late_minute (cluster_id, t_ns)"
            " SELECT m.cluster_id, m.t_ns FROM unnest(%s::bigint[], %s::bigint[]) AS m(cluster_id, t_ns)"
            " JOIN fleet_horizon h ON h.cluster_id = m.cluster_id AND m.t_ns <= h.t_ns"
            " ORDER BY m.cluster_id, m.t_ns"
            " ON CONFLICT (cluster_id, t_ns) DO UPDATE SET notes = late_minute.notes + 1",
            [[cluster_id for cluster_id, _ in ordered], [t_ns for _, t_ns in ordered]],
        )


def horizon_ns(cluster_id: int) -> int | None:
    """The newest minute that was built; None before the first."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT t_ns FROM fleet_horizon WHERE cluster_id = %s", [cluster_id])
        row = cursor.fetchone()
    return int(row[0]) if row else None


def move_horizon(cluster_id: int, t_ns: int) -> bool:
    """Says that the minute ``t_ns`` is about to be built; False when ingest did not let go in time.

    What a transaction stores for that minute from now on will be noted; what came before can be read. The
    minute itself stands in the list with no note until it is finished, so that a builder that dies leaves it.
    """
    try:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(f"SET LOCAL lock_timeout = {LOCK_TIMEOUT_MS}")
            cursor.execute("SELECT pg_advisory_xact_lock(%s, %s)", [_HORIZON_LOCK, _lock_number(cluster_id)])
            cursor.execute(
                "INSERT INTO fleet_horizon (cluster_id, t_ns) VALUES (%s, %s) ON CONFLICT (cluster_id)"
                " DO UPDATE SET t_ns = greatest(fleet_horizon.t_ns, excluded.t_ns)",
                [cluster_id, t_ns],
            )
            cursor.execute(
                "INSERT INTO late_minute (cluster_id, t_ns, notes) VALUES (%s, %s, 0) ON CONFLICT DO NOTHING",
                [cluster_id, t_ns],
            )
    except OperationalError as error:
        if getattr(error.__cause__, "sqlstate", None) == "55P03":  # lock_not_available
            return False
        raise
    return True


def waiting(cluster_id: int, limit: int) -> list[LateMinute]:
    """Minutes to be built again, newest first."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT t_ns, notes FROM late_minute WHERE cluster_id = %s ORDER BY t_ns DESC LIMIT %s",
            [cluster_id, limit],
        )
        return [LateMinute(*row) for row in cursor.fetchall()]


def finish(cluster_id: int, minute: LateMinute) -> None:
    """Takes a minute off the list, unless something came for it after ``waiting`` was read."""
    with connection.cursor() as cursor:
        cursor.execute(
            "DELETE FROM late_minute WHERE cluster_id = %s AND t_ns = %s AND notes = %s",
            [cluster_id, minute.t_ns, minute.notes],
        )


def _lock_number(cluster_id: int) -> int:
    return cluster_id % 2**31
