"""Step times of a job as its page draws them: exact for small jobs, bounded and remembered for large ones.

A job of thousands of ranks stores more steps in an hour than a page may read. Bands then come from the ranks
of every nth node, slow ranks from the last minutes, and both are kept for ``KEPT_S``. The page says so.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from clusterwatch.jobs.models import Job
from clusterwatch.store import rank_history

SPAN_NS: Final = 3600 * 10**9
RANKS_EXACT: Final = 512
"""A job of no more ranks is read whole, each time."""
SLOW_RECORDS_MAX: Final = 12_000
"""Step records, about one per rank and minute, in which slow ranks are looked for."""
SLOW_SPAN_MIN_NS: Final = 120 * 10**9
"""No shorter, for a rank's records come about once a minute."""
KEPT_S: Final = 20


@dataclass(frozen=True, slots=True)
class StepTimes:
    """What the chart of step times is drawn from."""

    bands: tuple[rank_history.StepBand, ...]
    slow: tuple[rank_history.SlowRank, ...]
    every: int
    """bands are of the ranks of every so many-th node; 1: of all"""
    slow_span_s: int
    """slow ranks were looked for in the last so many seconds"""
    kept_s: int
    """the numbers are at most so old"""
    by_minute: bool = False
    """steps of single ranks are no longer kept: bands are of the stored minutes, slow ranks unknown"""


def read(job: Job, rank_total: int) -> StepTimes:
    """Bands and slow ranks of the newest hour of steps. Cost: three queries, or none if remembered."""
    if rank_total <= RANKS_EXACT:
        return _read(job, rank_total, 0)
    return _remembered(job.pk, job.attempt, rank_total, int(time.time()) // KEPT_S)


def span(job: Job) -> tuple[int, int]:
    """The last hour of steps the job has, ns UTC."""
    newest = rank_history.newest_step_ns(job.pk, job.attempt)
    end = time.time_ns() if newest is None or job.ended_at is None else newest + 10**9
    start = max(int(job.started_at.timestamp() * 1e9), end - SPAN_NS)
    return min(start, end - 10**9), end


def of_all_ranks(job: Job, rank_total: int) -> list[rank_history.StepBand]:
    """Bands over all ranks: of a large job, or an old one, by the minute, as they are stored."""
    start, end = span(job)
    if rank_total <= RANKS_EXACT and (bands := rank_history.step_bands(job.pk, job.attempt, start, end)):
        return bands
    return rank_history.kept_bands(job.pk, job.attempt, start, end)


def sampled_every(rank_total: int) -> int:
    """Which nodes bands are of: an odd stride, for an even one would see one place of every rack only."""
    return 1 if rank_total <= RANKS_EXACT else -(-rank_total // RANKS_EXACT) | 1


@lru_cache(maxsize=64)
def _remembered(job_id: int, attempt: int, rank_total: int, slot: int) -> StepTimes:
    """Of one ``slot`` of ``KEPT_S`` seconds; ``attempt`` and ``slot`` are there to be told apart by."""
    return _read(Job.objects.get(pk=job_id), rank_total, KEPT_S)


def _read(job: Job, rank_total: int, kept_s: int) -> StepTimes:
    start, end = span(job)
    every, slow_start = sampled_every(rank_total), start
    if every > 1:
        slow_start = max(start, end - max(SLOW_SPAN_MIN_NS, SLOW_RECORDS_MAX * 60 * 10**9 // rank_total))
    if every == 1:
        bands, slow = rank_history.bands_and_slow(job.pk, job.attempt, start, end)
    else:
        bands = rank_history.step_bands(job.pk, job.attempt, start, end, every)
        slow = rank_history.slow_ranks(job.pk, job.attempt, slow_start, end) if bands else []
    if not bands:
        minutes = rank_history.kept_bands(job.pk, job.attempt, start, end)
        return StepTimes(tuple(minutes), (), 1, 0, kept_s, by_minute=bool(minutes))
    return StepTimes(tuple(bands), tuple(slow), every, (end - slow_start) // 10**9, kept_s)
