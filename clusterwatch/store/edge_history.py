"""Transfers that the ranks of a running job told of since a moment.

In: ids and ns UTC. Out: ``EdgeRows``, plain arrays. What each rank's call took holds waiting for who came
last; the least among a group's members is the transfer's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from clusterwatch.store import binary_reads, edge_pack

FRAMES_MAX: Final = 40_000
"""Rows of ``edges`` read at once, the oldest first: two minutes of 3,072 nodes, a row each ten seconds."""
EVER_NS: Final = 2**63 - 1

_OF_JOB: Final = """
SELECT world, data FROM edges
WHERE job_id = %(job)s AND attempt = %(attempt)s AND t_ns >= %(from)s AND t_ns <= %(until)s
ORDER BY t_ns LIMIT %(limit)s
"""


@dataclass(frozen=True, slots=True, eq=False)
class EdgeRows:
    """A row per rank, step, group, operation and size, all columns of shape (N,), ordered by step, then rank.

    Attributes:
        world: index into ``worlds``.
        group: index in the rank's own inventory of groups, as the wire's ``Edges`` tells it.
        op: index into ``ops``.
        size_bytes: what one rank passed to a call.
        count: calls that were timed.
        at_ns: when the rank told it.
        is_whole: False where more was stored than is read at once; the newest rows are missing then.
    """

    worlds: tuple[str, ...]
    ops: tuple[str, ...]
    world: NDArray[np.int64]
    rank: NDArray[np.int64]
    step: NDArray[np.int64]
    group: NDArray[np.int64]
    op: NDArray[np.int64]
    size_bytes: NDArray[np.int64]
    count: NDArray[np.int64]
    sum_s: NDArray[np.float32]
    min_s: NDArray[np.float32]
    p10_s: NDArray[np.float32]
    p50_s: NDArray[np.float32]
    at_ns: NDArray[np.int64]
    is_whole: bool


def since(job_id: int, attempt: int, from_ns: int, until_ns: int | None = None) -> EdgeRows:
    """What was told of an attempt at or after ``from_ns`` and is stored by now.

    Args:
        until_ns: rows that a node told later than this, by its own clock, are left out.

    Raises ``EdgesDamaged``. Reads at most ``FRAMES_MAX`` rows. Cost: one sort of the rows.
    """
    until = EVER_NS if until_ns is None else until_ns
    asked = {"job": job_id, "attempt": attempt, "from": from_ns, "until": until, "limit": FRAMES_MAX + 1}
    rows = binary_reads.fetch(_OF_JOB, asked)
    is_whole = len(rows) <= FRAMES_MAX
    del rows[FRAMES_MAX:]
    return _ordered(rows, is_whole)


def _ordered(rows: list[tuple[Any, ...]], is_whole: bool) -> EdgeRows:
    """Of (world, data) pairs."""
    worlds = tuple(sorted({world for world, _ in rows}))
    by_world = [edge_pack.unpack([data for world, data in rows if world == name]) for name in worlds]
    ops = tuple(dict.fromkeys(op for part in by_world for op in part.ops))
    columns: dict[str, NDArray[Any]] = {}
    for name in ("rank", "step", "group", "size_bytes", "count", "sum_s", "min_s", "p10_s", "p50_s", "t_ns"):
        kind = np.float32 if name.endswith("_s") else np.int64
        columns[name] = np.concatenate([np.zeros(0, kind), *(getattr(part, name) for part in by_world)])
    columns["at_ns"] = columns.pop("t_ns")
    place = {op: number for number, op in enumerate(ops)}
    own = [np.array([place[op] for op in part.ops], np.int64)[part.op] for part in by_world]
    columns["op"] = np.concatenate([np.zeros(0, np.int64), *own])
    counts = [len(part.rank) for part in by_world]
    columns["world"] = np.repeat(np.arange(len(worlds), dtype=np.int64), counts)
    order = np.lexsort((columns["rank"], columns["step"]))
    return EdgeRows(
        worlds=worlds, ops=ops, is_whole=is_whole, **{name: one[order] for name, one in columns.items()}
    )
