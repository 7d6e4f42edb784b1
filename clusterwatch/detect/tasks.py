"""Celery tasks of detection: translate ids into calls, decide nothing.

``tick`` runs once a second and hands each watched job to a task of its own. A job is looked at by one task at
a time (lease); what could not start within its second is dropped, so nothing ever piles up. ``slow`` does the
same every ten seconds for the steps of running jobs, ``goodput`` counts their time each minute. Each cluster
has tasks of its own: ``health`` every five seconds, ``drift`` each minute, ``parts`` every five minutes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from typing import Final

import redis
from celery import Task, shared_task

from clusterwatch.detect import drift, goodput, health, health_blind, jobs, parts, schedule, slow
from clusterwatch.fleet.queries import clusters
from clusterwatch.jobs.goodput_ledger import uncounted_jobs
from clusterwatch.jobs.services import expire_captures
from clusterwatch.store import hot

TICK_LEASE_S: Final = 5.0
JOB_LEASE_S: Final = 15.0
"""Longer than a look may take, so that two never judge one job at once; after a kill -9 it runs out soon."""
SLOW_LEASE_S: Final = 30.0
DRIFT_LEASE_S: Final = 50.0
HEALTH_LEASE_S: Final = 20.0
PARTS_LEASE_S: Final = 120.0
GOODPUT_LEASE_S: Final = 60.0
CLUSTERS_APART_S: Final = 7
"""Between two clusters, so that large ones never hold all workers from the looks of each second."""
log = logging.getLogger(__name__)


def _start(task: Task[[int], bool], ids: Iterable[int], every_s: int, apart_s: int = 0) -> int:
    """Hands each id to a task of its own, ``apart_s`` after the one before; returns how many.

    What could not begin until the next round is dropped: that one comes anyway.
    """
    count = 0
    for place, pk in enumerate(ids):
        wait_s = place * apart_s % every_s
        task.apply_async((pk,), countdown=wait_s, expires=wait_s + every_s)
        count += 1
    return count


@shared_task(
    name="detect.tick", expires=schedule.TICK_EXPIRES_S, soft_time_limit=4, time_limit=8, ignore_result=True
)
def tick() -> int:
    """Starts a look at every watched job; returns how many. A tick that overlaps another does nothing."""
    holder = hot.new_holder()
    try:
        if not hot.take_lease("detect:tick", holder, TICK_LEASE_S):
            return 0
    except redis.RedisError as fault:
        log.warning("tick_without_hot_state reason=%s", fault)
        return 0
    try:
        expire_captures()
        started = 0
        for job_id in jobs.watched_jobs(time.time_ns()).values_list("pk", flat=True):
            detect_job.apply_async((job_id,), expires=schedule.JOB_EXPIRES_S)
            started += 1
        return started
    finally:
        hot.drop_lease("detect:tick", holder)


@shared_task(name="detect.job", soft_time_limit=12, time_limit=14, ignore_result=True)
def detect_job(job_id: int) -> bool:
    """Looks at one job; False when another task is at it."""
    with hot.leased(f"detect:job:{job_id}", JOB_LEASE_S) as is_ours:
        if is_ours:
            try:
                jobs.detect_job(job_id, time.time_ns())
            except redis.RedisError as fault:
                # Hot state went away in the middle: the next tick looks again, nothing was decided.
                log.warning("look_broken_off job=%d reason=%s", job_id, fault)
    return is_ours


@shared_task(
    name="detect.slow", expires=schedule.SLOW_EVERY_S, soft_time_limit=4, time_limit=8, ignore_result=True
)
def look_at_steps() -> int:
    """Starts a look at the new steps of every running job; returns how many."""
    ids = jobs.running_jobs().values_list("pk", flat=True)
    return _start(look_at_job_steps, ids, schedule.SLOW_EVERY_S)


@shared_task(name="detect.job_slow", soft_time_limit=25, time_limit=28, ignore_result=True)
def look_at_job_steps(job_id: int) -> bool:
    """Judges the new steps of one job; False when another task is at it."""
    with hot.leased(f"detect:slow:{job_id}", SLOW_LEASE_S) as is_ours:
        try:
            if is_ours:
                slow.look(job_id, time.time_ns())
        except redis.RedisError as fault:
            # Hot state went away: the next look starts from what is stored.
            log.warning("steps_broken_off job=%d reason=%s", job_id, fault)
            return False
    return is_ours


@shared_task(
    name="detect.drift", expires=schedule.DRIFT_EVERY_S, soft_time_limit=8, time_limit=12, ignore_result=True
)
def compare_nodes() -> int:
    """Starts a comparison of every cluster's nodes; returns how many."""
    ids = clusters().values_list("pk", flat=True)
    return _start(compare_cluster, ids, schedule.DRIFT_EVERY_S, CLUSTERS_APART_S)


@shared_task(name="detect.cluster_drift", soft_time_limit=40, time_limit=45, ignore_result=True)
def compare_cluster(cluster_id: int) -> bool:
    """Compares the nodes of one cluster; False when another task is at it."""
    with hot.leased(f"detect:drift:{cluster_id}", DRIFT_LEASE_S) as is_ours:
        if is_ours:
            drift.compare(cluster_id, time.time_ns())
    return is_ours


@shared_task(
    name="detect.health", expires=schedule.HEALTH_EVERY_S, soft_time_limit=4, time_limit=8, ignore_result=True
)
def look_at_health() -> int:
    """Starts a look at the faults of every cluster's parts; returns how many."""
    ids = clusters().values_list("pk", flat=True)
    return _start(look_at_cluster_health, ids, schedule.HEALTH_EVERY_S)


@shared_task(name="detect.cluster_health", soft_time_limit=16, time_limit=18, ignore_result=True)
def look_at_cluster_health(cluster_id: int) -> bool:
    """Looks at the faults of one cluster's parts; False when another task is at it."""
    with hot.leased(f"detect:health:{cluster_id}", HEALTH_LEASE_S) as is_ours:
        try:
            if is_ours:
                health_blind.look(cluster_id, time.time_ns())
                health.look(cluster_id, time.time_ns())
        except redis.RedisError as fault:
            # Hot state went away: the next look reads a day of events again.
            log.warning("health_broken_off cluster=%d reason=%s", cluster_id, fault)
            return False
    return is_ours


@shared_task(
    name="detect.parts", expires=schedule.PARTS_EVERY_S, soft_time_limit=8, time_limit=12, ignore_result=True
)
def look_at_parts() -> int:
    """Starts a look at the parts of every cluster; returns how many."""
    ids = clusters().values_list("pk", flat=True)
    return _start(look_at_cluster_parts, ids, schedule.PARTS_EVERY_S, CLUSTERS_APART_S)


@shared_task(name="detect.cluster_parts", soft_time_limit=100, time_limit=110, ignore_result=True)
def look_at_cluster_parts(cluster_id: int) -> bool:
    """Notes where the parts of one cluster sit; False when another task is at it."""
    with hot.leased(f"detect:parts:{cluster_id}", PARTS_LEASE_S) as is_ours:
        if is_ours:
            parts.look(cluster_id, time.time_ns())
    return is_ours


@shared_task(
    name="detect.goodput",
    expires=schedule.GOODPUT_EVERY_S,
    soft_time_limit=8,
    time_limit=12,
    ignore_result=True,
)
def count_time() -> int:
    """Starts a count of every job's time, spread over the minute; returns how many."""
    ids = uncounted_jobs(time.time_ns()).values_list("pk", flat=True)
    return _start(count_job_time, ids, schedule.GOODPUT_EVERY_S, apart_s=1)


@shared_task(name="detect.job_goodput", soft_time_limit=50, time_limit=55, ignore_result=True)
def count_job_time(job_id: int) -> bool:
    """Counts one job's time up to now; False when another task is at it."""
    with hot.leased(f"detect:goodput:{job_id}", GOODPUT_LEASE_S) as is_ours:
        if is_ours:
            goodput.look(job_id, time.time_ns())
    return is_ours
