"""Minute blocks of one node, read and decoded to seconds.

In: our id of the node, a window. Out: decoded minutes of each shape, or columns on a grid.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from clusterwatch.store import binary_reads, block_arrays
from clusterwatch.store.answers import MINUTE_NS, Column, Gathered, Grid
from clusterwatch.store.fleet_math import Floats, in_buckets
from collectors.wire.records import BlockMetric

BLOCKS_AT_ONCE: Final = 120
"""Bounds memory: 10 MB decompressed at 20 metrics of 8 GPUs."""
SHAPES_KEPT: Final = 10_000
SERIES_MAX: Final = 256
"""GPUs or ports of one node: an NVL72 tray has 4, a chassis 8 or 16."""

_layouts: dict[int, block_arrays.Layout] = {}
"""By id of ``block_shape``: a row of it never changes."""


def layouts(shape_ids: Iterable[int]) -> dict[int, block_arrays.Layout]:
    """Headers of blocks by their ids; costs a query only for one this process has not met."""
    wanted = sorted(set(shape_ids))
    if missing := [shape_id for shape_id in wanted if shape_id not in _layouts]:
        if len(_layouts) + len(missing) > SHAPES_KEPT:
            _layouts.clear()
            missing = wanted
        rows = binary_reads.fetch("SELECT id, metrics::text FROM block_shape WHERE id = ANY(%s)", [missing])
        for shape_id, metrics in rows:
            header = msgspec.json.decode(metrics, type=list[BlockMetric])
            _layouts[shape_id] = block_arrays.Layout.of(header)
    return {shape_id: _layouts[shape_id] for shape_id in wanted if shape_id in _layouts}


@dataclass(frozen=True, slots=True)
class Minutes:
    """Decoded blocks of one shape: whole minutes, each once."""

    layout: block_arrays.Layout
    minutes_ns: NDArray[np.int64]
    values: dict[str, Floats]
    """name -> (minutes, series, samples)"""
    damaged: int

    def places_on(self, fine: Grid) -> dict[int, NDArray[np.int64]]:
        """Samples a minute -> the second of the grid each sample belongs to, minute by minute; -1 outside."""
        found = {}
        for samples in {metric.samples for metric in self.layout.metrics}:
            offsets = np.arange(samples, dtype=np.int64) * (MINUTE_NS // samples)
            found[samples] = fine.places((self.minutes_ns[:, None] + offsets).ravel())
        return found


def every_s(metric: BlockMetric) -> int:
    """Whole seconds between samples."""
    return max(1, 60 // metric.samples)


def decoded(rows: Sequence[tuple[Any, ...]], metrics: Sequence[str] | None, series: Any) -> Iterator[Minutes]:
    """Decodes rows (t_ns, shape_id, data), in time order and of one node, shape by shape."""
    for shape_id, layout in layouts(row[1] for row in rows).items():
        mine = [row for row in rows if row[1] == shape_id]
        stack, sound = block_arrays.decompress(layout, [row[2] for row in mine])
        values = block_arrays.values(layout, stack, sound, layout.named(metrics), series)
        minutes, joined = block_arrays.join_minutes([row[0] for row in mine], values)
        yield Minutes(layout, np.array(minutes, np.int64), joined, int((~sound).sum()))


def block_rows(node_id: int, start_ns: int, end_ns: int) -> Iterator[list[tuple[Any, ...]]]:
    """Blocks of the minutes that begin in [start, end), ``BLOCKS_AT_ONCE`` minutes at a time."""
    for first_ns in range(start_ns, end_ns, BLOCKS_AT_ONCE * MINUTE_NS):
        last_ns = min(end_ns, first_ns + BLOCKS_AT_ONCE * MINUTE_NS)
        yield binary_reads.fetch(
            "SELECT t_ns, shape_id, data FROM raw_block"
            " WHERE node_id = %s AND t_ns >= %s AND t_ns < %s ORDER BY t_ns, sequence",
            [node_id, first_ns, last_ns],
        )


def columns(node_id: int, place: int, grid: Grid, metrics: Sequence[str] | None) -> Gathered:
    """Columns of one place of a node, by the second or by buckets of seconds."""
    fine = Grid(grid.start_ns, 1, grid.count * grid.step_s)
    seconds: dict[str, Floats] = {}
    heads: dict[str, tuple[str, int, int]] = {}
    damaged = count = 0
    first_minute_ns = grid.start_ns // MINUTE_NS * MINUTE_NS
    for rows in block_rows(node_id, first_minute_ns, grid.end_ns):
        count += len(rows)
        for part in decoded(rows, metrics, place):
            damaged += part.damaged
            heads.update({one.name: (one.unit, one.series, every_s(one)) for one in part.layout.metrics})
            places = part.places_on(fine)
            for name, values in part.values.items():
                target = seconds.get(name)
                if target is None:
                    target = seconds[name] = np.full(fine.count, np.nan)
                _lay_out(target, places[values.shape[-1]], values)
    found = {}
    for name, values in sorted(seconds.items()):
        if grid.step_s == 1:
            found[name] = Column(*heads[name], values, values, values)
        else:
            grouped = in_buckets(values, grid.step_s)
            found[name] = Column(*heads[name], grouped.low, grouped.mean, grouped.high)
    return Gathered(found, count, damaged)


def _lay_out(target: Floats, places: NDArray[np.int64], values: Floats) -> None:
    """Writes samples, minute by minute, to their seconds; what is there already stays."""
    inside = places >= 0
    seconds, numbers = places[inside], values.reshape(-1)[inside]
    there = target[seconds]
    target[seconds] = np.where(np.isnan(there), numbers, there)


def seconds_of(node_id: int, metric: str, grid: Grid) -> Floats:
    """Every sample of one metric of a node: shape (series, seconds of the grid), NaN where there is none.

    Of a node that claims more than ``SERIES_MAX`` series the others are left out.
    """
    fine = Grid(grid.start_ns, 1, grid.count * grid.step_s)
    found = np.empty((0, fine.count))
    for rows in block_rows(node_id, grid.start_ns // MINUTE_NS * MINUTE_NS, grid.end_ns):
        for part in decoded(rows, [metric], slice(None)):
            values = part.values.get(metric)
            if values is None:
                continue
            width = min(values.shape[1], SERIES_MAX)
            if width > len(found):
                found = np.concatenate([found, np.full((width - len(found), fine.count), np.nan)])
            places = part.places_on(fine)[values.shape[-1]]
            for series in range(width):
                _lay_out(found[series], places, values[:, series])
    return found
