"""Records become rows inside the ingest transaction: which record becomes what is decided here only."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from django.conf import settings
from psycopg.types.json import Jsonb

from clusterwatch.fleet import services as fleet
from clusterwatch.jobs import announcements, exits
from clusterwatch.jobs.announcements import Announcement, RefLayout
from clusterwatch.jobs.exits import NodeWord
from clusterwatch.store import device_readings, node_readings, partitions, series
from clusterwatch.store.block_rows import BlockRow
from clusterwatch.store.block_shapes import ShapeKey, shape_of
from clusterwatch.store.device_readings import DeviceRow
from clusterwatch.store.node_readings import NodeRow
from collectors.wire import records

_TABLES: Final[dict[type, tuple[str, ...]]] = {
    records.Block: ("node_minute", "raw_block"),
    records.Event: ("event",),
    records.Steps: ("steps",),
    records.Edges: ("edges",),
    records.Trace: ("trace",),
    records.Stacks: ("stacks",),
    records.PhaseChange: ("phase",),
    records.Dropped: ("event",),
}
TABLE_OF_TAG: Final = {str(kind.__struct_config__.tag): tables[0] for kind, tables in _TABLES.items()}  # type: ignore[attr-defined]
"""Tag of a record -> the table whose retention it has; other records have none of their own.

A block has its rollup's: what is too old for the raw table still has a place in the longer history.
"""


@dataclass(frozen=True, slots=True)
class Origin:
    """Who sent a record, as the handshake proved it."""

    cluster: str
    node: str
    epoch: str
    cluster_id: int
    node_id: int


@dataclass(frozen=True, slots=True)
class _Item:
    origin: Origin
    sequence: int
    record: Any


class Applier:
    """Gathers the records of one transaction; ``finish`` writes them in their order."""

    def __init__(self, shapes: Mapping[tuple[int, bytes], int] | None = None) -> None:
        """``shapes``: what ``BlockShapes.ids`` gave for ``shapes_of`` the blocks that will be added."""
        self.layouts: list[RefLayout] = []
        self._items: list[_Item] = []
        self._shapes = shapes or {}
        self._oldest_raw_ns = partitions.oldest_kept_ns("raw_block", time.time_ns())

    @staticmethod
    def partitions_of(kept: Iterable[records.Spooled]) -> Iterator[tuple[str, int]]:
        """(table, t_ns) of every row the records will make."""
        oldest_raw_ns = partitions.oldest_kept_ns("raw_block", time.time_ns())
        for record in kept:
            for table in _TABLES.get(type(record), ()):
                if table != "raw_block" or record.t_ns >= oldest_raw_ns:
                    yield table, record.t_ns

    @staticmethod
    def shapes_of(kept: Iterable[tuple[Origin, records.Spooled]]) -> Iterator[ShapeKey]:
        """The headers of the blocks among the records, in their order."""
        for origin, record in kept:
            if isinstance(record, records.Block):
                yield ShapeKey(origin.cluster_id, shape_of(tuple(record.metrics)))

    def refusal(self, origin: Origin, record: records.Spooled) -> str:
        """Why a checked record cannot be stored after all; empty when it can."""
        if not isinstance(record, records.Block) or self._shape_id(origin, record) is not None:
            return ""
        return f"cluster {origin.cluster} may send {settings.BLOCK_SHAPES_MAX} different sets of metrics"

    def add(self, origin: Origin, sequence: int, record: records.Spooled) -> None:
        self._items.append(_Item(origin, sequence, record))

    def _shape_id(self, origin: Origin, block: records.Block) -> int | None:
        return self._shapes.get((origin.cluster_id, shape_of(tuple(block.metrics)).digest))

    def finish(self) -> list[RefLayout]:
        """Writes everything; returns what hot frames of the announced ranks mean."""
        self._announce()
        self._captures_done()
        jobs = self._job_ids()
        captures = self._known_captures(jobs)
        rows = series.Rows()
        now_ns = time.time_ns()
        node_readings.put(self._node_rows(), now_ns)
        device_readings.put(self._device_rows(), now_ns)
        for item in self._items:
            if isinstance(item.record, records.Inventory):
                as_json = msgspec.to_builtins(item.record)
                fleet.note_inventory(item.origin.node_id, item.record, as_json)
            elif isinstance(item.record, records.Block):
                self._add_block(rows, item.origin, item.sequence, item.record)
            elif type(item.record) in _ROWS:
                job_id = jobs.get(_job_key(item)) if getattr(item.record, "id", None) is not None else None
                _ROWS[type(item.record)](rows, item, job_id, captures)
        rows.write()
        return self.layouts

    def _node_rows(self) -> Iterator[NodeRow]:
        for item in self._items:
            if isinstance(item.record, records.Readings):
                origin, record = item.origin, item.record
                yield NodeRow(
                    origin.node_id, origin.cluster_id, record.t_ns, origin.epoch, item.sequence, record.data
                )

    def _device_rows(self) -> Iterator[DeviceRow]:
        for item in self._items:
            if isinstance(item.record, records.DeviceReadings):
                origin, told = item.origin, item.record
                yield DeviceRow(
                    origin.cluster_id, told.kind, told.device, origin.node_id, told.poller, told.state,
                    told.node, told.t_ns, origin.epoch, item.sequence, told.data,
                )  # fmt: skip

    def _add_block(self, rows: series.Rows, origin: Origin, sequence: int, block: records.Block) -> None:
        shape_id = self._shape_id(origin, block)
        assert shape_id is not None
        row = BlockRow(
            origin.cluster_id, origin.node_id, block.minute_ns, origin.epoch, sequence, shape_id, block.codec,
            block.data, block.rollup,
        )  # fmt: skip
        # The clock only goes on: what is kept here was kept when partitions were prepared.
        rows.add_block(row, raw=block.minute_ns >= self._oldest_raw_ns)

    # --- processes and jobs ----------------------------------------------------------------------

    def _announce(self) -> None:
        """Announcements, exits and states in the order they were said: a key may end and come again."""
        pending: list[Announcement] = []
        taken: set[tuple[Any, ...]] = set()
        words: list[NodeWord] = []
        for item in self._items:
            record, origin = item.record, item.origin
            if isinstance(record, records.RankInventory):
                _flush_words(words)
                identity = record.id
                place = (origin.cluster_id, identity.job, identity.attempt, identity.world, identity.rank)
                if place in taken:
                    self._flush_announcements(pending, taken)
                taken.add(place)
                pending.append(Announcement(origin.cluster_id, origin.node_id, origin.epoch, record))
            elif isinstance(record, records.RankExit) or _is_process_state(record):
                self._flush_announcements(pending, taken)
                words.append(NodeWord(origin.cluster_id, origin.node_id, record))
        self._flush_announcements(pending, taken)
        _flush_words(words)

    def _flush_announcements(self, pending: list[Announcement], taken: set[tuple[Any, ...]]) -> None:
        if pending:
            self.layouts += announcements.apply_announcements(pending)
            pending.clear()
            taken.clear()

    def _captures_done(self) -> None:
        answers: dict[int, list[records.CaptureDone]] = {}
        for item in self._items:
            if isinstance(item.record, records.CaptureDone):
                answers.setdefault(item.origin.node_id, []).append(item.record)
        if answers:
            exits.apply_captures_done(answers)

    def _job_ids(self) -> dict[tuple[int, str, int], int]:
        keys = {
            _job_key(item)
            for item in self._items
            if type(item.record) in _ROWS and getattr(item.record, "id", None) is not None
        }
        return exits.ensure_jobs(keys) if keys else {}

    def _known_captures(self, jobs: dict[tuple[int, str, int], int]) -> set[tuple[int, int]]:
        """(capture, job) pairs that exist: a node may not attach its trace to a foreign capture."""
        wanted = {
            item.record.capture_id
            for item in self._items
            if isinstance(item.record, records.Trace | records.Stacks) and item.record.capture_id is not None
        }
        return exits.capture_jobs(wanted) if wanted and jobs else set()


def _flush_words(words: list[NodeWord]) -> None:
    gone = [word for word in words if isinstance(word.record, records.RankExit)]
    states = [word for word in words if not isinstance(word.record, records.RankExit)]
    if states:
        exits.apply_process_states(states)
    if gone:
        exits.apply_exits(gone)
    words.clear()


def _is_process_state(record: records.Spooled) -> bool:
    return isinstance(record, records.Event) and record.kind == exits.PROCESS_STATE_EVENT


def _job_key(item: _Item) -> tuple[int, str, int]:
    return item.origin.cluster_id, item.record.id.job, item.record.t_ns


# --- rows ---------------------------------------------------------------------------------------


def _head(item: _Item) -> tuple[Any, ...]:
    origin = item.origin
    return origin.cluster_id, origin.node_id, item.record.t_ns, origin.epoch, item.sequence


def _rank(item: _Item, job_id: int | None) -> tuple[Any, ...]:
    identity = item.record.id
    if identity is None:
        return None, None, None, None
    return job_id, identity.attempt, identity.world, identity.rank


def _event_row(rows: series.Rows, item: _Item, job_id: int | None, captures: set[tuple[int, int]]) -> None:
    event: records.Event = item.record
    rows.add(
        "event",
        (
            *_head(item), event.source, event.kind, event.severity, event.text, Jsonb(event.fields),
            *_rank(item, job_id),
        ),
    )  # fmt: skip


def _dropped_row(rows: series.Rows, item: _Item, job_id: int | None, captures: set[tuple[int, int]]) -> None:
    """Records a node had to let go become an event: every gap has a reason."""
    dropped: records.Dropped = item.record
    total = sum(dropped.counts.values())
    noun = "record" if total == 1 else "records"
    text = f"the agent let {total} {noun} of the lane {dropped.lane} go: {dropped.reason}"
    fields = {name: str(count) for name, count in dropped.counts.items()}
    rows.add(
        "event",
        (*_head(item), "agent", "dropped", "warning", text, Jsonb(fields), None, None, None, None),
    )


def _told_row(rows: series.Rows, item: _Item, job_id: int | None, captures: set[tuple[int, int]]) -> None:
    assert job_id is not None  # the record names its job
    origin = (item.origin.cluster_id, item.origin.node_id, item.origin.epoch)
    rows.add_told(_TABLES[type(item.record)][0], origin, item.sequence, job_id, item.record)


def _trace_row(rows: series.Rows, item: _Item, job_id: int | None, captures: set[tuple[int, int]]) -> None:
    trace: records.Trace = item.record
    capture_id = trace.capture_id if (trace.capture_id, job_id) in captures else None
    rows.add(
        "trace",
        (
            *_head(item), *_rank(item, job_id), trace.pid, capture_id, trace.want, trace.recorder,
            trace.columns,
        ),
    )  # fmt: skip


def _stacks_row(rows: series.Rows, item: _Item, job_id: int | None, captures: set[tuple[int, int]]) -> None:
    stacks: records.Stacks = item.record
    capture_id = stacks.capture_id if (stacks.capture_id, job_id) in captures else None
    threads = Jsonb(msgspec.to_builtins(stacks.threads))
    rows.add(
        "stacks",
        (
            *_head(item), *_rank(item, job_id), stacks.pid, capture_id, stacks.source, stacks.error,
            stacks.process_state, stacks.wchan, threads,
        ),
    )  # fmt: skip


def _phase_row(rows: series.Rows, item: _Item, job_id: int | None, captures: set[tuple[int, int]]) -> None:
    phase: records.PhaseChange = item.record
    rows.add(
        "phase",
        (*_head(item), *_rank(item, job_id), phase.phase, phase.before, phase.before_s, phase.detail),
    )


_ROWS: Final[dict[type, Any]] = {
    records.Event: _event_row,
    records.Dropped: _dropped_row,
    records.Steps: _told_row,
    records.Edges: _told_row,
    records.Trace: _trace_row,
    records.Stacks: _stacks_row,
    records.PhaseChange: _phase_row,
}
