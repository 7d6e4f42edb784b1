"""Sizes of ``bench analyze`` that no other tool reaches: growth with the ranks, a large job, its columns.

In: ranks, entries, seed. Out: figures. Files of a large job are made for some hundred ranks at a time, read,
judged on and deleted, so that 15 GB of them never lie anywhere.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, Any, Final

from clusterwatch.cli.benches.analyze_jobs import check, job_of
from clusterwatch.cli.benches.analyze_measure import MemoryWatch, measured
from clusterwatch.ops.errors import OpsError
from clusterwatch.simulate.trace_files import PickleWriter, write_pickles
from clusterwatch.simulate.traces import TraceJob

_PART_RANKS: Final = 512
_ANALYZE: Final = """
import sys
from clusterwatch.cli.main import main
sys.exit(main(["analyze", sys.argv[1], "--json"]))
"""
_TIMEOUT_S: Final = 1800.0


def scale(sizes: list[int], entries: int, seed: int) -> dict[str, Any]:
    """Folders of more and more ranks without frames, and the exponent of CPU time over entries.

    The exponent is the slope of a least-squares line through the logarithms, each size less the time of an
    empty run (imports), which would hide growth at the small end.
    """
    with tempfile.TemporaryDirectory(prefix="clusterwatch-bench-") as empty:
        idle = measured([sys.executable, "-c", _ANALYZE, empty], _TIMEOUT_S)
    points = []
    for ranks in sizes:
        job = job_of(ranks, entries, 0, seed, deep=False)
        with tempfile.TemporaryDirectory(prefix="clusterwatch-bench-") as made:
            write_pickles(Path(made), job.traces())
            cost = measured([sys.executable, "-c", _ANALYZE, made], _TIMEOUT_S)
        if not cost.output.startswith("{"):
            raise OpsError(f"no answer on {ranks} ranks: {cost.errors.strip()[-500:]}")
        check(job, json.loads(cost.output), f"{ranks} ranks")
        points.append({"ranks": ranks, **cost.to_dict(ranks * entries)})
        print(
            f"{ranks:>6} ranks x {entries} entries: {cost.wall_s:7.2f} s wall {cost.cpu_s:7.2f} s CPU "
            f"{cost.peak_bytes / 2**20:6.0f} MiB",
            flush=True,
        )
    grown = [(math.log(p["ranks"] * entries), math.log(max(p["cpu_s"] - idle.cpu_s, 1e-3))) for p in points]
    exponent = slope(grown)
    print(f"CPU grows with entries to the power of {exponent:.2f}", flush=True)
    return {"entries": entries, "idle_cpu_s": round(idle.cpu_s, 3), "sizes": points, "exponent": exponent}


def slope(points: list[tuple[float, float]]) -> float:
    """Slope of the least-squares line."""
    count = len(points)
    mean_x, mean_y = (sum(p[axis] for p in points) / count for axis in (0, 1))
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    return round(sum((x - mean_x) * (y - mean_y) for x, y in points) / spread, 3) if spread else math.nan


class _Analyst:
    """The analysing process (``analyze_child``); answers are JSON lines."""

    def __init__(self, mode: str, job: TraceJob, entries: int) -> None:
        options = {
            "mode": mode,
            "world": job.layout.world,
            "entries": entries,
            "seed": job.seed,
            "deep": True,
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "clusterwatch.cli.benches.analyze_child", json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    @property
    def _input(self) -> IO[str]:
        assert self.process.stdin is not None
        return self.process.stdin

    def ask(self, line: str) -> dict[str, Any]:
        self._input.write(f"{line}\n")
        self._input.flush()
        return self.answer()

    def no_more(self) -> None:
        self._input.close()

    def answer(self) -> dict[str, Any]:
        """Raises ``OpsError`` when the process has ended without one."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise OpsError(f"The analysing process ended with code {self.process.wait()}.")
        told: dict[str, Any] = json.loads(line)
        return told

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None and not pipe.closed:
                pipe.close()


def full(ranks: int, entries: int, seed: int) -> dict[str, Any]:
    """All files of a large job without frames, in parts; beside it the time of just reading them."""
    job, writer = job_of(ranks, entries, 0, seed, deep=True), PickleWriter()
    spent = {"write_s": 0.0, "read_s": 0.0, "wall_s": 0.0, "cpu_s": 0.0}
    size = 0
    analyst = _Analyst("full", job, entries)
    try:
        with MemoryWatch(analyst.process.pid) as watch:
            for first in range(0, ranks, _PART_RANKS):
                part = range(first, min(first + _PART_RANKS, ranks))
                size += _part(job, part, writer, analyst, spent)
                _show(part.stop, ranks, size, spent)
            analyst.no_more()
            verdict = analyst.answer()
    finally:
        analyst.end()
    check(job, verdict["answer"], "the whole job")
    figures = {key: round(value, 3) for key, value in spent.items()}
    analysis_s = figures["wall_s"] + verdict["wall_s"]
    print(
        f"\n{size / 1e9:.1f} GB: {analysis_s:.1f} s to read and judge, {figures['read_s']:.1f} s just to "
        f"read; peak {watch.peak_bytes / 2**20:.0f} MiB",
        flush=True,
    )
    return {
        "ranks": ranks,
        "entries": entries,
        "bytes": size,
        **figures,
        "diagnose_s": round(verdict["wall_s"], 3),
        "diagnose_cpu_s": round(verdict["cpu_s"], 3),
        "cpu_us_per_entry": round((spent["cpu_s"] + verdict["cpu_s"]) * 1e6 / (ranks * entries), 3),
        "peak_bytes": watch.peak_bytes,
    }


def _part(
    job: TraceJob, ranks: range, writer: PickleWriter, analyst: _Analyst, spent: dict[str, float]
) -> int:
    """Files of some ranks, from making to deleting. Returns their bytes."""
    with tempfile.TemporaryDirectory(prefix="clusterwatch-bench-") as made:
        started = time.perf_counter()
        size = write_pickles(Path(made), job.traces(ranks), writer)
        written = time.perf_counter()
        for path in Path(made).iterdir():
            path.read_bytes()
        spent["write_s"] += written - started
        spent["read_s"] += time.perf_counter() - written
        for key, value in analyst.ask(made).items():
            spent[key] += value
    return size


def _show(done: int, ranks: int, size: int, spent: dict[str, float]) -> None:
    if sys.stderr.isatty():
        print(
            f"\r{done:>6} of {ranks} ranks, {size / 1e9:5.1f} GB, analysed in {spent['wall_s']:6.1f} s",
            end="",
            file=sys.stderr,
            flush=True,
        )


def _open_windows(job: TraceJob, entries: int) -> dict[str, Any]:
    """What judging the open windows alone costs, in a fresh process."""
    analyst = _Analyst("open", job, entries)
    try:
        return analyst.answer()
    finally:
        analyst.end()


def columns(ranks: int, entries: int, seed: int) -> dict[str, Any]:
    """The same job as agents send it: packed columns of whole rings, then the open windows alone."""
    job = job_of(ranks, entries, 0, seed, deep=True)
    analyst = _Analyst("columns", job, entries)
    try:
        with MemoryWatch(analyst.process.pid) as watch:
            reduced, verdict = analyst.answer(), analyst.answer()
    finally:
        analyst.end()
    open_windows = _open_windows(job, entries)
    for told, name in ((verdict, "columns"), (open_windows, "open windows")):
        check(job, told["answer"], name)
    wall_s = reduced["wall_s"] + verdict["wall_s"]
    print(
        f"{ranks} ranks x {entries} entries from columns: {wall_s:.1f} s "
        f"({reduced['wall_s']:.1f} s to unpack and reduce, {verdict['wall_s']:.2f} s to judge); "
        f"open windows alone, in a fresh process: {open_windows['wall_s']:.2f} s "
        f"({open_windows['cpu_s']:.2f} s of CPU); peak {watch.peak_bytes / 2**20:.0f} MiB",
        flush=True,
    )
    return {
        "ranks": ranks,
        "entries": entries,
        "packed_bytes": reduced["packed_bytes"],
        "processes": reduced["processes"],
        "wall_s": round(wall_s, 3),
        "cpu_s": round(reduced["cpu_s"] + verdict["cpu_s"], 3),
        "diagnose_s": round(verdict["wall_s"], 3),
        "open_windows_s": round(open_windows["wall_s"], 3),
        "open_windows_cpu_s": round(open_windows["cpu_s"], 3),
        "peak_bytes": watch.peak_bytes,
    }
