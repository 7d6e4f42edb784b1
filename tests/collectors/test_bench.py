"""The benchmark measures a real agent and says whether it kept its budget."""

from __future__ import annotations

from collectors.bench import run


def test_figures_of_a_short_run_are_there_and_possible() -> None:
    figures = run(["--ranks", "2", "--seconds", "2"])
    assert figures["ranks_count"] == 2
    assert 0 < figures["cpu_ratio"] < 1
    assert 2**20 < figures["pss_bytes"] < 200 * 2**20
    assert figures["hot_frames_per_s"] > 0.4
    assert figures["records_count"] >= 5  # the inventory, and two of each rank
    expected = figures["cpu_ratio"] <= 0.005 and figures["pss_bytes"] <= 60 * 2**20
    assert figures["within_budget"] == expected
