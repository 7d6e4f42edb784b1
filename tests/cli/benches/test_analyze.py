"""The bench of the analysis: jobs it makes are judged right, figures are of real work, errors stop it."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from clusterwatch.analysis import Observation, diagnose
from clusterwatch.cli.benches import analyze, analyze_sizes
from clusterwatch.cli.benches.analyze_jobs import check, job_of, layout_of
from clusterwatch.cli.benches.analyze_measure import MemoryWatch, family, measured, pss_bytes
from clusterwatch.ops.errors import OpsError
from clusterwatch.readers import folder
from clusterwatch.simulate.trace_files import write_pickles


@pytest.mark.parametrize(("ranks", "entries", "frames"), [(16, 60, 0), (24, 60, 5)])
def test_the_made_job_has_full_rings_and_is_judged_right(
    tmp_path: Path, ranks: int, entries: int, frames: int
) -> None:
    job = job_of(ranks, entries, frames, seed=1, deep=False)
    write_pickles(tmp_path, job.traces())
    traces = list(folder.traces(tmp_path))
    assert {len(trace.entries) for trace in traces} == {entries}
    assert {len(stack) for trace in traces for stack in trace.stacks} == ({frames} if frames else set())
    worst = diagnose(Observation(windows=folder.read(tmp_path).windows)).worst
    check(job, {"verdict": worst.verdict, "culprit_ranks": list(worst.culprit_ranks), "seq": worst.seq}, "us")


def test_a_wrong_answer_stops_the_bench() -> None:
    job = job_of(16, 60, 0, seed=1, deep=False)
    (truth,) = job.expected
    right = {"verdict": truth.verdict, "culprit_ranks": list(truth.culprit_ranks), "seq": truth.seq}
    check(job, right, "us")
    for wrong in ({"culprit_ranks": [-1]}, {"verdict": "no_fault"}, {"seq": 0}):
        with pytest.raises(OpsError, match="the truth is"):
            check(job, right | wrong, "us")
    with pytest.raises(OpsError, match="the truth is"):
        check(job, None, "us")


def test_a_large_job_has_eight_groups_a_rank() -> None:
    assert len(layout_of(24_576, deep=True).roles) == 8
    assert layout_of(24_576, deep=True).world == 24_576
    assert len(layout_of(1024, deep=True).roles) == 8


@pytest.mark.parametrize(("ranks", "deep"), [(20, False), (8, False), (100, True)])
def test_ranks_that_do_not_divide_are_refused(ranks: int, deep: bool) -> None:
    with pytest.raises(OpsError, match="ranks"):
        layout_of(ranks, deep=deep)


def test_side_by_side_measures_each_tool() -> None:
    figures = analyze.run(["--ranks", "16", "--entries", "60", "--frames", "3", "--alone"])
    (run,) = figures["runs"]
    assert run["ours"]["exit_code"] == 2
    assert run["folder_bytes"] > 16 * 60 * 100
    assert 0 < run["ours"]["wall_s"] < 100 and run["ours"]["peak_bytes"] > 1_000_000


def test_growth_is_measured_over_sizes() -> None:
    figures = analyze.run(["--scale", "--sizes", "16", "32", "--entries", "60"])
    assert [point["ranks"] for point in figures["sizes"]] == [16, 32]


def test_the_slope_of_a_square_is_two() -> None:
    assert analyze_sizes.slope([(0.0, 1.0), (1.0, 3.0), (2.0, 5.0)]) == 2.0


@pytest.mark.parametrize("mode", ["--full", "--columns"])
def test_a_large_job_in_parts(mode: str) -> None:
    figures = analyze.run([mode, "--ranks", "256", "--entries", "120"])
    assert figures["ranks"] == 256
    assert figures["wall_s"] > 0 and figures["peak_bytes"] > 1_000_000


def test_memory_is_that_of_the_whole_family() -> None:
    held = "import time; kept = bytearray(60_000_000); print('made', flush=True); time.sleep(30)"
    nested = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {held!r}])"
    process = subprocess.Popen([sys.executable, "-c", nested], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "made\n"
        relatives = family(process.pid)
        assert len(relatives) == 2
        with MemoryWatch(process.pid) as watch:
            time.sleep(0.2)
        assert watch.peak_bytes > 60_000_000 > pss_bytes(process.pid)
    finally:
        for pid in reversed(family(process.pid)):
            subprocess.run(["kill", "-9", str(pid)], check=False)
        process.wait()
        process.stdout.close()


def test_a_tool_that_takes_too_long_is_stopped() -> None:
    started = time.monotonic()
    with pytest.raises(subprocess.TimeoutExpired):
        measured([sys.executable, "-c", "import time; time.sleep(60)"], 0.5)
    assert time.monotonic() - started < 30
