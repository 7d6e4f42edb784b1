"""What stays of a job's steps when those of each rank are gone: a row per minute, with the slowest ranks.

In: ``steps`` rows of one minute. Out: rows of ``job_steps``. A minute is that in which the records were made,
so a step counts where its record does; what comes late builds its minute again (``late_minutes``).
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Final

import numpy as np
from django.db import connection

from clusterwatch.store import binary_reads, partitions, step_pack
from clusterwatch.store.answers import MINUTE_NS

SLOW_MAX: Final = 3
"""Ranks with the longest median step that are kept by name."""


@dataclass(frozen=True, slots=True)
class JobMinute:
    """Step durations of all ranks of a job in one minute, seconds."""

    t_ns: int
    steps: int
    """(rank, step) pairs"""
    newest_step: int
    durations_s: tuple[float, float, float, float, float]
    """shortest, p1, p50, p99, longest"""
    slow: tuple[tuple[str, int, float], ...]
    """world, rank and median, the longest first"""


def build(cluster_id: int, t_ns: int) -> int:
    """Makes and stores the minute that starts at ``t_ns`` for every job; returns how many jobs there are.

    Raises: ``django.db.Error``. Cost: O(steps) in numpy, 50 us a node to unpack.
    """
    rows = binary_reads.fetch(
        "SELECT job_id, attempt, world, data FROM steps WHERE cluster_id = %s AND t_ns >= %s AND t_ns < %s",
        [cluster_id, t_ns, t_ns + MINUTE_NS],
    )
    jobs: dict[tuple[int, int], list[tuple[str, step_pack.StepColumns]]] = defaultdict(list)
    for job_id, attempt, world, data in rows:
        jobs[job_id, attempt].append((world, step_pack.unpack(data)))
    made = [(key, minute) for key, parts in jobs.items() if (minute := _minute(t_ns, parts)) is not None]
    if made:
        partitions.ensure("job_steps", [t_ns])
    with connection.cursor() as cursor:
        for (job_id, attempt), one in made:
            cursor.execute(
                _UPSERT,
                [cluster_id, job_id, attempt, t_ns, one.steps, one.newest_step, *one.durations_s,
                 *map(list, zip(*one.slow, strict=True))],
            )  # fmt: skip
    return len(made)


_COLUMNS: Final = "steps, newest_step, low_s, p1_s, p50_s, p99_s, high_s, slow_worlds, slow_ranks, slow_s"
_UPSERT: Final = (
    f"INSERT INTO job_steps (cluster_id, job_id, attempt, t_ns, {_COLUMNS})"  # noqa: S608  our own names
    " VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)"
    " ON CONFLICT (job_id, attempt, t_ns) DO UPDATE SET ("
    f"{_COLUMNS}) = ROW (" + ", ".join(f"excluded.{name.strip()}" for name in _COLUMNS.split(",")) + ")"
)


def _minute(t_ns: int, told: list[tuple[str, step_pack.StepColumns]]) -> JobMinute | None:
    parts = [part for _, part in told if len(part.rank)]
    worlds = sorted({world for world, _ in told})
    duration_s = np.concatenate([np.zeros(0), *(part.duration_s for part in parts)])
    known = np.isfinite(duration_s)
    if not known.any():
        return None
    keys = [worlds.index(world) << 32 | part.rank for world, part in told if len(part.rank)]
    duration_s, key = duration_s[known], np.concatenate(keys)[known]
    low, p1, p50, p99, high = np.percentile(duration_s, (0, 1, 50, 99, 100)).tolist()
    order = np.lexsort((duration_s, key))
    who, first, counts = np.unique(key[order], return_index=True, return_counts=True)
    medians = duration_s[order][first + counts // 2]
    worst = np.lexsort((who, -medians))[:SLOW_MAX].tolist()
    slow = tuple((worlds[who[at] >> 32], int(who[at]) & 0xFFFFFFFF, float(medians[at])) for at in worst)
    newest = max(int(part.step.max()) for part in parts)
    return JobMinute(t_ns, len(duration_s), newest, (low, p1, p50, p99, high), slow)


def minutes(job_id: int, attempt: int, from_ns: int, to_ns: int) -> list[JobMinute]:
    """Stored minutes that begin in the window, oldest first."""
    rows = binary_reads.fetch(
        f"SELECT t_ns, {_COLUMNS} FROM job_steps"  # noqa: S608  our own names
        " WHERE job_id = %s AND attempt = %s AND t_ns >= %s AND t_ns < %s ORDER BY t_ns",
        [job_id, attempt, from_ns, to_ns],
    )
    return [
        JobMinute(t_ns, steps, newest, (low, p1, p50, p99, high), tuple(zip(*slow, strict=True)))
        for t_ns, steps, newest, low, p1, p50, p99, high, *slow in rows
    ]


def newest_ns(job_id: int, attempt: int) -> int | None:
    """Start of the newest stored minute; None without one."""
    rows = binary_reads.fetch(
        "SELECT max(t_ns) FROM job_steps WHERE job_id = %s AND attempt = %s", [job_id, attempt]
    )
    newest = rows[0][0]
    return None if newest is None else int(newest)
