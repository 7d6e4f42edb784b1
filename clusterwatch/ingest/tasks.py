"""Celery tasks of ingest: translate ids into calls, decide nothing.

``fleet_minutes`` hands each cluster to a task of its own; a cluster is built by one task at a time (lease).
"""

from __future__ import annotations

import logging
import time
from typing import Final

from celery import shared_task

from clusterwatch.fleet.queries import clusters
from clusterwatch.ingest import fleet_minutes, schedule
from clusterwatch.store import hot

BUILD_LEASE_S: Final = 50.0
"""Longer than a run may take, so that two never build one cluster at once."""
log = logging.getLogger(__name__)


@shared_task(
    name="ingest.fleet_minutes",
    expires=schedule.FLEET_EVERY_S,
    soft_time_limit=8,
    time_limit=12,
    ignore_result=True,
)
def build_fleet_minutes() -> int:
    """Starts a run for every cluster; returns how many."""
    started = 0
    for cluster_id in clusters().values_list("pk", flat=True):
        build_cluster_minutes.apply_async((cluster_id,), expires=schedule.FLEET_EVERY_S)
        started += 1
    return started


@shared_task(name="ingest.cluster_minutes", soft_time_limit=40, time_limit=45, ignore_result=True)
def build_cluster_minutes(cluster_id: int) -> bool:
    """Builds what is due of one cluster; False when another task is at it."""
    with hot.leased(f"ingest:fleet_minutes:{cluster_id}", BUILD_LEASE_S) as is_ours:
        if is_ours:
            built = fleet_minutes.build_due(cluster_id, time.time_ns())
            if built.again or built.fresh > 1:
                log.info("fleet_minutes cluster=%d fresh=%d again=%d", cluster_id, built.fresh, built.again)
    return is_ours
