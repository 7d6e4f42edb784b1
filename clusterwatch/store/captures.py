"""What nodes sent for captures: packed traces and stacks, newest per rank.

In: capture ids. Out: rows as they are stored; a trace's ``columns`` are unpacked by the reader, who decides
what to do with one that is damaged.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from django.db import connection

from collectors import ras_event

RAS_EVENTS_MAX: Final = 4


@dataclass(frozen=True, slots=True)
class StoredTrace:
    """A recorder's ring of one rank; ``columns`` is ``collectors.formats.columns.pack`` output."""

    world: str
    rank: int
    t_ns: int
    capture_id: int
    want: str
    recorder: str
    columns: bytes


@dataclass(frozen=True, slots=True)
class StoredStacks:
    """Stacks of one process; ``threads`` are ``collectors.wire.records.ThreadStack`` as plain dicts."""

    world: str
    rank: int
    t_ns: int
    capture_id: int
    source: str
    error: str
    process_state: str
    wchan: str
    threads: list[dict[str, Any]]


def counts(capture_ids: Sequence[int]) -> tuple[int, int]:
    """How many traces and how many stacks have come for these captures."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT (SELECT count(*) FROM trace WHERE capture_id = ANY(%(ids)s)),"
            " (SELECT count(*) FROM stacks WHERE capture_id = ANY(%(ids)s))",
            {"ids": list(capture_ids)},
        )
        traces, stacks = cursor.fetchone()
    return int(traces), int(stacks)


def traces(capture_ids: Sequence[int], attempt: int) -> list[StoredTrace]:
    """One trace per (world, rank, recorder): a whole ring before a window, then the newest."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT DISTINCT ON (world, rank, recorder)"
            " world, rank, t_ns, capture_id, want, recorder, columns FROM trace"
            " WHERE capture_id = ANY(%s) AND attempt = %s"
            " ORDER BY world, rank, recorder, want = 'ring' DESC, t_ns DESC",
            [list(capture_ids), attempt],
        )
        rows = cursor.fetchall()
    return [StoredTrace(*row) for row in rows]


def stacks(capture_ids: Sequence[int], attempt: int) -> list[StoredStacks]:
    """The newest stacks per (world, rank, source)."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT DISTINCT ON (world, rank, source)"
            " world, rank, t_ns, capture_id, source, error, process_state, wchan, threads FROM stacks"
            " WHERE capture_id = ANY(%s) AND attempt = %s"
            " ORDER BY world, rank, source, t_ns DESC",
            [list(capture_ids), attempt],
        )
        rows = cursor.fetchall()
    opened: list[list[Any]] = [[*row[:-1], _threads(row[-1])] for row in rows]
    return [StoredStacks(*row) for row in opened]


def ras_events(job_id: int, from_ns: int) -> list[dict[str, str]]:
    """Fields of what NCCL's RAS said for captures of a job since ``from_ns``, newest first, the last few."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT e.fields FROM event e WHERE e.job_id = %s AND e.t_ns >= %s AND e.kind = %s"
            " AND EXISTS (SELECT FROM jobs_capture c WHERE c.job_id = e.job_id AND c.ras_rank IS NOT NULL"
            "  AND c.id::text = e.fields->>'capture_id')"
            " ORDER BY e.t_ns DESC, e.sequence DESC LIMIT %s",
            [job_id, from_ns, ras_event.KIND, RAS_EVENTS_MAX],
        )
        rows = cursor.fetchall()
    return [{str(name): str(value) for name, value in _object(row[0]).items()} for row in rows]


def _object(value: Any) -> dict[str, Any]:
    decoded = json.loads(value) if isinstance(value, (str, bytes)) else value
    return decoded if isinstance(decoded, dict) else {}


def _threads(value: Any) -> list[dict[str, Any]]:
    decoded = json.loads(value) if isinstance(value, (str, bytes)) else value
    return [thread for thread in decoded if isinstance(thread, dict)] if isinstance(decoded, list) else []
