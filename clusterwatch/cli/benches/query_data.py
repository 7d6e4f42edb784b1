"""The data of ``bench query``: written with the store's own codecs, by COPY, as ingest and pulse leave it.

In: ``Signals`` and a plan. Out: rows in every series table, hot state, and ``Truth``: what the questions of
the bench must answer, kept as numpy made it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from django.db import connection, transaction
from numpy.typing import NDArray

from clusterwatch.cli.benches.query_signals import GPUS, SAMPLES, Chunk, Floats32, Ints, Signals
from clusterwatch.fleet.models import Cluster, Node, Slot
from clusterwatch.store import (
    block_arrays,
    block_rows,
    block_shapes,
    fleet_planes,
    fleet_series,
    hot,
    hot_writes,
    partitions,
)
from clusterwatch.store.answers import MINUTE_NS, SECOND_NS
from collectors.wire import blocks
from collectors.wire.metrics import GPU_METRICS
from collectors.wire.records import BlockMetric

NAMES: Final = tuple(metric.name for metric in GPU_METRICS)
POWER: Final = NAMES.index("gpu_power_w")
JOBS: Final = 12
PERCENTILE_EVERY_S: Final = 10
MODES: Final = fleet_series.MODES
_NOISY_MODES: Final = frozenset(("power", "temperature", "sm_activity", "lateness"))
_COMMIT_MINUTES: Final = 60


@dataclass(frozen=True, slots=True)
class Plan:
    """What is generated: everything ends at ``end_minute`` (minutes since 1970, not included)."""

    gpus: int
    hours: int
    fleet_raw_minutes: int
    end_minute: int

    @property
    def first_minute(self) -> int:
        return self.end_minute - 60 * self.hours

    @property
    def first_fleet_raw(self) -> int:
        return max(self.first_minute, self.end_minute - self.fleet_raw_minutes)


@dataclass(slots=True)
class Truth:
    """Numbers the answers are checked against."""

    power: NDArray[np.float64]
    """(minutes with raw of all, slots, seconds)"""
    rack: dict[int, NDArray[np.float64]] = field(default_factory=dict)
    """minute -> (nodes, metrics, GPUs, seconds) of the rack"""
    percentiles: dict[int, NDArray[np.float64]] = field(default_factory=dict)
    """ns -> (p50, p99) of power over the fleet"""
    frames: dict[int, NDArray[np.uint8]] = field(default_factory=dict)
    """ns -> the map in mode state"""


@dataclass(frozen=True, slots=True)
class Made:
    """What was written, for the questions and for the report."""

    plan: Plan
    cluster_id: int
    node_ids: tuple[int, ...]
    truth: Truth
    rows: dict[str, int]
    seconds: dict[str, float]


def generate(plan: Plan, say: Callable[[str], None]) -> Made:
    """Writes everything; the schema is there already. Cost: about 4 minutes for a day of 24,576 GPUs."""
    signals = Signals(plan.gpus // GPUS, plan.first_minute)
    cluster_id, node_ids = _fleet(signals.node_count)
    _partitions(plan)
    truth = Truth(np.empty((plan.end_minute - plan.first_fleet_raw, signals.slot_count, SAMPLES), np.float64))
    writer = _Writer(plan, signals, cluster_id, node_ids, truth)
    rows: dict[str, int] = {}
    seconds: dict[str, float] = {}
    for name, work in writer.parts():
        started = time.perf_counter()
        rows[name] = work()
        seconds[name] = round(time.perf_counter() - started, 1)
        say(f"  {name}: {rows[name]} rows in {seconds[name]} s")
    return Made(plan, cluster_id, node_ids, truth, rows, seconds)


def _fleet(node_count: int) -> tuple[int, tuple[int, ...]]:
    """A cluster, its nodes in racks of two, a slot per GPU."""
    slot_count = node_count * GPUS
    cluster = Cluster.objects.create(
        name="bench", simulated=True, slot_count=slot_count, slots_version=slot_count
    )
    nodes = Node.objects.bulk_create(
        Node(cluster=cluster, name=f"n{i:05d}", machine_id=f"m{i}", rack=f"r{i // 2:05d}")
        for i in range(node_count)
    )
    Slot.objects.bulk_create(
        (
            Slot(cluster=cluster, number=place * GPUS + gpu, node=node, gpu_index=gpu)
            for place, node in enumerate(nodes)
            for gpu in range(GPUS)
        ),
        batch_size=5_000,
    )
    return cluster.pk, tuple(node.pk for node in nodes)


def _partitions(plan: Plan) -> None:
    times = range(plan.first_minute * MINUTE_NS, plan.end_minute * MINUTE_NS + MINUTE_NS, 60 * MINUTE_NS)
    for table in ("raw_block", "node_minute", "fleet_minute", "fleet_percentile", "map_frame"):
        partitions.ensure(table, times)


class _Writer:
    """One method per table; each returns its number of rows."""

    def __init__(
        self, plan: Plan, signals: Signals, cluster_id: int, node_ids: Sequence[int], truth: Truth
    ) -> None:
        self._plan, self._signals, self._truth = plan, signals, truth
        self._cluster_id, self._node_ids = cluster_id, node_ids
        self._metrics = [
            BlockMetric(metric.name, metric.unit, metric.resolution, GPUS, SAMPLES) for metric in GPU_METRICS
        ]
        shape = block_shapes.shape_of(tuple(self._metrics))
        ids = block_shapes.BlockShapes().ids([block_shapes.ShapeKey(cluster_id, shape)])
        self._shape_id = ids[cluster_id, shape.digest]
        self._tail: dict[int, Floats32] = {}
        """minute -> (4, metrics, slots) of the minutes with raw blocks of all"""

    def parts(self) -> Iterator[tuple[str, Callable[[], int]]]:
        yield "raw_block and node_minute", self.blocks
        yield "fleet_minute", self.fleet_minutes
        yield "fleet_percentile", self.percentiles
        yield "map_frame", self.map_frames
        yield "hot metrics", self.hot_metrics

    # --- raw blocks and their rollups ---------------------------------------------------------------------

    def blocks(self) -> int:
        """A day of the rack, and the newest minutes of all."""
        rack, *others = self._signals.chunks()
        count = 0
        for minutes in _batches(range(self._plan.first_minute, self._plan.end_minute), _COMMIT_MINUTES):
            made = ((minute, rack, self._signals.minute(minute, rack)) for minute in minutes)
            count += self._store_blocks(self._remember_rack(made))
        for minute in range(self._plan.first_fleet_raw, self._plan.end_minute):
            self._tail[minute] = np.empty((4, len(NAMES), self._signals.slot_count), np.float32)
            self._remember_tail(minute, rack, self._truth_of_rack(minute))
            for chunk in others:
                multiples = self._signals.minute(minute, chunk)
                self._remember_tail(minute, chunk, multiples)
                count += self._store_blocks([(minute, chunk, multiples)])
        return count

    def _remember_rack(self, made: Iterable[tuple[int, Chunk, Ints]]) -> Iterator[tuple[int, Chunk, Ints]]:
        for minute, chunk, multiples in made:
            self._truth.rack[minute] = self._signals.values(multiples)
            yield minute, chunk, multiples

    def _truth_of_rack(self, minute: int) -> Ints:
        return self._signals.minute(minute, next(self._signals.chunks()))

    def _remember_tail(self, minute: int, chunk: Chunk, multiples: Ints) -> None:
        planes = self._signals.rollup(multiples)  # (nodes, 4, metrics, GPUs)
        self._tail[minute][:, :, chunk.slots] = planes.transpose(1, 2, 0, 3).reshape(4, len(NAMES), -1)
        power = self._signals.values(multiples)[:, POWER].reshape(-1, SAMPLES)
        self._truth.power[minute - self._plan.first_fleet_raw, chunk.slots] = power

    def _store_blocks(self, made: Iterable[tuple[int, Chunk, Ints]]) -> int:
        rows = [row for minute, chunk, multiples in made for row in self._rows(minute, chunk, multiples)]
        with transaction.atomic(), connection.cursor() as cursor:
            for table, encoded in (
                ("raw_block", block_rows.raw_rows(rows)),
                ("node_minute", block_rows.minute_rows(rows)),
            ):
                _copy(cursor, table, encoded)
        return len(rows)

    def _rows(self, minute: int, chunk: Chunk, multiples: Ints) -> Iterator[block_rows.BlockRow]:
        frames = block_arrays.compress(block_arrays.shuffled_bytes(multiples))
        rollups = self._signals.rollup(multiples)
        for place, (frame, rollup) in enumerate(zip(frames, rollups, strict=True), start=chunk.nodes.start):
            yield block_rows.BlockRow(
                self._cluster_id,
                self._node_ids[place],
                minute * MINUTE_NS,
                "bench",
                minute - self._plan.first_minute + 1,
                self._shape_id,
                blocks.CODEC,
                frame,
                rollup.astype("<f4").tobytes(),
            )

    # --- what lies by metric ------------------------------------------------------------------------------

    def fleet_minutes(self) -> int:
        """All metrics of all minutes; the rack's numbers are those of its blocks."""
        count = 0
        rack = next(self._signals.chunks())
        for minutes in _batches(range(self._plan.first_minute, self._plan.end_minute), _COMMIT_MINUTES):
            rows: list[tuple[Any, ...]] = []
            for minute in minutes:
                planes = self._tail.get(minute)
                if planes is None:
                    planes = self._signals.minute_rollup(minute)
                    of_rack = self._signals.rollup(self._signals.minute(minute, rack))
                    planes[:, :, rack.slots] = of_rack.transpose(1, 2, 0, 3).reshape(4, len(NAMES), -1)
                rows += self._fleet_rows(minute, planes)
            count += _copy_rows("fleet_minute", ("int8", "text", "int8", "int4", "int4", "bytea"), rows)
        return count

    def _fleet_rows(self, minute: int, planes: Floats32) -> Iterator[tuple[Any, ...]]:
        """One row per metric."""
        for place, name in enumerate(NAMES):
            data = fleet_planes.encode_planes(planes[:, place])
            slots, nodes = self._signals.slot_count, self._signals.node_count
            yield self._cluster_id, name, minute * MINUTE_NS, slots, nodes, data

    def percentiles(self) -> int:
        """Every 10 s: of the fleet (exact where there are raw blocks of all), and of each job."""
        start_ns, end_ns = self._plan.first_minute * MINUTE_NS, self._plan.end_minute * MINUTE_NS
        times = np.arange(start_ns, end_ns, PERCENTILE_EVERY_S * SECOND_NS, dtype=np.int64)
        scopes = ["fleet", *(f"job:{number}" for number in range(1, JOBS + 1))]
        random = np.random.default_rng(3)
        count = 0
        for place, name in enumerate(NAMES):
            level = float(np.nanmean(self._tail[self._plan.end_minute - 1][1, place]))
            for scope in scopes:
                noise = random.standard_normal((len(times), 8)).astype(np.float32)
                table = np.sort(level * (1 + noise / 50), axis=1).astype(np.float32)
                if scope == "fleet" and place == POWER:
                    self._exact_percentiles(times, table)
                count += self._copy_percentiles(scope, name, times, table)
        return count

    def _exact_percentiles(self, times: NDArray[np.int64], table: Floats32) -> None:
        """Columns as in the sorted table: low, p1, p25, p50, mean, p75, p99, high."""
        first_ns = self._plan.first_fleet_raw * MINUTE_NS
        for row in np.flatnonzero(times >= first_ns):
            second = int(times[row] - first_ns) // SECOND_NS
            values = self._truth.power[second // SAMPLES, :, second % SAMPLES]
            table[row, [0, 1, 2, 3, 5, 6, 7]] = np.percentile(values, (0, 1, 25, 50, 75, 99, 100))
            table[row, 4] = values.mean()
            self._truth.percentiles[int(times[row])] = np.percentile(values, (50, 99))

    def _copy_percentiles(self, scope: str, metric: str, times: NDArray[np.int64], table: Floats32) -> int:
        low, p1, p25, p50, mean, p75, p99, high = table.T
        columns: list[tuple[str, Any]] = [
            (">i8", self._cluster_id),
            (f"S{len(scope)}", scope.encode()),
            (f"S{len(metric)}", metric.encode()),
            (">i8", times),
            (">i4", self._signals.slot_count if scope == "fleet" else self._signals.slot_count // JOBS),
            *((">f4", values) for values in (mean, low, high, p1, p25, p50, p75, p99)),
        ]
        with transaction.atomic(), connection.cursor() as cursor:
            _copy(cursor, "fleet_percentile", [_packed(columns, len(times))])
        return len(times)

    def map_frames(self) -> int:
        """Every 10 s and mode: some modes rustle like a sensor, the others change now and then."""
        slots = self._signals.slot_count
        random = np.random.default_rng(4)
        frames = {mode: random.integers(0, 6, slots, np.uint8) for mode in MODES}
        rows: list[tuple[Any, ...]] = []
        count = 0
        step_ns = PERCENTILE_EVERY_S * SECOND_NS
        for t_ns in range(self._plan.first_minute * MINUTE_NS, self._plan.end_minute * MINUTE_NS, step_ns):
            for mode, frame in frames.items():
                if mode in _NOISY_MODES:
                    np.add(128, random.integers(0, 16, slots, np.uint8), out=frame)
                else:
                    frame[random.integers(0, slots, 8)] = random.integers(0, 6, 8, np.uint8)
                rows.append((self._cluster_id, mode, t_ns, slots, fleet_planes.encode_frame(frame)))
            if t_ns >= self._plan.first_fleet_raw * MINUTE_NS:
                self._truth.frames[t_ns] = frames["state"].copy()
            if len(rows) > 2_000:
                count += _copy_rows("map_frame", ("int8", "text", "int8", "int4", "bytea"), rows)
                rows.clear()
        return count + _copy_rows("map_frame", ("int8", "text", "int8", "int4", "bytea"), rows)

    def hot_metrics(self) -> int:
        """The newest second of every metric, as a gateway keeps it."""
        now_ns = time.time_ns()
        last = self._tail[self._plan.end_minute - 1][3]
        seen = np.full(self._signals.slot_count, now_ns, np.int64)
        arrays = {
            (self._cluster_id, name): hot.MetricArray(last[place], seen) for place, name in enumerate(NAMES)
        }
        hot_writes.write_gateway("bench", now_ns, hot.empty_nodes(), {}, arrays)
        return len(arrays)


def _batches(minutes: range, size: int) -> Iterator[range]:
    for first in range(0, len(minutes), size):
        yield minutes[first : first + size]


def _packed(columns: Sequence[tuple[str, Any]], rows: int) -> bytes:
    """Rows of fixed width in PostgreSQL's binary COPY format, all at once."""
    kinds: list[Any] = [("fields", ">i2")]
    for place, (kind, _) in enumerate(columns):
        kinds += [(f"length{place}", ">i4"), (f"value{place}", kind)]
    packed = np.empty(rows, np.dtype(kinds))
    packed["fields"] = len(columns)
    for place, (kind, values) in enumerate(columns):
        packed[f"length{place}"] = np.dtype(kind).itemsize
        packed[f"value{place}"] = values
    return packed.tobytes()


_COPY_HEADER: Final = b"PGCOPY\n\xff\r\n\0" + bytes(8)


def _copy(cursor: Any, table: str, encoded: Iterable[bytes]) -> None:
    with cursor.copy(f'COPY "{table}" FROM STDIN (FORMAT BINARY)') as copy:
        copy.write(_COPY_HEADER)
        for one in encoded:
            copy.write(one)
        copy.write(b"\xff\xff")


def _copy_rows(table: str, kinds: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> int:
    with (
        transaction.atomic(),
        connection.cursor() as cursor,
        cursor.copy(f'COPY "{table}" FROM STDIN (FORMAT BINARY)') as copy,
    ):
        copy.set_types(list(kinds))
        for row in rows:
            copy.write_row(row)
    return len(rows)
