"""Made training jobs as logs of NCCL's Inspector, in the plugin's form, for tests.

In: a ``StepJob``. Out: ``<host>-pid<pid>.log`` per rank. Calls are numbered, dumped and left out as the
plugin of NCCL 2.30 does it: by communicator and operation, newest first in each dump, none below a minimum
size.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from clusterwatch.simulate.step_job import StepJob
from clusterwatch.simulate.step_job_records import STATES, StepColumns

DUMP_US: Final = 500_000
_OPS: Final = {
    "all_reduce": "AllReduce", "reduce_scatter": "ReduceScatter", "all_gather": "AllGather",
    "barrier": "AllReduce", "send": "Send", "recv": "Recv",
}  # fmt: skip


@dataclass(frozen=True)
class Plugin:
    """How it is set up. ``is_old``: of NCCL 2.28: no name, nothing point to point, every size."""

    least_bytes: int = 8_192
    is_old: bool = False
    last_only: bool = False
    """of each communicator, as the old one: the last call since the dump before"""


def host(job: StepJob, rank: int) -> str:
    return f"node{rank // job.shape.gpus_per_node:03d}"


def pid(rank: int) -> int:
    return 40_000 + 37 * ((rank * 7_919) % 104_729)


def name(job: StepJob, rank: int) -> str:
    return f"{host(job, rank)}-pid{pid(rank)}.log"


def write(job: StepJob, folder: Path, plugin: Plugin = Plugin()) -> Path:
    """The logs of all ranks."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank, lines in records(job, plugin).items():
        (folder / name(job, rank)).write_bytes(msgspec.json.Encoder().encode_lines(lines))
    return folder


def records(job: StepJob, plugin: Plugin = Plugin()) -> dict[int, list[dict[str, Any]]]:
    """Lines by rank, in the order of the file."""
    made = job.columns
    members = [_members(job, group) for group in made.pg_names]
    found = {}
    for rank in np.unique(made.rank).tolist():
        mine = made.take(np.flatnonzero(made.rank == rank))
        mine = mine.take(np.argsort(mine.enqueue_ns, kind="stable"))
        found[rank] = _dumped(list(_of_rank(job, mine, members, plugin)), plugin)
    return found


def _members(job: StepJob, group: str) -> list[int]:
    """``tp:pp0:dp1``: the ranks with those coordinates."""
    chosen = job.shape.rank
    for axis, coordinate in enumerate(("pp", "dp", "tp")):
        if told := [part.removeprefix(coordinate) for part in group.split(":")[1:] if coordinate in part]:
            chosen = np.take(chosen, [int(told[0])], axis)
    return sorted(int(rank) for rank in chosen.reshape(-1))


def _of_rank(
    job: StepJob, mine: StepColumns, members: list[list[int]], plugin: Plugin
) -> Iterator[dict[str, Any]]:
    """Lines of one rank in the order of its program."""
    counts: dict[tuple[int, str], int] = defaultdict(int)
    hosts_of = [len({host(job, one) for one in ranks}) for ranks in members]
    for row in range(len(mine)):
        group, op, rank = int(mine.pg[row]), mine.op_names[mine.op[row]], int(mine.rank[row])
        is_p2p = op[:4] in ("send", "recv")
        func = _OPS[op[:4] if is_p2p else op]
        size = 4 if op == "barrier" else int(mine.bytes[row])
        ranks = members[group]
        is_logged = size >= plugin.least_bytes or plugin.is_old
        if is_p2p and (plugin.is_old or not is_logged):
            continue
        number = counts[group, "p2p" if is_p2p else func] = counts[group, "p2p" if is_p2p else func] + 1
        if not is_logged or STATES[mine.state[row]] != "completed":
            continue
        header: dict[str, Any] = {
            "id": f"0x{0xA3B1C2D4E5F607 ^ (group * 0x9E3779B97F4A7C & 0xFFFFFFFFFFFFFF):014x}",
            "comm_name": "unknown", "rank": ranks.index(rank), "n_ranks": len(ranks),
            "nnodes": hosts_of[group],
        }  # fmt: skip
        if plugin.is_old:
            del header["comm_name"]
        kind = "p2p" if is_p2p else "coll"
        call: dict[str, Any] = {kind: func, f"{kind}_sn": number - (not is_p2p)}
        if is_p2p:
            call["p2p_peer"] = ranks.index(int(mine.peer[row]))
        start, end = int(mine.start_ns[row]) // 1_000, int(mine.end_ns[row]) // 1_000
        launch = int(mine.enqueue_ns[row]) // 1_000
        call |= {
            f"{kind}_msg_size_bytes": size, f"{kind}_exec_time_us": end - start,
            f"{kind}_timing_source": "kernel_gpu", f"{kind}_algobw_gbs": 12.5, f"{kind}_busbw_gbs": 12.5,
            "event_trace_ts": {
                f"{kind}_start_ts": launch, f"{kind}_stop_ts": launch + 4,
                "kernel_events": [
                    {"channel_id": 0, "kernel_start_ts": start + 1, "kernel_stop_ts": end,
                     "kernel_record_ts": end},
                    {"channel_id": 1, "kernel_start_ts": start, "kernel_stop_ts": max(start, end - 1),
                     "kernel_record_ts": end},
                ],
            },
        }  # fmt: skip
        metadata = {
            "inspector_output_format_version": "v4.0", "git_rev": "5067397c2",
            "rec_mechanism": "nccl_profiler_interface",
            "dump_timestamp_us": end // DUMP_US * DUMP_US + DUMP_US,
            "hostname": host(job, rank), "pid": pid(rank),
        }  # fmt: skip
        yield {"header": header, "metadata": metadata, f"{kind}_perf": call}


def _dumped(lines: list[dict[str, Any]], plugin: Plugin) -> list[dict[str, Any]]:
    """By dump, collectives first, by communicator, newest first."""

    def place(line: dict[str, Any]) -> tuple[Any, ...]:
        return line["metadata"]["dump_timestamp_us"], "p2p_perf" in line, line["header"]["id"]

    ordered = list(reversed(lines))
    ordered.sort(key=place)
    if not plugin.last_only:
        return ordered
    first: dict[tuple[Any, ...], dict[str, Any]] = {}
    for line in ordered:
        first.setdefault(place(line), line)
    return list(first.values())


def without(lines: list[dict[str, Any]], ratio: float, seed: int = 1) -> list[dict[str, Any]]:
    """What is left of the lines where a share of them is lost."""
    kept = np.random.default_rng(seed).random(len(lines)) >= ratio
    return [line for line, is_kept in zip(lines, kept.tolist(), strict=True) if is_kept]
