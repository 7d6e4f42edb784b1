"""Memory of the product's processes over time, and whether it grows. The judging part is pure.

A process of the table is counted with everything it started, by its proportional set size without shared
memory: PostgreSQL's buffers fill up to their fixed size, which is no growth.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from statistics import fmean, median
from typing import Final

from clusterwatch.ops.proc import all_processes

GROWTH_MAX_RATIO: Final = 0.05
"""Per ``PERIOD_S``; more is a leak."""
PERIOD_S: Final = 600.0
NOISE_BYTES: Final = 4 * 2**20
"""What allocators and caches move to and fro; less than this between the quarters says nothing."""
SAMPLES_MIN: Final = 8

Sample = tuple[float, int]
"""(seconds since the start, bytes)"""


@dataclass(frozen=True)
class Growth:
    """One process over a run, after the warm-up."""

    name: str
    first_bytes: float
    """mean of the first quarter of the samples"""
    last_bytes: float
    """mean of the last quarter"""
    slope_bytes: float
    """per ``PERIOD_S``; the median over all pairs of samples, so that single peaks do not count"""

    @property
    def ratio(self) -> float:
        """Growth per ``PERIOD_S``, as a part of what it had at first."""
        return self.slope_bytes / self.first_bytes if self.first_bytes else 0.0

    @property
    def is_leak(self) -> bool:
        grew = self.last_bytes - self.first_bytes > NOISE_BYTES
        return grew and self.ratio > GROWTH_MAX_RATIO


def judge(name: str, samples: Sequence[Sample], warm_up_s: float) -> Growth | None:
    """What became of a process; None when there are too few samples to tell. Cost: quadratic in samples."""
    kept = [sample for sample in samples if sample[0] >= warm_up_s]
    if len(kept) < SAMPLES_MIN:
        return None
    quarter = len(kept) // 4
    slopes = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in combinations(kept, 2) if b[0] > a[0]]
    return Growth(
        name,
        fmean(size for _, size in kept[:quarter]),
        fmean(size for _, size in kept[-quarter:]),
        median(slopes) * PERIOD_S,
    )


def table(growths: Sequence[Growth]) -> str:
    """The run in words for people; MiB."""
    head = f"{'process':<12}{'first quarter':>15}{'last quarter':>15}{'per 10 min':>13}{'growth':>9}"
    rows = [
        f"{one.name:<12}{_mib(one.first_bytes):>15}{_mib(one.last_bytes):>15}{_mib(one.slope_bytes):>13}"
        f"{one.ratio:>9.1%}{'  GROWS' if one.is_leak else ''}"
        for one in growths
    ]
    return "\n".join([head, *rows])


def _mib(size_bytes: float) -> str:
    return f"{size_bytes / 2**20:.1f}"


# --- measuring -------------------------------------------------------------------------------------------


def memory_by_process(state_dir: Path) -> dict[str, int]:
    """Bytes of each process of the table with its descendants, by name."""
    status = json.loads((state_dir / "status.json").read_text())
    roots = {name: record["pid"] for name, record in status["processes"].items() if record["pid"]}
    children: dict[int, list[int]] = defaultdict(list)
    for found in all_processes():
        children[found.parent_pid].append(found.pid)
    sizes = {name: sum(map(_private_bytes, _tree(pid, children))) for name, pid in roots.items()}
    return sizes | {"supervisor": _private_bytes(status["supervisor"]["pid"])}


def _tree(pid: int, children: Mapping[int, Sequence[int]]) -> list[int]:
    return [pid, *(below for child in children.get(pid, ()) for below in _tree(child, children))]


def _private_bytes(pid: int) -> int:
    """Its share of memory without shared memory; 0 for a process that has ended meanwhile."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    except OSError:
        return 0
    kib = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
    return (kib["Pss"] - kib.get("Pss_Shmem", 0)) * 1024
