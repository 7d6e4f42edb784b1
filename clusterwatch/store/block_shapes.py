"""Headers of minute blocks, stored once: ``block_shape`` and what a writer knows of it.

In: decoded headers. Out: the number of each header's row. A cluster may bring ``settings.BLOCK_SHAPES_MAX``
different headers; a block with one more is refused, since each costs memory wherever blocks are read.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

import msgspec
from django.conf import settings
from django.db import connection, transaction

from collectors.wire import blocks
from collectors.wire.records import BlockMetric

DAY_S: Final = 86_400
UNUSED_DAYS: Final = 7
"""A shape is let go this long after the last row that may name it: well above what a writer remembers."""
_SHAPE_LOCK: Final = 0x636C7368
"""Advisory lock, with the cluster: one writer counts and adds shapes at a time."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A header that was found sound."""

    metrics: tuple[BlockMetric, ...]
    expected_bytes: int
    """length of the decompressed data"""
    series_count: int
    """over all metrics: numbers in each plane of the rollup"""
    digest: bytes


class ShapeKey(NamedTuple):
    """One header of one cluster."""

    cluster_id: int
    shape: Shape


@lru_cache(maxsize=4_096)
def shape_of(metrics: tuple[BlockMetric, ...]) -> Shape:
    """What follows from a header; a fleet has few, so each is worked out once per process.

    Raises:
        BlockError: no block can have it.
    """
    total = blocks.expected_bytes(metrics)
    digest = hashlib.blake2b(msgspec.msgpack.encode(metrics), digest_size=16).digest()
    return Shape(metrics, total, sum(metric.series for metric in metrics), digest)


class BlockShapes:
    """Row numbers of the shapes a writer has met. Safe between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[tuple[int, bytes], int] = {}
        self._day = 0

    def ids(self, wanted: Iterable[ShapeKey]) -> dict[tuple[int, bytes], int]:
        """(cluster, digest) -> row; one that is missing would be over the cluster's limit.

        Costs a transaction of its own for a shape not seen before today; call outside the ingest transaction,
        whose end must not take the row away from those who know it.
        """
        by_key = {(key.cluster_id, key.shape.digest): key.shape for key in wanted}
        today = int(time.time() // DAY_S)
        with self._lock:
            if today != self._day:
                self._known.clear()
                self._day = today
            found = {key: self._known[key] for key in by_key if key in self._known}
        fresh: dict[int, list[Shape]] = {}
        for key, shape in by_key.items():
            if key not in found:
                fresh.setdefault(key[0], []).append(shape)
        for cluster_id, shapes in sorted(fresh.items()):
            found |= {(cluster_id, digest): row for digest, row in _ensure(cluster_id, shapes).items()}
        with self._lock:
            self._known |= found
        return found

    def forget(self) -> None:
        """For when rows may have gone."""
        with self._lock:
            self._known.clear()


def drop_unused(kept_days: int) -> int:
    """Deletes headers that no row can name any more; returns how many.

    Args:
        kept_days: the longest retention of the tables that name shapes.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            "DELETE FROM block_shape WHERE last_seen_on < current_date - %s::integer",
            [kept_days + UNUSED_DAYS],
        )
        return int(cursor.rowcount)


def _ensure(cluster_id: int, shapes: Sequence[Shape]) -> dict[bytes, int]:
    """digest -> row of those that are there or could be added."""
    by_digest = {shape.digest: shape for shape in shapes}
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s, %s)", [_SHAPE_LOCK, cluster_id % 2**31])
        cursor.execute(
            "UPDATE block_shape SET last_seen_on = current_date WHERE cluster_id = %s AND digest = ANY(%s)"
            " RETURNING digest, id",
            [cluster_id, list(by_digest)],
        )
        found = {bytes(digest): int(row) for digest, row in cursor.fetchall()}
        missing = [shape for digest, shape in by_digest.items() if digest not in found]
        if not missing:
            return found
        cursor.execute("SELECT count(*) FROM block_shape WHERE cluster_id = %s", [cluster_id])
        free = int(settings.BLOCK_SHAPES_MAX) - int(cursor.fetchone()[0])
        for shape in missing[: max(0, free)]:
            cursor.execute(
                "INSERT INTO block_shape (cluster_id, digest, metrics) VALUES (%s, %s, %s) RETURNING id",
                [cluster_id, shape.digest, msgspec.json.encode(shape.metrics).decode()],
            )
            found[shape.digest] = int(cursor.fetchone()[0])
    return found


def read(ids: Iterable[int]) -> dict[int, tuple[BlockMetric, ...]]:
    """Headers by their row; one that is not there is left out."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT id, metrics::text FROM block_shape WHERE id = ANY(%s)", [sorted(set(ids))])
        return {
            row: msgspec.json.decode(text, type=tuple[BlockMetric, ...]) for row, text in cursor.fetchall()
        }
