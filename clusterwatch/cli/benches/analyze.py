"""``clusterwatch bench analyze``: reads and judges a folder of dumps, beside PyTorch's own analyzer.

In: size of the made job. Out: figures. The dumps are written in the recorder's own format by this file (a
job of tensor groups and the world, whose last call lacks one rank), and both tools read the same folder. Each
tool runs in a process of its own, since peak memory counts per process.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import pickle  # nosec: writes the made dumps, reads none
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

_START_NS: Final = 1_790_000_000_000_000_000
_STEP_NS: Final = 400_000_000
_TENSOR_GROUP: Final = 8

_OURS: Final = """
import sys
from clusterwatch.cli.main import main
sys.exit(main(["analyze", sys.argv[1], "--json"]))
"""
_PEER: Final = """
import sys
from torch.distributed.flight_recorder import fr_trace
sys.argv = ["torchfrtrace", sys.argv[1], "--prefix", "nccl_trace_rank_"]
fr_trace.main()
"""


def run(arguments: list[str]) -> dict[str, Any]:
    """Makes the folder, runs both tools on it and gives their wall time, CPU per entry and peak memory."""
    options = _options(arguments)
    with tempfile.TemporaryDirectory(prefix="clusterwatch-bench-") as made:
        folder = Path(made)
        size = write_job(folder, options.ranks, options.entries, options.frames, options.missing)
        figures: dict[str, Any] = {
            "bench": "analyze",
            "ranks": options.ranks,
            "entries": options.entries,
            "frames": options.frames,
            "folder_bytes": size,
            "ours": _measured(_OURS, folder, options),
        }
        figures["named"] = figures["ours"].pop("answer", None)
        if importlib.util.find_spec("torch") is None:
            return figures | {"torchfrtrace": None}
        peer = _measured(_PEER, folder, options)
        peer.pop("answer", None)
        return figures | {
            "torchfrtrace": peer,
            "wall_ratio": round(peer["wall_s"] / figures["ours"]["wall_s"], 2),
            "memory_ratio": round(peer["peak_bytes"] / figures["ours"]["peak_bytes"], 2),
        }


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="clusterwatch bench analyze", description=__doc__)
    parser.add_argument("--ranks", type=int, default=256, help="multiple of 8 (default 256)")
    parser.add_argument("--entries", type=int, default=100, help="per rank (default 100)")
    parser.add_argument("--frames", type=int, default=0, help="stack frames of each entry (default 0)")
    parser.add_argument(
        "--missing", type=int, default=5, help="the rank that lacks the last call (default 5)"
    )
    parser.add_argument("--timeout-s", type=float, default=600.0, help="for each tool (default 600)")
    return parser.parse_args(arguments)


def write_job(folder: Path, ranks: int, entries: int, frames: int, missing: int) -> int:
    """Writes one pickle per rank. Returns the bytes written."""
    world = list(range(ranks))
    size = 0
    for rank in world:
        block = rank // _TENSOR_GROUP * _TENSOR_GROUP
        groups = {
            "0": ("default_pg", world),
            f"{1 + block // _TENSOR_GROUP}": ("tp", world[block : block + _TENSOR_GROUP]),
        }
        dump = _dump(list(groups.items()), entries - (rank == missing), entries, frames)
        data = pickle.dumps(dump, protocol=2)
        (folder / f"nccl_trace_rank_{rank}").write_bytes(data)
        size += len(data)
    return size


def _dump(
    groups: list[tuple[str, tuple[str, list[int]]]], made: int, planned: int, frames: int
) -> dict[str, Any]:
    """A ring of ``made`` calls, every tenth one in the world group; the last planned one is open."""
    stack = [{"name": f"layer_{n}", "filename": "/opt/train/model.py", "line": 10 + n} for n in range(frames)]
    counts = {name: 0 for name, _ in groups}
    rows = []
    for number in range(made):
        name, (desc, _) = groups[0] if number % 10 == 9 else groups[1]
        counts[name] += 1
        rows.append(_entry(number, name, desc, counts[name], number == planned - 1, stack))
    return {
        "version": "2.10",
        "pg_config": {n: {"name": n, "desc": d, "ranks": str(r)} for n, (d, r) in groups},
        "pg_status": {
            str(number): {
                "last_enqueued_collective": counts[name],
                "last_started_collective": -1,
                "last_completed_collective": counts[name],
            }
            for number, (name, _) in enumerate(groups)
        },
        "entries": rows,
    }


def _entry(
    number: int, name: str, desc: str, sequence: int, is_open: bool, stack: list[dict[str, Any]]
) -> dict[str, Any]:
    created = _START_NS + number * _STEP_NS
    return {
        "frames": [dict(frame) for frame in stack],
        "record_id": number,
        "pg_id": 0 if name == "0" else 1,
        "process_group": (name, desc),
        "collective_seq_id": sequence,
        "p2p_seq_id": 0,
        "op_id": sequence,
        "profiling_name": "nccl:all_reduce",
        "time_created_ns": created,
        "input_sizes": [[1024, 8]],
        "input_dtypes": ["BFloat16"],
        "output_sizes": [[1024, 8]],
        "output_dtypes": ["BFloat16"],
        "state": "scheduled" if is_open else "completed",
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": None if is_open else created + 5_000_000,
        "retired": not is_open,
        "timeout_ms": 600_000,
        "is_p2p": False,
    }


def _measured(program: str, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Wall seconds, CPU seconds per entry (us) and peak memory of one tool in its own process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.perf_counter()
    watched = f"import resource, atexit, sys\n{_REPORT}\n{program}"
    done = subprocess.run(
        [sys.executable, "-c", watched, str(folder)],
        capture_output=True,
        text=True,
        timeout=options.timeout_s,
        check=False,
    )
    wall = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    figures: dict[str, Any] = {
        "wall_s": round(wall, 3),
        "cpu_us_per_entry": round(cpu * 1e6 / (options.ranks * options.entries), 2),
        "peak_bytes": int(done.stderr.rpartition("peak_bytes=")[2].split()[0] or 0),
        "exit_code": done.returncode,
    }
    if done.stdout.startswith("{"):
        found = json.loads(done.stdout)
        figures["answer"] = {"verdict": found["verdict"], "culprit_ranks": found["culprit_ranks"]}
    return figures


_REPORT: Final = """
def _peak():
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(f"\\npeak_bytes={used}", file=sys.stderr)
atexit.register(_peak)
"""
"""Linux counts ru_maxrss in KiB, getrusage(2)."""
