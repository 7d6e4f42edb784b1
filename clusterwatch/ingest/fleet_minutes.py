"""When minutes of a fleet are built: once, 60 s after their end, and again for what came late.

In: a cluster and the time. Out: rows of ``fleet_minute`` and ``job_steps``. Agents spread their blocks over
the 50 s after a minute, so nearly all are there at 60 s; what is not is noted when it is stored.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import Final

from clusterwatch.fleet.slot_history import slots_at
from clusterwatch.store import job_steps, late_minutes, partitions
from clusterwatch.store.fleet_build import build_fleet_minute

MINUTE_NS: Final = 60 * 10**9
READY_AFTER_NS: Final = 60 * 10**9
"""After the end of a minute."""
FIRST_LOOK_BACK: Final = 60
"""Minutes before now that are built when a cluster is seen for the first time."""
RUN_MAX_S: Final = 25.0
"""A run that has more to do (after a stop of hours) leaves the rest to the next."""

log = logging.getLogger("clusterwatch.fleet_minutes")


@dataclass(frozen=True, slots=True)
class Built:
    """What one run did."""

    fresh: int = 0
    again: int = 0


def build_due(cluster_id: int, now_ns: int) -> Built:
    """Builds the minutes that are due and not yet built, oldest first, then those noted as late.

    One caller per cluster at a time. A run that dies half-way loses nothing: its minute stays in the list of
    those to be built again.

    Raises: ``django.db.Error``.
    """
    deadline_s = time.monotonic() + RUN_MAX_S
    newest_ns = (now_ns - READY_AFTER_NS) // MINUTE_NS * MINUTE_NS - MINUTE_NS
    horizon_ns = late_minutes.horizon_ns(cluster_id)
    first_ns = newest_ns - FIRST_LOOK_BACK * MINUTE_NS if horizon_ns is None else horizon_ns + MINUTE_NS
    oldest_ns = partitions.oldest_kept_ns("fleet_minute", now_ns) // MINUTE_NS * MINUTE_NS
    first_ns = max(first_ns, oldest_ns)
    fresh = again = 0
    for t_ns in range(first_ns, newest_ns + 1, MINUTE_NS):
        if time.monotonic() > deadline_s or not late_minutes.move_horizon(cluster_id, t_ns):
            return Built(fresh, again)
        _build(cluster_id, t_ns)
        late_minutes.finish(cluster_id, late_minutes.LateMinute(t_ns, 0))
        fresh += 1
    for minute in late_minutes.waiting(cluster_id, limit=100):
        if time.monotonic() > deadline_s:
            break
        if minute.t_ns >= oldest_ns:
            _build(cluster_id, minute.t_ns)
        late_minutes.finish(cluster_id, minute)
        again += 1
    return Built(fresh, again)


def _build(cluster_id: int, t_ns: int) -> None:
    started_s = time.process_time()
    nodes = build_fleet_minute(cluster_id, t_ns, slots_at(cluster_id, t_ns))
    job_steps.build(cluster_id, t_ns)
    spent_s = time.process_time() - started_s
    log.debug("fleet_minute cluster=%d t_ns=%d nodes=%d cpu_s=%.3f", cluster_id, t_ns, nodes, spent_s)
