"""One-minute rollups of one node, as its agent made them, on a grid of a minute or coarser."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from clusterwatch.store import binary_reads
from clusterwatch.store.answers import Column, Gathered, Grid
from clusterwatch.store.block_arrays import Layout
from clusterwatch.store.fleet_math import Floats, in_buckets
from clusterwatch.store.node_blocks import layouts

_PLANES = ("low", "mean", "high")


class _Gathering:
    """Planes (low, mean, high) of each metric by the minute, while shape after shape is added."""

    def __init__(self, minutes: Grid) -> None:
        self.minutes = minutes
        self.planes: dict[str, Floats] = {}
        self.heads: dict[str, tuple[str, int, int]] = {}

    def add(
        self, layout: Layout, chosen: Sequence[int], t_ns: Sequence[int], planes: Sequence[Floats]
    ) -> None:
        """Rows of one shape; a number that is there already stays.

        Args:
            chosen: places of the metrics in the header.
            planes: three of shape (rows, chosen).
        """
        places = self.minutes.places(np.array(t_ns, np.int64))
        for column, place in enumerate(chosen):
            metric = layout.metrics[place]
            self.heads[metric.name] = (metric.unit, metric.series, 60)
            target = self.planes.setdefault(metric.name, np.full((3, self.minutes.count), np.nan))
            for plane, numbers in enumerate(planes):
                fresh = np.isnan(target[plane, places]) & ~np.isnan(numbers[:, column])
                target[plane, places[fresh]] = numbers[fresh, column]


def columns(node_id: int, place: int, grid: Grid, metrics: Sequence[str] | None) -> Gathered:
    """Columns of one place of a node; no row counts as damaged: rollups were checked when they came."""
    rows = binary_reads.fetch(
        "SELECT t_ns, shape_id, low, mean, high FROM node_minute"
        " WHERE node_id = %s AND t_ns >= %s AND t_ns < %s ORDER BY t_ns, sequence",
        [node_id, grid.start_ns, grid.end_ns],
    )
    gathering = _Gathering(Grid(grid.start_ns, 60, grid.count * grid.step_s // 60))
    for shape_id, layout in layouts(row[1] for row in rows).items():
        mine = [row for row in rows if row[1] == shape_id]
        chosen = layout.named(metrics)
        firsts = np.cumsum([0, *(metric.series for metric in layout.metrics)]).tolist()
        index = [firsts[i] + min(place, layout.metrics[i].series - 1) for i in chosen]
        planes = [_elements([row[2 + plane] for row in mine], index) for plane in range(len(_PLANES))]
        gathering.add(layout, chosen, [row[0] for row in mine], planes)
    factor = grid.step_s // 60
    found = {
        name: _column(gathering.heads[name], gathering.planes[name], factor)
        for name in sorted(gathering.planes)
    }
    return Gathered(found, len(rows), 0)


def _column(head: tuple[str, int, int], planes: Floats, factor: int) -> Column:
    if factor == 1:
        return Column(*head, *planes)
    low, mean, high = (in_buckets(plane, factor) for plane in planes)
    return Column(*head, low.low, mean.mean, high.high)


def _elements(arrays: Sequence[bytes | None], index: Sequence[int]) -> NDArray[np.float64]:
    """Chosen elements of many ``real[]``, shape (rows, index); NaN where an array is too short."""
    numbers = binary_reads.float_arrays(arrays)
    chosen = np.asarray(index, np.int64)
    found = np.full((len(arrays), len(chosen)), np.nan)
    there = chosen < numbers.shape[1]
    found[:, there] = numbers[:, chosen[there]]
    return found
