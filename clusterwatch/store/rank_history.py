"""What is stored of one job: step durations of all ranks as bands, one rank's newest trace and stacks.

In: ids and ns UTC bounds. Out: plain rows. Lists are bounded: a band has at most ``BUCKETS_MAX`` points.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from django.db import connection

BUCKETS_MAX: Final = 240
OUTLIERS_MAX: Final = 3


@dataclass(frozen=True, slots=True)
class StepBand:
    """Step durations of the ranks asked for whose step ended within one bucket, seconds."""

    start_ns: int
    p1_s: float
    p50_s: float
    p99_s: float
    steps: int
    """(rank, step) pairs in the bucket"""
    newest_step: int


@dataclass(frozen=True, slots=True)
class SlowRank:
    """A rank with the longest slow steps."""

    world: str
    rank: int
    p90_s: float
    typical_s: float
    """median of the ranks' own p90"""
    points: tuple[tuple[int, float], ...]
    """(bucket start ns, median s)"""


_BANDS = """
WITH one AS (
    SELECT (u.end_ns - %(from)s) / %(width)s AS bucket, u.duration_s, u.step
    FROM steps s CROSS JOIN LATERAL unnest(s.end_ns, s.duration_s, s.step) AS u(end_ns, duration_s, step)
    WHERE s.job_id = %(job)s AND s.attempt = %(attempt)s AND s.t_ns >= %(from)s AND s.rank %% %(every)s = 0
      AND u.end_ns >= %(from)s AND u.end_ns < %(to)s AND u.duration_s IS NOT NULL
)
SELECT bucket, percentile_cont(ARRAY[0.01, 0.5, 0.99]) WITHIN GROUP (ORDER BY duration_s), count(*), max(step)
FROM one GROUP BY bucket ORDER BY bucket
"""

_SLOW = """
WITH one AS (
    SELECT s.world, s.rank, (u.end_ns - %(from)s) / %(width)s AS bucket, u.duration_s
    FROM steps s CROSS JOIN LATERAL unnest(s.end_ns, s.duration_s) AS u(end_ns, duration_s)
    WHERE s.job_id = %(job)s AND s.attempt = %(attempt)s AND s.t_ns >= %(from)s
      AND u.end_ns >= %(from)s AND u.end_ns < %(to)s AND u.duration_s IS NOT NULL
), each AS (
    SELECT world, rank, percentile_cont(0.9) WITHIN GROUP (ORDER BY duration_s) AS p90
    FROM one GROUP BY world, rank
), worst AS (
    SELECT world, rank, p90, (SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY p90) FROM each) AS typical
    FROM each ORDER BY p90 DESC, rank LIMIT %(limit)s
)
SELECT w.world, w.rank, w.p90, w.typical, o.bucket, percentile_cont(0.5) WITHIN GROUP (ORDER BY o.duration_s)
FROM worst w JOIN one o USING (world, rank) GROUP BY w.world, w.rank, w.p90, w.typical, o.bucket
ORDER BY w.p90 DESC, w.rank, o.bucket
"""


def _bounds(job_id: int, attempt: int, from_ns: int, to_ns: int) -> tuple[dict[str, int], int]:
    width = max(1_000_000_000, -(-(to_ns - from_ns) // BUCKETS_MAX))
    return {"job": job_id, "attempt": attempt, "from": from_ns, "to": to_ns, "width": width}, width


def step_bands(job_id: int, attempt: int, from_ns: int, to_ns: int, every: int = 1) -> list[StepBand]:
    """Percentiles of step durations over ranks, per bucket of at least 1 s; empty ones are left out.

    Args:
        every: ranks whose number this divides count; 1 = all.
    """
    arguments, width = _bounds(job_id, attempt, from_ns, to_ns)
    with connection.cursor() as cursor:
        cursor.execute(_BANDS, arguments | {"every": every})
        rows = cursor.fetchall()
    return [
        StepBand(from_ns + bucket * width, low, median, high, count, newest)
        for bucket, (low, median, high), count, newest in rows
    ]


def slow_ranks(job_id: int, attempt: int, from_ns: int, to_ns: int) -> list[SlowRank]:
    """The ranks whose p90 step is longest, longest first, with their median per bucket."""
    arguments, width = _bounds(job_id, attempt, from_ns, to_ns)
    with connection.cursor() as cursor:
        cursor.execute(_SLOW, arguments | {"limit": OUTLIERS_MAX})
        rows = cursor.fetchall()
    points: dict[tuple[str, int, float, float], list[tuple[int, float]]] = {}
    for world, rank, p90, typical, bucket, value in rows:
        points.setdefault((world, rank, p90, typical), []).append((from_ns + bucket * width, value))
    return [SlowRank(*head, tuple(found)) for head, found in points.items()]


def newest_step_ns(job_id: int, attempt: int) -> int | None:
    """When the newest stored step record of an attempt was made; None without one."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT max(t_ns) FROM steps WHERE job_id = %s AND attempt = %s", [job_id, attempt])
        (newest,) = cursor.fetchone()
    return newest if newest is None else int(newest)


@dataclass(frozen=True, slots=True)
class NewestTrace:
    """``columns`` is ``collectors.formats.columns.pack`` output."""

    t_ns: int
    want: str
    recorder: str
    columns: bytes


@dataclass(frozen=True, slots=True)
class NewestStacks:
    """``threads`` are ``collectors.wire.records.ThreadStack`` as plain dicts."""

    t_ns: int
    source: str
    error: str
    process_state: str
    wchan: str
    threads: tuple[dict[str, Any], ...]


def newest_traces(job_id: int, attempt: int, world: str, rank: int) -> list[NewestTrace]:
    """The newest trace of a rank per recorder; a whole ring beats a window of the same capture."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT DISTINCT ON (recorder) t_ns, want, recorder, columns FROM trace"
            " WHERE job_id = %s AND attempt = %s AND world = %s AND rank = %s"
            " ORDER BY recorder, capture_id DESC NULLS LAST, want = 'ring' DESC, t_ns DESC",
            [job_id, attempt, world, rank],
        )
        rows = cursor.fetchall()
    return [NewestTrace(t_ns, want, recorder, bytes(columns)) for t_ns, want, recorder, columns in rows]


def newest_stacks(job_id: int, attempt: int, world: str, rank: int) -> list[NewestStacks]:
    """The newest stacks of a rank per source (hook, py-spy)."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT DISTINCT ON (source) t_ns, source, error, process_state, wchan, threads FROM stacks"
            " WHERE job_id = %s AND attempt = %s AND world = %s AND rank = %s ORDER BY source, t_ns DESC",
            [job_id, attempt, world, rank],
        )
        rows = cursor.fetchall()
    return [
        NewestStacks(t_ns, source, error, state, wchan, _threads(threads))
        for t_ns, source, error, state, wchan, threads in rows
    ]


def _threads(value: Any) -> tuple[dict[str, Any], ...]:
    decoded = json.loads(value) if isinstance(value, (str, bytes)) else value
    return tuple(t for t in decoded if isinstance(t, dict)) if isinstance(decoded, list) else ()
