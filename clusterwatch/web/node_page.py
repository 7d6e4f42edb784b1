"""One node as its page shows it: a section per kind of part, its values as tables of parts and metrics.

In: what ``jobs.node_view`` read. Out: dataclasses for the template. A table has its parts as columns where
they are fewer than their metrics, else as rows. Counters are folded away behind the values; those that are 0
on every part are named together.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from clusterwatch.jobs.node_view import NodeView
from clusterwatch.store.node_readings import Reading, SourceState
from clusterwatch.store.queries import StoredEvent
from clusterwatch.web import node_values
from clusterwatch.web.words import LINK_BADGES, OF_SEVERITY, Badge

KINDS: Final = {
    "gpu": "GPUs", "port": "Network links", "nic": "Network links", "nvlink": "NVLink", "pci": "PCIe",
    "disk": "Disks", "mount": "Mounts", "host": "Host", "job": "Jobs",
}  # fmt: skip
"""First part of an entity's name -> its section; in the order of the page."""
OTHER: Final = "Other"
GPU_KINDS: Final = ("gpu", "nvlink")
UUID_CHARS: Final = 12
"""Of ``GPU-`` and the first group: what tells GPUs of one node apart, but for invented ones."""
COLUMNS_MAX: Final = 8
"""Columns of one table; more are another table."""
ROWS_MAX: Final = 160
"""Rows of one table; what is beyond is counted, and in REST."""
OPEN_ROWS_MAX: Final = 40
COUNTER_UNITS: Final = frozenset({"total", "delta_count"})


@dataclass(frozen=True, slots=True)
class Cell:
    """``text`` is the value with its unit, empty where it is not known; ``remark`` its reason in words."""

    text: str = ""
    remark: str = ""
    stale: bool = False
    absent: bool = False
    """the part has no such value at all"""


@dataclass(frozen=True, slots=True)
class Head:
    """A row's or column's name, short, and in full for the title."""

    text: str
    title: str


@dataclass(frozen=True, slots=True)
class Table:
    corner: str
    heads: tuple[Head, ...]
    rows: tuple[tuple[Head, tuple[Cell, ...]], ...]


@dataclass(frozen=True, slots=True)
class Looked:
    """A source and when it looked."""

    state: SourceState
    at: datetime | None


@dataclass(frozen=True, slots=True)
class Section:
    """All parts of one kind."""

    title: str
    parts: int
    values: int
    unknown: int
    """values that are not known"""
    sources: tuple[Looked, ...]
    tables: tuple[Table, ...]
    counters: tuple[Table, ...]
    zeros: tuple[str, ...]
    """counters that are 0 on every part that has them"""
    beyond: int
    """rows that are only in REST"""

    @property
    def is_open(self) -> bool:
        """Few counters and nothing else are shown at once."""
        return not self.tables and sum(len(table.rows) for table in self.counters) <= OPEN_ROWS_MAX


@dataclass(frozen=True, slots=True)
class EventRow:
    event: StoredEvent
    badge: Badge
    at: datetime


@dataclass(frozen=True, slots=True)
class NodePage:
    view: NodeView
    badge: Badge
    sent_at: datetime | None
    """when the node sent its newest values; None: never"""
    stale: bool
    """no source looked lately"""
    events: tuple[EventRow, ...]
    sources: tuple[Looked, ...]
    sections: tuple[Section, ...]
    gpu_count: int | None


def build(view: NodeView, now: datetime) -> NodePage:
    """Arranges what was read. Cost: linear in the values."""
    found = view.readings
    looked = tuple(_looked(state, now) for state in (found.sources if found else ()))
    return NodePage(
        view=view,
        badge=LINK_BADGES[view.link.state],
        sent_at=None if found is None else now - timedelta(seconds=found.age_s),
        stale=found is not None and all(one.state.stale for one in looked),
        events=tuple(_event(event) for event in view.events),
        sources=looked,
        sections=tuple(_sections(view, looked)) if found is not None else (),
        gpu_count=_gpu_count(view),
    )


def _gpu_count(view: NodeView) -> int | None:
    """By what the node said at its hello, else by what it knows now; None where neither tells of any."""
    told = sum(slot.gpu_index is not None for slot in view.slots)
    entities = view.readings.entities if view.readings is not None else {}
    return told or sum(entity.startswith("gpu/") for entity in entities) or None


def _looked(state: SourceState, now: datetime) -> Looked:
    return Looked(state, None if state.age_s is None else now - timedelta(seconds=state.age_s))


def _event(event: StoredEvent) -> EventRow:
    badge = Badge(OF_SEVERITY.get(event.severity, "unknown"), event.kind.replace("_", " "))
    return EventRow(event, badge, datetime.fromtimestamp(event.t_ns / 1e9, UTC))


def _sections(view: NodeView, looked: Sequence[Looked]) -> Iterable[Section]:
    assert view.readings is not None
    kinds: dict[str, dict[str, tuple[Reading, ...]]] = {title: {} for title in (*KINDS.values(), OTHER)}
    for entity, values in view.readings.entities.items():
        kinds[KINDS.get(entity.partition("/")[0], OTHER)][entity] = values
    gpus = _gpu_names(view)
    for title, parts in kinds.items():
        if parts:
            heads = {entity: _part(entity, gpus) for entity in parts}
            order = list(parts)
            if title != KINDS["gpu"]:  # those come in the order of the driver's index
                order.sort(key=lambda entity: _natural(heads[entity].text))
            yield _section(title, {heads[entity]: parts[entity] for entity in order}, looked)


def _gpu_names(view: NodeView) -> dict[str, str]:
    """UUID -> ``GPU 3`` where the node said which one that is, else as much of the UUID as tells it apart."""
    assert view.readings is not None
    parts = [entity.split("/") for entity in view.readings.entities]
    uuids = {part[1] for part in parts if part[0] in GPU_KINDS and len(part) > 1}
    short = Counter(uuid[:UUID_CHARS] for uuid in uuids)
    names = {uuid: uuid[:UUID_CHARS] if short[uuid[:UUID_CHARS]] == 1 else uuid for uuid in uuids}
    told = {slot.gpu_uuid: f"GPU {slot.gpu_index}" for slot in view.slots if slot.gpu_index is not None}
    return names | {uuid: told[uuid] for uuid in uuids & told.keys()}


def _part(entity: str, gpus: dict[str, str]) -> Head:
    kind, _, name = entity.partition("/")
    uuid, _, rest = name.partition("/")
    if kind in GPU_KINDS and uuid in gpus:
        return Head(f"{gpus[uuid]} link {rest}" if rest else gpus[uuid], entity)
    return Head(name or kind, entity)


def _natural(text: str) -> list[tuple[int, int, str]]:
    """Numbers by their size, so that 10 comes after 9."""
    return [
        (0, int(part), "") if part.isdecimal() else (1, 0, part) for part in re.split(r"(\d{1,18})", text)
    ]


Parts = dict[Head, tuple[Reading, ...]]
Grid = dict[Head, dict[Head, Reading]]
"""metric -> part -> value"""


def _section(title: str, parts: Parts, looked: Sequence[Looked]) -> Section:
    grid: Grid = {}
    for part, values in parts.items():
        for reading in values:
            grid.setdefault(_metric(reading), {})[part] = reading
    told = [reading for values in parts.values() for reading in values]
    used = {reading.source for reading in told}
    names = {head.title for head in grid}
    counters = {head: row for head, row in grid.items() if _is_counter(head.title, names, row)}
    zeros = {head for head, row in counters.items() if all(_is_zero(reading) for reading in row.values())}
    tables, _ = _tables_by_kind({head: row for head, row in grid.items() if head not in counters}, parts)
    rest, beyond = _tables_by_kind({head: row for head, row in counters.items() if head not in zeros}, parts)
    return Section(
        title=title,
        parts=len(parts),
        values=len(told),
        unknown=sum(reading.value is None for reading in told),
        sources=tuple(one for one in looked if one.state.name in used),
        tables=tables,
        counters=rest,
        zeros=tuple(sorted(head.text for head in zeros)),
        beyond=beyond,
    )


def _metric(reading: Reading) -> Head:
    labels = ", ".join(f"{name} {value}" for name, value in sorted(reading.labels.items()))
    unit = reading.unit
    name = reading.metric.removesuffix(f"_{unit}") if unit and unit not in COUNTER_UNITS else reading.metric
    text = (f"{name}, per s" if unit in ("per_s", "bytes_per_s") else name).replace("_", " ")
    return Head(f"{text} ({labels})" if labels else text, reading.metric)


def _is_counter(metric: str, names: set[str], row: dict[Head, Reading]) -> bool:
    """A raw counter, its last change, or the rate of a raw counter."""
    unit = next(iter(row.values())).unit
    return unit in COUNTER_UNITS or (unit == "per_s" and f"{metric.removesuffix('_per_s')}_total" in names)


def _is_zero(reading: Reading) -> bool:
    """Sure to be 0: nothing is said of what is not known or in doubt."""
    return reading.value == 0 and reading.quality == "ok"


def _tables_by_kind(grid: Grid, parts: Parts) -> tuple[tuple[Table, ...], int]:
    """(tables, rows left out): ports and network devices share a section, but few metrics."""
    tables: list[Table] = []
    beyond = 0
    kinds: dict[str, Parts] = {}
    for part, values in parts.items():
        kinds.setdefault(part.title.partition("/")[0], {})[part] = values
    for of_kind in kinds.values():
        cut = {
            metric: {part: reading for part, reading in row.items() if part in of_kind}
            for metric, row in grid.items()
        }
        made, left_out = _tables({metric: row for metric, row in cut.items() if row}, of_kind)
        tables += made
        beyond += left_out
    return tuple(tables), beyond


def _tables(grid: Grid, parts: Parts) -> tuple[tuple[Table, ...], int]:
    """(tables, rows left out)."""
    metrics = list(grid)
    if not metrics:
        return (), 0
    shown = [part for part in parts if any(part in row for row in grid.values())]
    if len(shown) <= len(metrics):
        cells = {(metric, part): reading for metric, row in grid.items() for part, reading in row.items()}
        return _cut("Value", metrics, shown, cells)
    turned = {(part, metric): reading for metric, row in grid.items() for part, reading in row.items()}
    return _cut("Part", shown, metrics, turned)


def _cut(
    corner: str, rows: list[Head], columns: list[Head], cells: dict[tuple[Head, Head], Reading]
) -> tuple[tuple[Table, ...], int]:
    made = []
    for start in range(0, len(columns), COLUMNS_MAX):
        heads = tuple(columns[start : start + COLUMNS_MAX])
        lines = ((row, tuple(_cell(cells.get((row, head))) for head in heads)) for row in rows[:ROWS_MAX])
        kept = tuple((row, line) for row, line in lines if not all(cell.absent for cell in line))
        made.append(Table(corner, heads, kept))
    return tuple(made), max(0, len(rows) - ROWS_MAX)


def _cell(reading: Reading | None) -> Cell:
    if reading is None:
        return Cell(absent=True)
    fine = reading.quality == "ok"
    remark = "" if fine else node_values.reason(reading.quality)
    text = "" if reading.value is None else node_values.shown(reading.value, reading.unit, reading.metric)
    return Cell(text, remark, reading.stale)
