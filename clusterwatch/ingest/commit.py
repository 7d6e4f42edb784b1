"""One ingest transaction: lock the cursors, skip what is stored, COPY the rest, advance, commit.

In: checked records of many lanes. Out: per lane how far it is committed and which records were refused.
Exactly once: cursors move in the transaction that stores their records, with synchronous commit; a batch
whose commit's fate is unknown is simply tried again, and finds its records below the cursor.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import psycopg
from django.db import InterfaceError, OperationalError, connection, transaction

from clusterwatch.ingest.apply import Applier, Origin
from clusterwatch.ingest.checks import Checked
from clusterwatch.jobs.announcements import RefLayout
from clusterwatch.store import cursors, series
from collectors.wire import records

logger = logging.getLogger(__name__)

_AWAY_CLASSES: Final = frozenset({"08", "40", "53", "55", "57", "58"})
"""SQLSTATE classes that say nothing about our records: connection, rollback (deadlock), no resources, locks,
operator intervention, system. Source: PostgreSQL manual, appendix A."""

_DISK_FULL: Final = "53100"


def is_away(error: BaseException) -> bool:
    """The database cannot be reached or asks to try again; anything else is about the records."""
    if not isinstance(
        error, (OperationalError, InterfaceError, psycopg.OperationalError, psycopg.InterfaceError)
    ):
        return False
    state = getattr(error, "sqlstate", None) or getattr(error.__cause__, "sqlstate", None)
    return state is None or state[:2] in _AWAY_CLASSES


def is_disk_full(error: BaseException) -> bool:
    """PostgreSQL has no room: an operator's matter, and nothing about our records."""
    state = getattr(error, "sqlstate", None) or getattr(error.__cause__, "sqlstate", None)
    return state == _DISK_FULL


@dataclass(frozen=True, slots=True)
class LaneBatch:
    """Records of one lane from one connection, sequences rising."""

    origin: Origin
    lane: records.Lane
    records: Sequence[Checked]

    @property
    def key(self) -> cursors.LaneKey:
        return cursors.LaneKey(self.origin.cluster, self.origin.node, self.origin.epoch, self.lane)


@dataclass(slots=True)
class LaneResult:
    """What became of a ``LaneBatch``."""

    committed: int
    """everything up to here is stored, rejected and counted, or expired and counted"""
    rejects: list[tuple[int, str]] = field(default_factory=list)


@dataclass(slots=True)
class Outcome:
    """Results in the order of the batches, and what hot frames of announced ranks mean."""

    lanes: list[LaneResult]
    layouts: list[RefLayout] = field(default_factory=list)
    stored_count: int = 0


def commit(batches: Sequence[LaneBatch], partitions: series.PartitionCache) -> Outcome:
    """Commits batches together; a record that the database refuses costs only itself.

    Raises:
        Exception: for which ``is_away`` holds: nothing is known to be stored; call again with the same.
    """
    try:
        return _commit(batches, partitions, _apply_together)
    except Exception as error:  # sorted by is_away: one bad record must never stop a lane
        if is_away(error):
            raise
        logger.warning("group_refused: every record for itself now, reason=%s", first_line(error))
        # Perhaps a partition was dropped under us.
        partitions.forget()
    return _commit(batches, partitions, _apply_one_by_one)


_Apply = Callable[[LaneBatch, Sequence[Checked], "_Work"], list[tuple[int, str]]]


@dataclass(slots=True)
class _Work:
    """State of one transaction."""

    applier: Applier
    shapes: Mapping[tuple[int, bytes], int]
    positions: dict[cursors.LaneKey, int]
    changes: dict[cursors.LaneKey, cursors.Advance] = field(default_factory=dict)
    stored_count: int = 0


def _commit(batches: Sequence[LaneBatch], partitions: series.PartitionCache, apply: _Apply) -> Outcome:
    kept = [(batch.origin, c.record) for batch in batches for c in batch.records if c.record is not None]
    partitions.prepare(Applier.partitions_of(record for _, record in kept))
    shapes = partitions.shapes.ids(Applier.shapes_of(kept))
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SET LOCAL synchronous_commit = on")
        positions = partitions.lanes.lock(batch.key for batch in batches)
        work = _Work(Applier(shapes), shapes, positions)
        results = [_take(batch, work, apply) for batch in batches]
        layouts = work.applier.finish()
        partitions.lanes.advance(work.changes)
    return Outcome(results, layouts, work.stored_count)


def _take(batch: LaneBatch, work: _Work, apply: _Apply) -> LaneResult:
    """Takes the new records of one batch and moves its cursor."""
    key = batch.key
    position = work.positions[key]
    fresh = [checked for checked in batch.records if checked.sequence > position]
    if not fresh:
        return LaneResult(position)
    rejects = [(c.sequence, c.reason) for c in fresh if c.reason]
    good = [c for c in fresh if c.record is not None]
    unstorable = apply(batch, good, work)
    before = work.changes.get(key, cursors.Advance(position))
    stored_count = len(good) - len(unstorable)
    work.changes[key] = cursors.Advance(
        sequence=fresh[-1].sequence,
        stored_count=before.stored_count + stored_count,
        rejected_count=before.rejected_count + len(rejects) + len(unstorable),
        expired_count=before.expired_count + sum(c.expired for c in fresh),
        dropped_count=before.dropped_count + _dropped_count(good),
    )
    work.positions[key] = fresh[-1].sequence
    work.stored_count += stored_count
    return LaneResult(fresh[-1].sequence, sorted(rejects + unstorable))


def _dropped_count(good: Sequence[Checked]) -> int:
    return sum(sum(c.record.counts.values()) for c in good if isinstance(c.record, records.Dropped))


def _apply_together(batch: LaneBatch, good: Sequence[Checked], work: _Work) -> list[tuple[int, str]]:
    refused = []
    for checked in good:
        assert checked.record is not None
        if reason := work.applier.refusal(batch.origin, checked.record):
            refused.append((checked.sequence, reason))
        else:
            work.applier.add(batch.origin, checked.sequence, checked.record)
    return refused


def _apply_one_by_one(batch: LaneBatch, good: Sequence[Checked], work: _Work) -> list[tuple[int, str]]:
    """Each record in a savepoint of its own; the bad one is found and refused."""
    refused = []
    for checked in good:
        assert checked.record is not None
        if reason := work.applier.refusal(batch.origin, checked.record):
            refused.append((checked.sequence, reason))
            continue
        try:
            with transaction.atomic():
                single = Applier(work.shapes)
                single.add(batch.origin, checked.sequence, checked.record)
                work.applier.layouts += single.finish()
        except Exception as error:  # sorted by is_away: what is left is about this record
            if is_away(error):
                raise
            refused.append((checked.sequence, f"it cannot be stored: {first_line(error)}"))
    return refused


def first_line(error: BaseException) -> str:
    """What a log line says of an error."""
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
