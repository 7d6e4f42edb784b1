"""What pulse keeps every 10 s: percentiles of each metric over the fleet and over each job, and maps.

In: a moment of the leader's tick. Out: bands for live pages (``bands_of``), rows of ``fleet_percentile``
and ``map_frame``. A thread of its own does the work: a slow or absent database delays no live frame. While
one moment is being written the next is dropped, with a word.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import redis
from django.db import Error as DatabaseFault
from django.db import close_old_connections, connection
from numpy.typing import NDArray

from clusterwatch.ingest import map_bytes
from clusterwatch.ingest.layout import ClusterLayout
from clusterwatch.store import bands, fleet_series
from clusterwatch.store.fleet_series import PercentileRow

log = logging.getLogger("clusterwatch.pulse")

EVERY_S: Final = bands.EVERY_S
_EVERY_NS: Final = EVERY_S * 1_000_000_000

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Moment:
    """One cluster at one tick; nothing of it changes any more."""

    layout: ClusterLayout
    now_ns: int
    state: NDArray[np.uint8]
    """byte of the live map, per slot"""
    job_slots: Mapping[int, Ints]
    """slots of each active job's ranks, -1 where not known"""
    lateness: Sequence[tuple[Ints, Ints]]
    """per job: slots of its ranks and how many calls they are behind"""


class History:
    """The thread of a leading pulse."""

    def __init__(self) -> None:
        self._moments: queue.Queue[Sequence[Moment] | None] = queue.Queue(1)
        self._bands: dict[int, dict[str, bands.Band]] = {}
        self._counters: dict[int, Floats] = {}
        self._period = -1
        self._thread = threading.Thread(target=self._run, name="pulse-history", daemon=True)
        self._thread.start()

    def is_due(self, now_ns: int) -> bool:
        """Whether a new period has begun; True once for each."""
        period, self._period = self._period, now_ns // _EVERY_NS
        return period != self._period

    def offer(self, moments: Sequence[Moment]) -> None:
        """Hands over one tick; never waits."""
        try:
            self._moments.put_nowait(moments)
        except queue.Full:
            log.warning("history_late: the last percentiles are still being written, these are dropped")

    def bands_of(self, cluster_id: int) -> Mapping[str, bands.Band]:
        """The newest percentiles of a cluster."""
        return self._bands.get(cluster_id, {})

    def close(self) -> None:
        """Ends the thread after the moment in progress."""
        with self._moments.mutex:
            self._moments.queue.clear()
        self._moments.put(None)

    # --- the thread --------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while (moments := self._moments.get()) is not None:
                for moment in moments:
                    self._take_safely(moment)
        finally:
            connection.close()

    def _take_safely(self, moment: Moment) -> None:
        try:
            self._take(moment)
        except redis.RedisError as fault:
            log.warning("history_without_hot_state reason=%s", fault)
        except DatabaseFault as fault:
            log.warning("history_not_kept the database is away reason=%s", str(fault).partition("\n")[0])
            connection.close()
        except Exception:  # noqa: BLE001  one odd cluster must not end the history of all
            log.exception("history_failed cluster=%d", moment.layout.id)

    def _take(self, moment: Moment) -> None:
        cluster_id, slot_count = moment.layout.id, len(moment.layout.node)
        metrics = bands.fresh_values(cluster_id, slot_count, moment.now_ns)
        self._bands[cluster_id] = {
            name: band for name, values in metrics.items() if (band := bands.band(values, moment.now_ns))
        }
        t_ns = moment.now_ns // _EVERY_NS * _EVERY_NS
        close_old_connections()
        fleet_series.write_percentiles(_percentiles(moment, metrics, t_ns))
        maps = self._maps(moment, metrics, slot_count)
        for frame in maps.values():
            frame[moment.layout.node < 0] = map_bytes.CLOSED
        fleet_series.write_map_frames(cluster_id, t_ns, moment.layout.slots_version, maps)

    def _maps(
        self, moment: Moment, metrics: Mapping[str, Floats], slot_count: int
    ) -> dict[str, NDArray[np.uint8]]:
        """The map in every mode that has data."""
        maps = {
            "state": moment.state.copy(),
            "job": map_bytes.jobs(slot_count, moment.job_slots),
            "lateness": map_bytes.lateness(slot_count, moment.lateness),
        }
        for mode, (metric, low, high) in map_bytes.SCALES.items():
            if metric in metrics:
                maps[mode] = map_bytes.scaled(metrics[metric], low, high)
        counters = [metrics[name] for name in map_bytes.LINK_ERRORS if name in metrics]
        if counters:
            now: Floats = np.stack(counters).sum(axis=0, dtype=np.float32)
            before = self._counters.get(moment.layout.id, now)
            maps["link_errors"] = map_bytes.link_errors(now, before)
            self._counters[moment.layout.id] = now
        return maps


def _percentiles(moment: Moment, metrics: Mapping[str, Floats], t_ns: int) -> list[PercentileRow]:
    """Rows of the fleet and of each job."""
    scopes: list[tuple[str, Ints | slice]] = [(fleet_series.FLEET_SCOPE, slice(None))]
    scopes += [
        (fleet_series.job_scope(job_id), np.unique(slots[slots >= 0]))
        for job_id, slots in moment.job_slots.items()
    ]
    rows = (
        fleet_series.percentile_row(moment.layout.id, scope, metric, t_ns, values[slots])
        for scope, slots in scopes
        for metric, values in metrics.items()
    )
    return [row for row in rows if row is not None]
