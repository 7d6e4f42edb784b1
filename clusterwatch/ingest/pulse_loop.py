"""The loop of pulse: one process leads by a lease and publishes once a second, others stand by."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import redis

from clusterwatch.ingest import ranks_now, states
from clusterwatch.ingest.layout import ClusterLayout, JobLayout
from clusterwatch.ingest.layout_keeper import LayoutKeeper
from clusterwatch.ingest.pulse_history import History, Moment
from clusterwatch.store import frames, hot

TICK_S: Final = 1.0
LEASE: Final = "pulse"
LEASE_S: Final = 3.0
"""A leader that does not renew for so long is dead; longer than two ticks, so that one late tick is none."""
READ_AFTER_S: Final = 0.25
"""A gateway writes its second within this: pulse ticks then, not up to a second later."""
SHIFT_MAX_S: Final = 0.1
"""By how much a tick is moved towards that moment."""
RATE_OVER_S: Final = 30.0

log = logging.getLogger("clusterwatch.pulse")


class StepRate:
    """Steps per second of one job, between the moments its step number was seen to rise."""

    def __init__(self) -> None:
        self._step: int | None = None
        self._rises: deque[tuple[float, int]] = deque()

    def add(self, now_s: float, step: int | None) -> float | None:
        """Takes the newest step; returns the rate, None before two rises or after the number fell."""
        if step is None:
            return None
        if self._step is None or step < self._step:
            self._rises.clear()
        elif step > self._step:
            self._rises.append((now_s, step))
        self._step = step
        while len(self._rises) > 2 and self._rises[0][0] < now_s - RATE_OVER_S:
            self._rises.popleft()
        return self._rate(now_s) if len(self._rises) >= 2 else None

    def _rate(self, now_s: float) -> float:
        (first_s, first), (last_s, last) = self._rises[0], self._rises[-1]
        period_s, standing_s = (last_s - first_s) / (last - first), now_s - last_s
        if standing_s > max(RATE_OVER_S, 3 * period_s):
            return 0.0
        span_s = now_s - first_s if standing_s > 2 * period_s else last_s - first_s
        return round((last - first) / span_s, 4)


class Leader:
    """What the leading process holds; made anew when leadership is taken."""

    def __init__(self) -> None:
        self.gateway_ns: int | None = None
        """the newest word of a gateway at the last tick"""
        self._layouts = LayoutKeeper()
        self._publisher = frames.Publisher(takes_over=True)
        self._rates: dict[int, StepRate] = {}
        self._slots: dict[int, tuple[ClusterLayout, JobLayout, ranks_now.Column]] = {}
        self._history = History()

    def tick(self, now_ns: int) -> None:
        """Publishes every topic once. Raises ``redis.RedisError`` when hot state is away."""
        watched = frames.watched()
        watched_jobs = frozenset(int(topic[4:]) for topic in watched if topic.startswith("job:"))
        self._layouts.ask(watched_jobs)
        self.gateway_ns = gateway_ns = hot.newest_gateway_word_ns()
        nodes = hot.read_nodes()
        jobs = self._looks(now_ns)
        self._rates = {job_id: rate for job_id, rate in self._rates.items() if job_id in jobs}
        self._slots = {job_id: kept for job_id, kept in self._slots.items() if job_id in jobs}
        moments = []
        for cluster in self._layouts.clusters.values():
            mine = [job for job in jobs.values() if job.layout.cluster_id == cluster.id]
            state = self._publish_cluster(cluster, nodes, mine, now_ns, gateway_ns)
            moments.append(_moment(cluster, mine, state, now_ns))
        if self._history.is_due(now_ns):
            self._history.offer(moments)
        for job_id in watched_jobs & jobs.keys():
            self._publisher.publish(f"job:{job_id}", states.job_state(jobs[job_id], now_ns, gateway_ns))
        self._publisher.forget(
            t for t in self._publisher.topics() if t.startswith("job:") and t not in watched
        )

    def _looks(self, now_ns: int) -> dict[int, states.JobNow]:
        found: dict[int, states.JobNow] = {}
        gateways = hot.gateways()
        for job_id, layout in self._layouts.jobs.items():
            try:
                found[job_id] = self._look(layout, now_ns, gateways)
            except redis.RedisError:
                raise
            except Exception:  # noqa: BLE001  one job's damaged numbers must not blind the pages of all others
                log.exception("job_unreadable job=%d", job_id)
        return found

    def _look(self, layout: JobLayout, now_ns: int, gateways: Sequence[str]) -> states.JobNow:
        ranks = ranks_now.look(layout, hot.read_job(layout.id, gateways), now_ns)
        rate = self._rates.setdefault(layout.id, StepRate())
        step, _, _ = ranks_now.job_line(ranks)
        return states.JobNow(layout, ranks, rate.add(now_ns / 1e9, step), self._slots_of(layout))

    def _slots_of(self, layout: JobLayout) -> ranks_now.Column:
        """The slots of a job's ranks, worked out again only when the map or the job changed."""
        cluster = self._layouts.clusters.get(layout.cluster_id)
        if cluster is None:
            return np.full(len(layout.rank_id), -1, np.int64)
        kept = self._slots.get(layout.id)
        if kept is None or kept[0] is not cluster or kept[1] is not layout:
            kept = self._slots[layout.id] = cluster, layout, states.slots_of(cluster, layout)
        return kept[2]

    def close(self) -> None:
        """Ends what runs beside the ticks."""
        self._history.close()
        self._layouts.close()

    def _publish_cluster(
        self,
        cluster: ClusterLayout,
        nodes: hot.NodesRead,
        jobs: list[states.JobNow],
        now_ns: int,
        gateway_ns: int | None,
    ) -> Mapping[str, Any]:
        state: Mapping[str, Any] = states.cluster_state(cluster, nodes, jobs, now_ns, gateway_ns)
        bands = self._history.bands_of(cluster.id)
        self._publisher.publish(f"cluster:{cluster.id}", {**state, "bands": bands})
        return state


def _moment(
    cluster: ClusterLayout, jobs: list[states.JobNow], state: Mapping[str, Any], now_ns: int
) -> Moment:
    """What the history keeps of a tick."""
    active = [job for job in jobs if job.layout.state == "running"]
    return Moment(
        layout=cluster,
        now_ns=now_ns,
        state=np.frombuffer(state["slots"], np.uint8),
        job_slots={job.layout.id: job.slots for job in active},
        lateness=[(job.slots, job.ranks.behind) for job in active],
    )


def shift_s(tick_s: float, gateway_ns: int | None) -> float:
    """How to move the next tick so that ticks follow the gateway's writes closely."""
    if gateway_ns is None:
        return 0.0
    late_s = (tick_s - gateway_ns / 1e9 - READ_AFTER_S) % TICK_S
    if late_s < TICK_S / 2:
        return -min(late_s, SHIFT_MAX_S)
    return min(TICK_S - late_s, SHIFT_MAX_S)


class Pulse:
    """The loop: take or renew the lease, and as its holder publish."""

    def __init__(self) -> None:
        self._holder = hot.new_holder()
        self._leader: Leader | None = None
        self._stands_by = False
        self._stop = threading.Event()

    def stop(self, *_: object) -> None:
        """Ends the loop after the tick in progress; a signal handler."""
        self._stop.set()

    def run(self) -> None:
        """Ticks each second until stopped; a late tick is never caught up."""
        while not self._stop.is_set():
            begun_s, at_s = time.monotonic(), time.time()
            self._tick_safely()
            gateway_ns = self._leader.gateway_ns if self._leader else None
            next_s = begun_s + TICK_S + shift_s(at_s, gateway_ns)
            self._stop.wait(max(0.05, next_s - time.monotonic()))
        self._give_up()

    def _tick_safely(self) -> None:
        try:
            self._tick()
        except redis.RedisError as fault:
            log.warning("hot_state_away reason=%s", fault)
            self._resign()
        except Exception:  # noqa: BLE001  one bad tick must not blind every page: the next one tries again
            log.exception("tick_failed")

    def _tick(self) -> None:
        if not hot.take_lease(LEASE, self._holder, LEASE_S):
            self._stand_by()
            return
        if self._leader is None:
            log.info("leading holder=%s pid=%d", self._holder, os.getpid())
            self._leader = Leader()
        self._stands_by = False
        self._leader.tick(time.time_ns())

    def _stand_by(self) -> None:
        if not self._stands_by:
            log.info("standing_by holder=%s pid=%d", self._holder, os.getpid())
        self._stands_by = True
        self._resign()

    def _resign(self) -> None:
        if self._leader is not None:
            self._leader.close()
        self._leader = None

    def _give_up(self) -> None:
        self._resign()
        try:
            hot.drop_lease(LEASE, self._holder)
        except redis.RedisError as fault:
            log.warning("lease_not_given_back reason=%s", fault)
