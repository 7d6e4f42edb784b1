"""The thread that commits: records of all connections in groups, acknowledged after the commit.

In: ``PendingPut`` from the event loop. Out: ``Committed`` through a callback that the loop runs. While the
database is away the group at hand is kept and tried again; nothing is acknowledged, senders are slowed.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from django.db import connection

from clusterwatch.ingest import checks, commit
from clusterwatch.ingest.apply import Origin
from clusterwatch.jobs.announcements import RefLayout
from clusterwatch.store import gateway_notes, series
from collectors.wire import records

logger = logging.getLogger(__name__)

LINGER_S: Final[dict[records.Lane, float]] = {"urgent": 0.02, "bulk": 1.0}
"""How long the first record of a group waits for company. A commit costs as much as ten blocks, and 3,072
nodes send 51 blocks a second: nobody waits for those, so they are gathered; events are not held up."""
GROUP_MAX_RECORDS: Final = 2_000
GROUP_MAX_BYTES: Final = 16 * 1024 * 1024
RETRY_FIRST_S: Final = 0.2
RETRY_MAX_S: Final = 3.0
SLOW_ABOVE_BYTES: Final = 32 * 1024 * 1024
"""Payload that waits beyond this: the database does not keep up, senders are asked to hold back."""
SLOW_AFTER_S: Final = 5.0
"""A commit that took longer: the same."""
SLOW_PAUSE_S: Final = 2 * RETRY_MAX_S
"""Senders hold a lane this long after each failed try; always told again before it passes."""


@dataclass(frozen=True, slots=True)
class PendingPut:
    """Records of one lane as they came; ``sender`` is handed back untouched."""

    sender: Any
    origin: Origin
    lane: records.Lane
    items: Sequence[records.PutItem]
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Committed:
    """A group that is in the database: each put with its result, and what announced ranks mean."""

    results: Sequence[tuple[PendingPut, commit.LaneResult]]
    layouts: Sequence[RefLayout]


@dataclass(slots=True)
class WriterFigures:
    """Counts since the start, for the log and the bench."""

    groups: int = 0
    stored: int = 0
    rejected: int = 0
    retries: int = 0
    busy_s: float = 0.0


@dataclass(slots=True)
class _Queue:
    """Puts of one lane that wait."""

    linger_s: float
    waiting: deque[PendingPut] = field(default_factory=deque)
    records: int = 0
    size_bytes: int = 0
    since_s: float = 0.0
    """monotonic: when it last began to fill"""

    def add(self, put: PendingPut) -> None:
        if not self.waiting:
            self.since_s = time.monotonic()
        self.waiting.append(put)
        self.records += len(put.items)
        self.size_bytes += put.size_bytes

    def due_in_s(self, now_s: float) -> float:
        """Until its puts have waited long enough; endless when there is none."""
        if not self.waiting:
            return math.inf
        if self.records >= GROUP_MAX_RECORDS or self.size_bytes >= GROUP_MAX_BYTES:
            return 0.0
        return self.since_s + self.linger_s - now_s

    def take(self) -> list[PendingPut]:
        """As many as one group may hold, at least one."""
        group: list[PendingPut] = []
        records_left, bytes_left = GROUP_MAX_RECORDS, GROUP_MAX_BYTES
        while self.waiting and (not group or (records_left > 0 and bytes_left > 0)):
            put = self.waiting.popleft()
            self.records -= len(put.items)
            self.size_bytes -= put.size_bytes
            records_left -= len(put.items)
            bytes_left -= put.size_bytes
            group.append(put)
        return group


class Writer:
    """Owns its thread and its database connection."""

    def __init__(
        self,
        on_committed: Callable[[Committed], None],
        on_trouble: Callable[[Sequence[PendingPut], float], None],
        retention_ns: Mapping[str, int],
    ) -> None:
        """Args:
        on_committed: called in this thread after each commit.
        on_trouble: called in this thread after each failed try, with what waits and for how long to pause.
        retention_ns: how long each kind of record is kept, by tag.
        """
        self.figures = WriterFigures()
        self._storing: tuple[gateway_notes.Storing, str, int] = ("ok", "", time.time_ns() // 1_000_000)
        self._commit_since_s: float | None = None
        """monotonic: since when the commit at hand waits for the database"""
        self._told_s = 0.0
        self._on_committed = on_committed
        self._on_trouble = on_trouble
        self._retention_ns = retention_ns
        self._partitions = series.PartitionCache()
        self._queues = {lane: _Queue(linger_s) for lane, linger_s in LINGER_S.items()}
        self._held_bytes = 0
        self._changed = threading.Condition()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ingest-writer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, patience_s: float) -> bool:
        """Commits what waits, for at most ``patience_s``; False when something stayed uncommitted."""
        self._stopping.set()
        with self._changed:
            self._changed.notify()
        self._thread.join(patience_s)
        return not self._thread.is_alive() and not self._waiting()

    @property
    def waiting_bytes(self) -> int:
        """Payload bytes submitted and not yet committed."""
        return self._held_bytes

    def storing(self) -> gateway_notes.StoringNote:
        """How storing goes, in words; from any thread."""
        state, reason, since_ms = self._storing
        if state == "ok" and (hangs_s := self._hangs_s()) > SLOW_AFTER_S:
            state, reason = "slow", f"a commit takes {hangs_s:.0f} s already"
            since_ms = time.time_ns() // 1_000_000 - int(hangs_s * 1000)
        records = sum(queue.records for queue in self._queues.values())
        return gateway_notes.StoringNote(state, since_ms, reason, records, self._held_bytes)

    def _now(self, state: gateway_notes.Storing, reason: str = "") -> None:
        """Notes how it goes; the time is that of the change."""
        before, _, since_ms = self._storing
        if state != before:
            since_ms = time.time_ns() // 1_000_000
            logger.log(logging.INFO if state == "ok" else logging.ERROR, "storing state=%s %s", state, reason)
        self._storing = (state, reason, since_ms)

    def mind_hanging_commit(self) -> None:
        """Asks senders to hold back while a commit neither succeeds nor fails; call it each second."""
        now_s = time.monotonic()
        if self._hangs_s() > SLOW_AFTER_S and now_s - self._told_s > SLOW_PAUSE_S / 2:
            self._told_s = now_s
            with self._changed:
                waiting = self._waiting()
            self._on_trouble(waiting, SLOW_PAUSE_S)

    def _hangs_s(self) -> float:
        since_s = self._commit_since_s
        return time.monotonic() - since_s if since_s is not None else 0.0

    def submit(self, put: PendingPut) -> None:
        """Queues a put; order within a lane is kept. The caller bounds how much it submits."""
        with self._changed:
            queue = self._queues[put.lane]
            was_due_in_s = queue.due_in_s(0.0)
            queue.add(put)
            self._held_bytes += put.size_bytes
            if queue.due_in_s(0.0) < was_due_in_s:  # else the thread sleeps until the right time already
                self._changed.notify()

    def _waiting(self) -> list[PendingPut]:
        return [put for queue in self._queues.values() for put in queue.waiting]

    # --- the thread -----------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while group := self._next_group():
                self._commit(group)
        finally:
            connection.close()

    def _next_group(self) -> list[PendingPut]:
        """Waits until a lane's puts are due; empty when stopping and nothing waits."""
        with self._changed:
            while True:
                now_s = time.monotonic()
                queue = min(self._queues.values(), key=lambda one: one.due_in_s(now_s))
                left_s = queue.due_in_s(now_s)
                if left_s <= 0 or self._stopping.is_set():
                    return queue.take()
                self._changed.wait(min(left_s, 1.0))

    def _commit(self, group: list[PendingPut]) -> None:
        started_s = time.thread_time()
        now_ns = time.time_ns()
        batches = [
            commit.LaneBatch(
                put.origin,
                put.lane,
                [
                    checks.check(put.lane, item.sequence, item.payload, now_ns, self._retention_ns)
                    for item in put.items
                ],
            )
            for put in group
        ]
        begun_s = self._commit_since_s = time.monotonic()
        outcome = self._commit_until_done(group, batches)
        self._commit_since_s = None
        with self._changed:
            self._held_bytes -= sum(put.size_bytes for put in group)
        if outcome is None:
            return
        self._mind_pace(time.monotonic() - begun_s)
        self.figures.groups += 1
        self.figures.stored += outcome.stored_count
        self.figures.rejected += sum(len(lane.rejects) for lane in outcome.lanes)
        self.figures.busy_s += time.thread_time() - started_s
        self._on_committed(Committed(list(zip(group, outcome.lanes, strict=True)), outcome.layouts))

    def _mind_pace(self, took_s: float) -> None:
        """Asks senders to hold back while the database does not keep up; hot frames go on."""
        with self._changed:
            waiting, size_bytes = self._waiting(), self._held_bytes
        if took_s < SLOW_AFTER_S and size_bytes < SLOW_ABOVE_BYTES:
            self._now("ok")
            return
        self._now("slow", f"the last commit took {took_s:.1f} s, {size_bytes // 2**20} MiB wait")
        self._on_trouble(waiting, SLOW_PAUSE_S)

    def _commit_until_done(
        self, group: list[PendingPut], batches: Sequence[commit.LaneBatch]
    ) -> commit.Outcome | None:
        """Tries until the database has it; None when told to stop before."""
        pause_s = RETRY_FIRST_S
        while True:
            try:
                return commit.commit(batches, self._partitions)
            except Exception as error:  # a supervised loop: a fault of ours must not end ingest for everyone
                reason = commit.first_line(error)
                self._now("disk_full" if commit.is_disk_full(error) else "database_away", reason)
                if commit.is_away(error):
                    logger.warning("commit_failed retry_s=%.1f reason=%s", pause_s, reason)
                else:
                    logger.exception("commit_fault retry_s=%.1f", pause_s)
            connection.close()
            self.figures.retries += 1
            with self._changed:
                waiting = [*group, *self._waiting()]
            self._on_trouble(waiting, SLOW_PAUSE_S)
            if self._stopping.wait(pause_s):
                return None
            pause_s = min(2 * pause_s, RETRY_MAX_S)
