"""Figures of the pages, built here and drawn by the vendored bundle. The only module that imports plotly.

A figure has no colours: ``static/js/chart.js`` puts in those of the theme by each trace's ``meta`` word, so
that one figure serves light and dark.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import plotly.graph_objects as go

from clusterwatch.store.rank_history import SlowRank, StepBand

OUTLIER_RATIO = 1.05
"""A rank whose p90 step is this much above the usual rank's is drawn and named."""
GAP_BUCKETS = 3
"""So many empty buckets in a row are a gap of the line, not a slope."""


def _time(ns: int) -> str:
    return datetime.fromtimestamp(ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def _with_gaps(bands: Sequence[StepBand]) -> list[StepBand | None]:
    """A None where steps stopped coming for several buckets."""
    if len(bands) < 2:
        return list(bands)
    width = min(b.start_ns - a.start_ns for a, b in zip(bands, bands[1:], strict=False))
    found: list[StepBand | None] = [bands[0]]
    for before, band in zip(bands, bands[1:], strict=False):
        if band.start_ns - before.start_ns > GAP_BUCKETS * width:
            found.append(None)
        found.append(band)
    return found


def step_figure(
    bands: Sequence[StepBand], slow: Sequence[SlowRank], stopped_ns: int | None
) -> dict[str, Any]:
    """Step duration over time: p1 to p99 as a band, p50 as a line, slow ranks by name.

    Args:
        bands: in time order.
        slow: candidates; those above the usual rank by ``OUTLIER_RATIO`` are drawn.
        stopped_ns: marked as "stopped", when the job stands.
    """
    points = _with_gaps(bands)
    x = [_time(b.start_ns) if b else None for b in points]
    figure = go.Figure()

    def line(values: list[float | None], role: str, name: str, **more: Any) -> None:
        figure.add_trace(go.Scatter(x=x, y=values, mode="lines", name=name, meta=role, **more))

    line([b.p1_s if b else None for b in points], "edge", "p1", connectgaps=False)
    line([b.p99_s if b else None for b in points], "band", "p99", fill="tonexty", connectgaps=False)
    line([b.p50_s if b else None for b in points], "median", "p50", connectgaps=False)
    for rank in slow:
        if rank.p90_s > OUTLIER_RATIO * rank.typical_s and len(rank.points) > 1:
            _name_outlier(figure, rank)
    if stopped_ns is not None:
        _mark_stop(figure, _time(stopped_ns))
    found: dict[str, Any] = json.loads(figure.to_json(remove_uids=True))
    found["layout"].pop("template", None)
    return found


def _name_outlier(figure: go.Figure, rank: SlowRank) -> None:
    """The rank's own line, its name at its slowest point."""
    name, times = f"rank {rank.rank}", [_time(ns) for ns, _ in rank.points]
    values = [value for _, value in rank.points]
    top = max(range(len(values)), key=values.__getitem__)
    figure.add_trace(go.Scatter(x=times, y=values, mode="lines", name=name, meta="outlier"))
    figure.add_annotation(x=times[top], y=values[top], text=name, showarrow=False, yanchor="bottom")


def _mark_stop(figure: go.Figure, at: str) -> None:
    figure.add_shape(type="line", x0=at, x1=at, y0=0, y1=1, yref="paper", name="stopped")
    figure.add_annotation(
        x=at,
        y=1,
        yref="paper",
        text="stopped",
        showarrow=False,
        xanchor="right",
        yanchor="top",
        name="stopped",
    )
