"""What is stored of one job: step durations of all ranks as bands, one rank's newest trace and stacks.

In: ids and ns UTC bounds. Out: plain rows. Lists are bounded: a band has at most ``BUCKETS_MAX`` points.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
from django.db import connection
from numpy.typing import NDArray

from clusterwatch.store import binary_reads, job_steps, step_pack
from clusterwatch.store.answers import MINUTE_NS

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


@dataclass(frozen=True, slots=True, eq=False)
class _Steps:
    """Steps of a job that ended within a window, shape (N,) each."""

    world: NDArray[np.int64]
    """index into ``worlds``"""
    worlds: tuple[str, ...]
    rank: NDArray[np.int64]
    step: NDArray[np.int64]
    bucket: NDArray[np.int64]
    duration_s: NDArray[np.float64]
    from_ns: int
    width_ns: int

    def start_ns(self, bucket: int) -> int:
        return self.from_ns + int(bucket) * self.width_ns


_OF_JOB: Final = """
SELECT world, data FROM steps
WHERE job_id = %(job)s AND attempt = %(attempt)s AND t_ns >= %(from)s AND (
    %(every)s = 1 OR node_id %% %(every)s = (
        SELECT node_id %% %(every)s FROM steps
        WHERE job_id = %(job)s AND attempt = %(attempt)s AND t_ns >= %(from)s ORDER BY t_ns LIMIT 1
    )
)
"""


def _read(job_id: int, attempt: int, from_ns: int, to_ns: int, every: int = 1) -> _Steps:
    """Cost: O(steps) in numpy, one frame to unpack per node and minute."""
    asked = {"job": job_id, "attempt": attempt, "from": from_ns, "every": every}
    rows = binary_reads.fetch(_OF_JOB, asked)
    worlds = tuple(sorted({world for world, _ in rows}))
    parts = [(worlds.index(world), step_pack.unpack(data)) for world, data in rows]
    columns = [part for _, part in parts]

    def joined(name: str) -> NDArray[Any]:
        return np.concatenate([np.zeros(0, np.int64), *(getattr(part, name) for part in columns)])

    world = np.repeat([number for number, _ in parts], [len(part.rank) for part in columns]).astype(np.int64)
    end_ns, duration_s = joined("end_ns").astype(np.int64), joined("duration_s")
    kept = (end_ns >= from_ns) & (end_ns < to_ns) & np.isfinite(duration_s)
    width_ns = max(1_000_000_000, -(-(to_ns - from_ns) // BUCKETS_MAX))
    bucket = (end_ns[kept] - from_ns) // width_ns
    rank, step = joined("rank").astype(np.int64)[kept], joined("step").astype(np.int64)[kept]
    return _Steps(
        world[kept], worlds, rank, step, bucket, duration_s[kept].astype(np.float64), from_ns, width_ns
    )


def _runs(keys: NDArray[np.int64]) -> Iterator[slice]:
    """Slices of equal neighbours."""
    edges = np.flatnonzero(np.diff(keys, prepend=keys[:1] - 1, append=keys[-1:] + 1))
    return (slice(first, end) for first, end in pairwise(edges.tolist()))


def step_bands(job_id: int, attempt: int, from_ns: int, to_ns: int, every: int = 1) -> list[StepBand]:
    """Percentiles of step durations over ranks, per bucket of at least 1 s; empty ones are left out.

    Args:
        every: ranks of every so many-th node count; 1 = all.
    """
    return _bands(_read(job_id, attempt, from_ns, to_ns, every))


def _bands(steps: _Steps) -> list[StepBand]:
    order = np.argsort(steps.bucket, kind="stable")
    bucket, duration_s, number = steps.bucket[order], steps.duration_s[order], steps.step[order]
    bands = []
    for run in _runs(bucket):
        low, median, high = np.percentile(duration_s[run], (1, 50, 99)).tolist()
        at_ns = steps.start_ns(bucket[run.start])
        bands.append(StepBand(at_ns, low, median, high, run.stop - run.start, int(number[run].max())))
    return bands


def slow_ranks(job_id: int, attempt: int, from_ns: int, to_ns: int) -> list[SlowRank]:
    """The ranks whose p90 step is longest, longest first, with their median per bucket."""
    return _slow(_read(job_id, attempt, from_ns, to_ns))


def bands_and_slow(
    job_id: int, attempt: int, from_ns: int, to_ns: int
) -> tuple[list[StepBand], list[SlowRank]]:
    """``step_bands`` of all ranks and ``slow_ranks``, from one reading."""
    steps = _read(job_id, attempt, from_ns, to_ns)
    return _bands(steps), _slow(steps)


def _slow(steps: _Steps) -> list[SlowRank]:
    key = steps.world << 32 | steps.rank
    order = np.lexsort((steps.bucket, key))
    key, bucket, duration_s = key[order], steps.bucket[order], steps.duration_s[order]
    runs = list(_runs(key))
    p90_s = np.array([np.percentile(duration_s[run], 90) for run in runs])
    worst = sorted(range(len(runs)), key=lambda place: (-p90_s[place], place))[:OUTLIERS_MAX]
    found = []
    for place in worst:
        run = runs[place]
        points = tuple(
            (steps.start_ns(bucket[run][part.start]), float(np.median(duration_s[run][part])))
            for part in _runs(bucket[run])
        )
        world, rank = steps.worlds[int(key[run.start]) >> 32], int(key[run.start]) & 0xFFFFFFFF
        found.append(SlowRank(world, rank, float(p90_s[place]), float(np.median(p90_s)), points))
    return found


def kept_bands(job_id: int, attempt: int, from_ns: int, to_ns: int) -> list[StepBand]:
    """The same by the minute, of a job whose steps by rank are no longer kept."""
    return [
        StepBand(one.t_ns, *one.durations_s[1:4], one.steps, one.newest_step)
        for one in job_steps.minutes(job_id, attempt, from_ns, to_ns)
    ]


def newest_step_ns(job_id: int, attempt: int) -> int | None:
    """When the newest stored step record of an attempt was made, or the end of its newest minute; None
    without any.
    """
    with connection.cursor() as cursor:
        cursor.execute("SELECT max(t_ns) FROM steps WHERE job_id = %s AND attempt = %s", [job_id, attempt])
        (newest,) = cursor.fetchone()
    if newest is not None:
        return int(newest)
    minute_ns = job_steps.newest_ns(job_id, attempt)
    return None if minute_ns is None else minute_ns + MINUTE_NS


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
