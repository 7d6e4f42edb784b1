"""All events of a cluster's span in the order of their times, however many: for whoever may miss none.

In: a cluster, a span (ns UTC), kinds. Out: ``StoredEvent``s page by page. ``queries.events`` is for people:
the newest first, and no more than fit a page.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, Final

import msgspec
from django.db import connection

from clusterwatch.store.queries import StoredEvent

PAGE_ROWS: Final = 5_000


def in_order(
    cluster_id: int, start_ns: int, end_ns: int, kinds: Collection[str] | None, most: int
) -> Iterator[StoredEvent]:
    """Events of [start, end), the oldest first, at most ``most``. Cost: one query per ``PAGE_ROWS``.

    Args:
        kinds: only these; None: all.
    """
    wanted = None if kinds is None else sorted(kinds)
    after: tuple[int, int, str, int] = (start_ns, 0, "", 0)
    left = most
    while left > 0:
        rows = _page(cluster_id, after, end_ns, wanted, min(PAGE_ROWS, left))
        yield from (_event(row) for row in rows)
        left -= len(rows)
        if len(rows) < PAGE_ROWS:
            return
        last = rows[-1]
        after = (last[0], last[1], last[11], last[12])


def _page(
    cluster_id: int, after: tuple[int, int, str, int], end_ns: int, kinds: list[str] | None, most: int
) -> list[Any]:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT t_ns, node_id, source, kind, severity, text, fields::text, job_id, attempt, world, rank,"
            " epoch, sequence FROM event WHERE cluster_id = %s AND t_ns >= %s AND t_ns < %s"
            " AND (%s::text[] IS NULL OR kind = ANY(%s))"
            " AND (t_ns, node_id, epoch, sequence) > (%s, %s, %s, %s)"
            " ORDER BY t_ns, node_id, epoch, sequence LIMIT %s",
            [cluster_id, after[0], end_ns, kinds, kinds, *after, most],
        )
        return list(cursor.fetchall())


def _event(row: Any) -> StoredEvent:
    t_ns, node_id, source, kind, severity, text, fields, *rank = row[:11]
    told = msgspec.json.decode(fields, type=dict[str, str])
    return StoredEvent(t_ns, node_id, source, kind, severity, text, told, *rank)
