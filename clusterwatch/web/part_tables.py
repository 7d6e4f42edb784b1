"""What is known of many parts as a page shows it: a section per kind, tables of parts and metrics.

In: readings by entity. Out: dataclasses for ``parts/section.html``. A table has its parts as columns where
they are fewer than their metrics, else as rows. Serials, models and neighbours are words and have a table of
their own. Counters are folded away behind the values; those that are 0 on every part are named together.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from clusterwatch.store.node_readings import Reading, SourceState
from clusterwatch.web import node_values

KINDS: Final = {
    "gpu": "GPUs", "port": "Network links", "nic": "Network links", "optics": "Network links",
    "nvlink": "NVLink", "nvswitch": "NVSwitches", "pci": "PCIe", "dimm": "Memory", "memory": "Memory",
    "disk": "Disks", "nvme": "Disks", "mount": "Mounts", "lustre": "Storage servers",
    "nfs_server": "Storage servers", "weka": "Storage servers", "host": "Host", "job": "Jobs and ranks",
    "rank": "Jobs and ranks", "proc": "Jobs and ranks", "cgroup": "Control groups",
    "fabric": "Fabric", "switch": "Switch", "switchport": "Ports", "rack": "Rack power",
    "bmc": "Management controller", "psu": "Power supplies", "bbu": "Batteries", "fan": "Fans",
    "sensor": "Sensors", "scheduler": "Scheduler",
}  # fmt: skip
"""First part of an entity's name -> its section; in the order of the page."""
OTHER: Final = "Other"
OWN_SECTIONS_MAX: Final = 8
"""Kinds that stand in no list get a section of their own up to here; what is beyond shares one."""
TEXT_METRICS: Final = frozenset({"part_count", "neighbour_count", "address_count", "fact_count", "pod_count"})
"""A value of 1 whose labels are what is told."""
FACT: Final = "fact_count"
"""Told a name and a value at a time, so in a table of its own."""
NOT_IN_WORDS: Final = "part"
"""The label that says which piece of an entity it is."""
COLUMNS_MAX: Final = 8
"""Columns of one table; more are another table."""
ROWS_MAX: Final = 160
"""Rows of one table; what is beyond is counted, and in REST."""
OPEN_ROWS_MAX: Final = 40
COUNTER_UNITS: Final = frozenset({"total", "delta_count"})
RATE_UNITS: Final = frozenset({"per_s", "bytes_per_s", "mib_per_s"})
_OWN_KIND: Final = re.compile(r"[a-z][a-z0-9_]{1,31}")


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
    is_words: bool = False
    """cells are words, not numbers"""


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
    words: tuple[Table, ...]
    """serials, models, firmware, neighbours"""
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

    @property
    def are_words_open(self) -> bool:
        return not self.tables and sum(len(table.rows) for table in self.words) <= OPEN_ROWS_MAX


Entities = Mapping[str, tuple[Reading, ...]]
Parts = dict[Head, tuple[Reading, ...]]
Grid = dict[Head, dict[Head, Reading]]
"""metric -> part -> value"""
KEPT_ORDER: Final = frozenset({KINDS["gpu"]})
"""Sections whose parts come in the order of the driver's index."""


def looked(state: SourceState, now: datetime) -> Looked:
    return Looked(state, None if state.age_s is None else now - timedelta(seconds=state.age_s))


def sections(
    entities: Entities, sources: Sequence[Looked], name_of: Callable[[str], Head]
) -> Iterable[Section]:
    """Sections in the order of ``KINDS``, then those of other kinds. Cost: linear in the values."""
    kinds: dict[str, dict[str, tuple[Reading, ...]]] = {title: {} for title in KINDS.values()}
    for entity, values in entities.items():
        kinds.setdefault(_title(entity, kinds), {})[entity] = values
    other = kinds.pop(OTHER, {})
    for title, parts in (*kinds.items(), (OTHER, other)):
        if parts:
            heads = {entity: name_of(entity) for entity in parts}
            order = list(parts)
            if title not in KEPT_ORDER:
                order.sort(key=lambda entity: natural(heads[entity].text))
            yield _section(title, {heads[entity]: parts[entity] for entity in order}, sources)


def _title(entity: str, made: Mapping[str, object]) -> str:
    """The section of an entity; kinds of new sources are titles themselves."""
    kind = entity.partition("/")[0]
    if kind in KINDS:
        return KINDS[kind]
    own = kind.replace("_", " ").capitalize()
    if own in made:
        return own
    is_room = len(made) < len(set(KINDS.values())) + OWN_SECTIONS_MAX
    return own if is_room and _OWN_KIND.fullmatch(kind) else OTHER


def natural(text: str) -> list[tuple[int, int, str]]:
    """Sorts numbers by their size, so that 10 comes after 9."""
    return [
        (0, int(part), "") if part.isdecimal() else (1, 0, part) for part in re.split(r"(\d{1,18})", text)
    ]


def _section(title: str, parts: Parts, sources: Sequence[Looked]) -> Section:
    grid: Grid = {}
    for part, values in parts.items():
        for reading in values:
            if reading.metric not in TEXT_METRICS:
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
        sources=tuple(one for one in sources if one.state.name in used),
        words=_words(parts),
        tables=tables,
        counters=rest,
        zeros=tuple(sorted(head.text for head in zeros)),
        beyond=beyond,
    )


def _words(parts: Parts) -> tuple[Table, ...]:
    """A row per piece of hardware or neighbour, a column per thing told of it; then a row per fact."""
    rows: list[tuple[Head, Reading]] = []
    for part, values in parts.items():
        for reading in values:
            if reading.metric in TEXT_METRICS and reading.value and reading.labels:
                piece = reading.labels.get(NOT_IN_WORDS, "")
                text = f"{part.text} {piece}" if piece and piece != part.text else part.text
                rows.append((Head(text, part.title), reading))
    pieces = [row for row in rows if row[1].metric != FACT]
    facts = [row for row in rows if row[1].metric == FACT]
    return tuple(table for told in (pieces, facts) if (table := _word_table(told)) is not None)


def _word_table(rows: list[tuple[Head, Reading]]) -> Table | None:
    columns = list(dict.fromkeys(name for _, reading in rows for name in reading.labels))
    columns = [name for name in columns if name != NOT_IN_WORDS][:COLUMNS_MAX]
    if not columns:
        return None
    heads = tuple(Head(name.replace("_", " ").capitalize(), name) for name in columns)
    lines = tuple(
        (head, tuple(_word(reading, name) for name in columns)) for head, reading in rows[:ROWS_MAX]
    )
    return Table("Part", heads, lines, is_words=True)


def _word(reading: Reading, name: str) -> Cell:
    text = reading.labels.get(name, "")
    return Cell(text, "", reading.stale) if text else Cell(absent=True)


def _metric(reading: Reading) -> Head:
    labels = ", ".join(f"{name} {value}" for name, value in sorted(reading.labels.items()))
    unit = reading.unit
    name = reading.metric
    if unit and unit not in COUNTER_UNITS:
        name = name.removesuffix(f"_{unit}")
    if unit == "bytes_per_s" and name == reading.metric:  # bytes_read_per_s
        name = name.removesuffix("_per_s").replace("bytes_", "", 1)
    text = (f"{name}, per s" if unit in ("per_s", "bytes_per_s") else name).replace("_", " ")
    return Head(f"{text} ({labels})" if labels else text, reading.metric)


def _is_counter(metric: str, names: set[str], row: dict[Head, Reading]) -> bool:
    """A raw counter, its last change, or the rate of a raw counter."""
    unit = next(iter(row.values())).unit
    return unit in COUNTER_UNITS or (unit in RATE_UNITS and f"{metric.removesuffix('_per_s')}_total" in names)


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
        lines = ((row, tuple(cell(cells.get((row, head))) for head in heads)) for row in rows[:ROWS_MAX])
        kept = tuple((row, line) for row, line in lines if not all(one.absent for one in line))
        made.append(Table(corner, heads, kept))
    return tuple(made), max(0, len(rows) - ROWS_MAX)


def cell(reading: Reading | None) -> Cell:
    """A value, or why there is none."""
    if reading is None:
        return Cell(absent=True)
    fine = reading.quality == "ok"
    remark = "" if fine else node_values.reason(reading.quality)
    text = "" if reading.value is None else node_values.shown(reading.value, reading.unit, reading.metric)
    return Cell(text, remark, reading.stale)
