"""`bench detect --stalls` counts what traces name, and how soon a look at the progress suspects."""

from __future__ import annotations

import pytest

from clusterwatch.cli.benches import detect, detect_stalls
from clusterwatch.ops.errors import OpsError
from clusterwatch.simulate.traces import Kind


def test_a_missing_rank_is_named_and_seen_by_the_first_look_that_suspects() -> None:
    found = detect_stalls.judged(64, Kind.MISSING_RANK, 1)
    assert found.exact and found.call_right and not found.wrong and found.known_at_once
    assert found.delay_s is not None and 2.5 <= found.delay_s <= 5.0


def test_a_rank_that_issued_what_all_wait_in_is_told_by_its_trace_only() -> None:
    found = detect_stalls.judged(64, Kind.DTYPE_MISMATCH, 1)
    assert found.exact and found.known_at_once is False and found.delay_s is not None


def test_a_job_that_moves_is_exact_without_a_name_and_has_no_delay() -> None:
    found = detect_stalls.judged(64, None, 1)
    assert found.exact and not found.wrong and found.delay_s is None


def test_a_run_prints_a_row_for_each_kind_and_gives_figures(capsys: pytest.CaptureFixture[str]) -> None:
    figures = detect.run(["--stalls", "--ranks", "64", "--seeds", "2", "--only", "op_mismatch"])
    assert (figures["cases"], figures["exact"], figures["wrong_names"], figures["suspected"]) == (2, 2, 0, 2)
    assert figures["suspected_p99_s"] <= 5.0
    assert capsys.readouterr().out.splitlines()[1].split()[:4] == ["op_mismatch", "64", "2", "2"]


def test_sizes_without_a_job_are_refused() -> None:
    refused = ((["--ranks", "16"], "--stalls takes"), (["--ranks", "64", "--only", "x"], "no such"))
    for options, text in refused:
        with pytest.raises(OpsError, match=text):
            detect.run(["--stalls", *options])
