"""Steps of all ranks of a running job since a moment, and the newest ones of a node's ranks.

In: ids and ns UTC. Out: ``StepColumns``, plain arrays. A rank's own work is what is left of a step without
waiting for peers, for data and for a checkpoint; unknown parts make it unknown. It is never taken for 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from clusterwatch.store import binary_reads, step_pack

FRAMES_MAX: Final = 40_000
"""Rows of ``steps`` read at once, the oldest first: two minutes of 3,072 nodes, a row each ten seconds."""
EVER_NS: Final = 2**63 - 1
NODE_FRAMES: Final = 12
OVERLAP_RATIO: Final = 0.02
"""Parts may be longer than their step by this share (clocks are read one after the other); beyond it they
overlap and own work is unknown."""

_OF_JOB: Final = """
SELECT world, data FROM steps
WHERE job_id = %(job)s AND attempt = %(attempt)s AND t_ns >= %(from)s AND t_ns <= %(until)s
ORDER BY t_ns LIMIT %(limit)s
"""

_OF_NODE: Final = """
SELECT world, data FROM steps
WHERE node_id = %(node)s AND job_id = %(job)s AND attempt = %(attempt)s AND t_ns >= %(from)s
ORDER BY t_ns DESC LIMIT %(limit)s
"""


@dataclass(frozen=True, slots=True, eq=False)
class StepColumns:
    """(rank, step) pairs, all columns of shape (N,) in no order; seconds, NaN where unknown.

    Attributes:
        world: index into ``worlds``.
        work_s: ``duration_s`` without ``wait_s``, ``data_wait_s`` and ``checkpoint_s``; holds ``gc_s``.
        wait_s: inside blocking collectives and receives.
        late_launch: share of ``wait_s`` in calls launched too late, 0 to 1.
        is_whole: False where more was stored than is read at once; the newest steps are missing then.
    """

    worlds: tuple[str, ...]
    world: NDArray[np.int64]
    rank: NDArray[np.int64]
    step: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    duration_s: NDArray[np.float32]
    work_s: NDArray[np.float32]
    wait_s: NDArray[np.float32]
    data_wait_s: NDArray[np.float32]
    checkpoint_s: NDArray[np.float32]
    gc_s: NDArray[np.float32]
    late_launch: NDArray[np.float32]
    is_whole: bool


def since(job_id: int, attempt: int, from_ns: int, until_ns: int | None = None) -> StepColumns:
    """Steps of an attempt that ended at or after ``from_ns`` and are stored by now.

    Args:
        until_ns: rows that a node told later than this, by its own clock, are left out.

    Reads at most ``FRAMES_MAX`` rows. Cost: O(steps) in numpy, about 15 us a row.
    """
    until = EVER_NS if until_ns is None else until_ns
    asked = {"job": job_id, "attempt": attempt, "from": from_ns, "until": until, "limit": FRAMES_MAX + 1}
    rows = binary_reads.fetch(_OF_JOB, asked)
    is_whole = len(rows) <= FRAMES_MAX
    del rows[FRAMES_MAX:]
    return _columns(rows, from_ns, is_whole)


def newest_of_node(job_id: int, attempt: int, node_id: int, from_ns: int) -> StepColumns:
    """The last ``NODE_FRAMES`` things that a node told of its ranks' steps in an attempt, about two minutes.

    ``is_whole`` is False: there may be older ones.
    """
    asked = {"job": job_id, "attempt": attempt, "node": node_id, "from": from_ns, "limit": NODE_FRAMES}
    return _columns(binary_reads.fetch(_OF_NODE, asked), from_ns, is_whole=False)


def _columns(rows: list[tuple[Any, ...]], from_ns: int, is_whole: bool) -> StepColumns:
    """Of (world, data) pairs."""
    worlds = tuple(sorted({world for world, _ in rows}))
    place = {world: number for number, world in enumerate(worlds)}
    steps, frame = step_pack.unpack_many([data for _, data in rows])
    world = np.array([place[name] for name, _ in rows], np.int64)[frame]
    kept = (steps.end_ns >= from_ns) & np.isfinite(steps.duration_s)
    return StepColumns(
        worlds=worlds,
        world=world[kept],
        rank=steps.rank[kept],
        step=steps.step[kept],
        end_ns=steps.end_ns[kept],
        duration_s=steps.duration_s[kept],
        work_s=own_work_s(steps)[kept],
        wait_s=steps.wait_s[kept],
        data_wait_s=steps.data_wait_s[kept],
        checkpoint_s=steps.checkpoint_s[kept],
        gc_s=steps.gc_s[kept],
        late_launch=steps.late_launch[kept],
        is_whole=is_whole,
    )


def own_work_s(steps: step_pack.StepColumns) -> NDArray[np.float32]:
    """Seconds of own work by step, shape (N,); NaN where a part is unknown or the parts overlap."""
    with np.errstate(invalid="ignore"):  # infinite minus infinite
        left = steps.duration_s - steps.wait_s - steps.data_wait_s - steps.checkpoint_s
        overlaps = left < -OVERLAP_RATIO * steps.duration_s
    found: NDArray[np.float32] = np.where(overlaps, np.nan, np.maximum(left, 0)).astype(np.float32)
    return found
