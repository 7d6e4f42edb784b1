"""``clusterwatch bench analyze``: what judging a job of a given size costs, beside the other open tools.

In: sizes. Out: lines for people, then the figures. Files are written by ``simulate.trace_files`` in the
recorder's own format; every tool reads the same folder in a process of its own. A wrong answer of ours stops
the bench; times never do.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from clusterwatch.cli.benches import analyze_sizes
from clusterwatch.cli.benches.analyze_jobs import check, job_of
from clusterwatch.cli.benches.analyze_measure import Figures, measured
from clusterwatch.ops.errors import OpsError
from clusterwatch.simulate.trace_files import PickleWriter, write_pickles
from clusterwatch.simulate.traces import PREFIX, TraceJob

_OURS: Final = """
import sys
from clusterwatch.cli.main import main
sys.exit(main(["analyze", sys.argv[1], "--json"]))
"""
_WITHOUT_COMPILED: Final = """
from collectors.formats import flight_recorder
flight_recorder.compiled_reader = None
"""
_TORCH: Final = f"""
import sys
from torch.distributed.flight_recorder import fr_trace
sys.argv = ["torchfrtrace", sys.argv[1], "--prefix", "{PREFIX}"]
fr_trace.main()
"""
_NVIDIA: Final = f"""
import sys
from nvidia_resiliency_ext.attribution.trace_analyzer.fr_attribution import main
sys.argv = ["fr_attribution", "--fr-path", sys.argv[1], "-p", "{PREFIX}*"]
main()
"""


def run(arguments: list[str]) -> dict[str, Any]:
    """Runs one of the measurements and gives its figures."""
    options = _options(arguments)
    figures: dict[str, Any] = {"bench": "analyze", "cores": len(os.sched_getaffinity(0))}
    if options.scale:
        return figures | analyze_sizes.scale(options.sizes, options.entries or 500, options.seed)
    if options.full or options.columns:
        measure = analyze_sizes.full if options.full else analyze_sizes.columns
        return figures | measure(options.ranks or 24_576, options.entries or 2000, options.seed)
    ranks, entries = options.ranks or 256, options.entries or 2000
    return figures | {
        "ranks": ranks,
        "entries": entries,
        "runs": [_side_by_side(options, ranks, entries, frames) for frames in options.frames],
    }


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="clusterwatch bench analyze", description=__doc__)
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--scale", action="store_true", help="time over ranks, and its exponent")
    mode.add_argument("--full", action="store_true", help="files of 24,576 ranks, made and deleted in parts")
    mode.add_argument("--columns", action="store_true", help="24,576 ranks as agents send them")
    parser.add_argument("--ranks", type=int, help="multiple of 8 (default 256; 24,576 with the last two)")
    parser.add_argument("--entries", type=int, help="per rank (default 2,000; 500 with --scale)")
    parser.add_argument("--frames", type=int, nargs="+", default=[20, 0], help="stack depths (default 20 0)")
    parser.add_argument(
        "--shared-frames",
        action="store_true",
        help="frames as PyTorch's pickler shares them (0.5 MB a rank) instead of one by one (1.2 MB)",
    )
    parser.add_argument("--sizes", type=int, nargs="+", default=[64, 256, 1024, 4096], help="for --scale")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--alone", action="store_true", help="ours only, no other tool")
    parser.add_argument("--timeout-s", type=float, default=900.0, help="for each tool (default 900)")
    return parser.parse_args(arguments)


def _side_by_side(options: argparse.Namespace, ranks: int, entries: int, frames: int) -> dict[str, Any]:
    job = job_of(ranks, entries, frames, options.seed, deep=False)
    with tempfile.TemporaryDirectory(prefix="clusterwatch-bench-") as made:
        folder = Path(made)
        size = write_pickles(folder, job.traces(), PickleWriter(repeat_frames=not options.shared_frames))
        print(f"{ranks} ranks x {entries} entries x {frames} frames: {size / 1e6:.0f} MB", flush=True)
        costs = {name: _cost(name, job, folder, options) for name in _tools(options.alone)}
    with tempfile.TemporaryDirectory(prefix="clusterwatch-bench-") as empty:
        start = measured([sys.executable, "-c", _OURS, empty], options.timeout_s)
    total = ranks * entries
    net_s = {name: cost.cpu_s - start.cpu_s for name, cost in costs.items() if name.startswith("ours")}
    return {
        "frames": frames,
        "folder_bytes": size,
        "start_cpu_s": round(start.cpu_s, 3),
        "cpu_us_per_entry_after_start": {n: round(s * 1e6 / total, 3) for n, s in net_s.items()},
        **{name: cost.to_dict(total) for name, cost in costs.items()},
        **_ratios(costs),
    }


def _tools(alone: bool) -> dict[str, str]:
    """Name -> program that reads the folder in its first argument."""
    tools = {"ours": _OURS}
    if _installed("collectors.formats._pickle_columns"):
        tools["ours_without_compiled"] = _WITHOUT_COMPILED + _OURS
    if not alone and _installed("torch.distributed.flight_recorder"):
        tools["torchfrtrace"] = _TORCH
    if not alone and _installed("nvidia_resiliency_ext.attribution"):
        tools["nvidia_resiliency_ext"] = _NVIDIA
    return tools


def _installed(module: str) -> bool:
    """Whether a module can be found; only its parents are imported."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _cost(name: str, job: TraceJob, folder: Path, options: argparse.Namespace) -> Figures:
    command = [sys.executable, "-c", _tools(alone=False)[name], str(folder)]
    try:
        cost = measured(command, options.timeout_s)
    except subprocess.TimeoutExpired as error:
        raise OpsError(f"{name} took longer than {options.timeout_s:.0f} s.") from error
    print(
        f"  {name:<24}{cost.wall_s:8.2f} s wall {cost.cpu_s:8.2f} s CPU {cost.peak_bytes / 2**20:8.0f} MiB",
        flush=True,
    )
    if name.startswith("ours"):
        if not cost.output.startswith("{"):
            raise OpsError(f"{name} gave no answer: {cost.errors.strip()[-500:]}")
        check(job, json.loads(cost.output), name)
    return cost


def _ratios(costs: dict[str, Figures]) -> dict[str, float]:
    """How many times our wall time and memory the other tools take."""
    ours, ratios = costs["ours"], {}
    for name, cost in costs.items():
        if not name.startswith("ours"):
            ratios[f"wall_ratio_{name}"] = round(cost.wall_s / ours.wall_s, 2)
            ratios[f"memory_ratio_{name}"] = round(cost.peak_bytes / ours.peak_bytes, 2)
    return ratios
