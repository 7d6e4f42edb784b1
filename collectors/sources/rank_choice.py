"""Which process is which rank, where several say they are.

In: the processes of jobs on a node, and which hold a GPU. Out: one process per rank. A launcher is no rank;
workers that load data say the same of themselves as the rank that began them; an old life of a rank may still
be dying.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from collectors.sources.process_identity import Identity


@dataclass(frozen=True, slots=True)
class Kin:
    """What /proc/PID/stat says. ``start``: ticks after boot; None: not told."""

    parent: int | None = None
    start: int | None = None


@dataclass(frozen=True, slots=True)
class Rank:
    """A rank and its process."""

    job: str
    rank: int
    process: Identity


def ranks(
    processes: Iterable[Identity], kin: Mapping[int, Kin], holders: set[int], holders_known: bool
) -> list[Rank]:
    """One process for each rank, by job and rank.

    Args:
        kin: of the processes, where it is told.
        holders: processes that hold a GPU, themselves or by a child.
        holders_known: whether the driver told who holds a GPU.
    """
    by_job: dict[str, list[Identity]] = {}
    for process in processes:
        if process.job is not None:
            by_job.setdefault(process.job, []).append(process)
    found = []
    for job, members in by_job.items():
        lives: dict[int, list[Identity]] = {}
        for rank, process in _claims(members, holders, holders_known):
            lives.setdefault(rank, []).append(process)
        found += [Rank(job, rank, _chosen(alive, kin, holders)) for rank, alive in lives.items()]
    return sorted(found, key=lambda one: (one.job, one.rank))


def _claims(
    members: list[Identity], holders: set[int], holders_known: bool
) -> Iterable[tuple[int, Identity]]:
    """(rank, process) of all processes of one job that may be a rank."""
    numbered = [(process.rank, process) for process in members if process.rank is not None]
    # Where ranks have a local one, a number without it is a launcher's: operators number nodes with RANK.
    if any(process.local_rank is not None for _, process in numbered):
        numbered = [one for one in numbered if one[1].local_rank is not None or one[1].pid in holders]
    if numbered:
        return numbered
    tasks = [(process.task, process) for process in members if process.task is not None]
    return [one for one in tasks if one[1].pid in holders or (not holders_known and _sees_gpus(one[1]))]


def _sees_gpus(process: Identity) -> bool:
    return any(process.values.get(name) for name in ("CUDA_VISIBLE_DEVICES", "SLURM_STEP_GPUS"))


def _chosen(alive: list[Identity], kin: Mapping[int, Kin], holders: set[int]) -> Identity:
    """The newest life; of its processes one that holds a GPU, and rather the parent than its children."""
    pids = {process.pid for process in alive}

    def order(process: Identity) -> tuple[tuple[int, int, int], bool, bool, int, int]:
        known = kin.get(process.pid, Kin())
        is_first = known.parent not in pids
        return process.age, process.pid in holders, is_first, known.start or 0, process.pid

    return max(alive, key=order)
