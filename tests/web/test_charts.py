"""Figures: gaps stay gaps, outliers are named, nothing has a colour of its own."""

from __future__ import annotations

import json

from clusterwatch.store.rank_history import SlowRank, StepBand
from clusterwatch.web.charts import step_figure

SECOND = 10**9


def band(second: int, p50_s: float = 1.0) -> StepBand:
    return StepBand(second * SECOND, p50_s - 0.1, p50_s, p50_s + 0.1, steps=8, newest_step=second)


def slow(rank: int, p90_s: float) -> SlowRank:
    points = ((10 * SECOND, 1.0), (20 * SECOND, p90_s))
    return SlowRank("", rank, p90_s, typical_s=1.0, points=points)


def test_a_pause_of_the_job_is_a_gap_and_no_slope() -> None:
    figure = step_figure([band(10), band(20), band(90), band(100)], [], None)
    median = next(trace for trace in figure["data"] if trace["meta"] == "median")
    assert median["y"] == [1.0, 1.0, None, 1.0, 1.0] and median["connectgaps"] is False


def test_only_ranks_clearly_slower_than_usual_are_drawn_and_named() -> None:
    figure = step_figure([band(10), band(20)], [slow(7, 1.4), slow(3, 1.02)], None)
    assert [t["name"] for t in figure["data"] if t["meta"] == "outlier"] == ["rank 7"]
    assert [note["text"] for note in figure["layout"]["annotations"]] == ["rank 7"]


def test_a_standing_job_has_its_stop_marked() -> None:
    layout = step_figure([band(10), band(20)], [], 25 * SECOND)["layout"]
    assert layout["shapes"][0]["name"] == layout["annotations"][0]["name"] == "stopped"
    assert layout["shapes"][0]["x0"].startswith("1970-01-01 00:00:25")


def test_a_figure_is_plain_json_without_colours() -> None:
    text = json.dumps(step_figure([band(10), band(20)], [slow(7, 1.4)], 25 * SECOND))
    assert "color" not in text and "template" not in text
