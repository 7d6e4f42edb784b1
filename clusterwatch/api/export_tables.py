"""What can be exported, as tables made part by part: each part is one bounded question to the store.

A long window is cut into pieces of ``PIECE``; nothing of one piece is kept when the next is asked for, and no
transaction or cursor stays open in between.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from clusterwatch.api.export_formats import Part, Table
from clusterwatch.fleet.places import SlotName
from clusterwatch.store import fleet_minutes, fleet_queries, node_series
from clusterwatch.store.answers import SECOND_NS, Window
from clusterwatch.store.fleet_minutes import Plane

SERIES_PIECE_S: Final = {1: 3_600, 10: 4 * 3_600}
"""Per step; coarser ones are asked for in pieces of a day."""
DAY_S: Final = 86_400
SERIES_DAYS_MAX: Final = 62
PERCENTILE_DAYS_MAX: Final = 62
MINUTES_HOURS_MAX: Final = 24
_STATISTICS: Final = (("low", Plane.LOW), ("mean", Plane.MEAN), ("high", Plane.HIGH), ("last", Plane.LAST))


def pieces(window: Window, length_s: int) -> Iterator[Window]:
    """The window cut at whole multiples of ``length_s``."""
    length_ns = length_s * SECOND_NS
    start_ns = window.start_ns
    while start_ns < window.end_ns:
        end_ns = min(window.end_ns, (start_ns // length_ns + 1) * length_ns)
        yield Window(start_ns, end_ns)
        start_ns = end_ns


def series(
    node_id: int, node: str, gpu: int, window: Window, metrics: Sequence[str] | None, step_s: int
) -> Table:
    """Metrics of one GPU: a row per bucket and metric. Raises ``QueryRefused``."""
    whole = window.bounded(SERIES_DAYS_MAX * DAY_S, "an export of one GPU").aligned(step_s)
    columns = ("t_ns", "node", "gpu", "metric", "unit", "low", "mean", "high")

    def parts() -> Iterator[Part]:
        for piece in pieces(whole, SERIES_PIECE_S.get(step_s, DAY_S)):
            found = node_series.gpu_series(node_id, gpu, piece, metrics=metrics, step_s=step_s)
            for one in found.series:
                if one.coverage.reported:
                    yield {
                        "t_ns": found.grid.t_ns,
                        "node": _same(node, found.grid.count),
                        "gpu": np.full(found.grid.count, gpu),
                        "metric": _same(one.metric, found.grid.count),
                        "unit": _same(one.unit, found.grid.count),
                        "low": one.low,
                        "mean": one.mean,
                        "high": one.high,
                    }

    return Table(f"{node}-gpu{gpu}", columns, parts())


def percentiles(cluster_id: int, scope: str, metric: str, window: Window, step_s: int | None) -> Table:
    """Stored percentiles of a fleet or a job: a row per bucket that has values. Raises ``QueryRefused``."""
    window.bounded(PERCENTILE_DAYS_MAX * DAY_S, "an export of percentiles")
    columns = ("t_ns", "scope", "metric", "values", *fleet_queries.PERCENTILE_COLUMNS)

    def parts() -> Iterator[Part]:
        for piece in pieces(window, DAY_S):
            found = fleet_queries.stored_percentiles(
                cluster_id, scope, metric, piece, step_s=step_s or fleet_queries.PERCENTILE_STEPS_S[0]
            )
            known = np.flatnonzero(found.count)
            yield {
                "t_ns": found.grid.t_ns[known],
                "scope": _same(scope, len(known)),
                "metric": _same(metric, len(known)),
                "values": found.count[known],
                **{name: values[known] for name, values in found.columns.items()},
            }

    return Table(f"percentiles-{metric}", columns, parts())


def minutes(
    cluster_id: int, metric: str, window: Window, slots: NDArray[np.int64], named: dict[int, SlotName]
) -> Table:
    """One metric of every GPU by the minute: a row per minute and slot with a number.

    Args:
        slots: which slots, in the order of the rows.
        named: what they are called.
    """
    whole = window.aligned(60).bounded(MINUTES_HOURS_MAX * 3600, "an export of all GPUs")
    columns = ("t_ns", "slot", "node", "gpu", "metric", *(name for name, _ in _STATISTICS))
    nodes = np.array([named[slot].node if slot in named else "" for slot in slots.tolist()], object)
    gpus = np.array([named[slot].gpu if slot in named else None for slot in slots.tolist()], np.float64)
    size = int(slots.max(initial=-1)) + 1

    def parts() -> Iterator[Part]:
        for t_ns, planes in fleet_minutes.all_planes(cluster_id, metric, whole):
            rows = np.stack([fleet_minutes.fitted(plane, size)[slots] for plane in planes])
            known = np.flatnonzero(~np.isnan(rows[Plane.MEAN]))
            yield {
                "t_ns": np.full(len(known), t_ns, np.int64),
                "slot": slots[known],
                "node": nodes[known],
                "gpu": gpus[known],
                "metric": _same(metric, len(known)),
                **{name: rows[plane, known] for name, plane in _STATISTICS},
            }

    return Table(f"minutes-{metric}", columns, parts())


def _same(text: str, count: int) -> NDArray[np.object_]:
    found = np.empty(count, object)
    found[:] = text
    return found
