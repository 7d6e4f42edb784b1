"""Lives of a group that was made again under its name: one row per rank and group, of the newest life.

In: ``JobRows`` with numbered rows. Out: ``rows.number`` is ``NULL`` for rows of an older life, also where a
rank is still in one that its peers have left.
"""

from __future__ import annotations

import numpy as np

from clusterwatch.analysis.rows import JobRows
from clusterwatch.analysis.tables import Numbers
from collectors.formats.columns import NULL


def keep_newest(rows: JobRows) -> None:
    """Cost: one sort of the rows; O(members) per group that was made again."""
    used = (rows.groups["call_count"] > 0) | (rows.groups["p2p_count"] > 0)
    key = rows.owner * (int(rows.number.max(initial=0)) + 2) + rows.number
    order = np.lexsort((rows.index, used, key))  # a dump lists its groups as they first appear
    placed = rows.number[order] != NULL
    order = order[placed]
    double = key[order][1:] == key[order][:-1]
    older, newer = order[:-1][double], order[1:][double]
    again = newer[used[older] & used[newer]]
    for number in sorted(set(rows.number[again].tolist())):
        _drop_stragglers(rows, again[rows.number[again] == number])
    rows.number[older] = NULL


def _drop_stragglers(rows: JobRows, again: Numbers) -> None:
    """Ranks with one life less than their peers, whose last call ended that life for all.

    A ring that has dropped the older life differs by its times only: its calls are as new as the peers'.
    """
    number = rows.number[again[0]]
    mine = np.flatnonzero(rows.number == number)
    alone = mine[~np.isin(rows.rank[mine], rows.rank[again])]
    if not len(alone) or len(alone) >= len(again):
        return
    began = min(_created(rows, row)[0] for row in again.tolist())
    for row in alone.tolist():
        if rows.high[row] != NULL and _created(rows, row)[1] < began:
            rows.number[row] = NULL


def _created(rows: JobRows, row: int) -> tuple[int, int]:
    """When the first and the last kept call of a row were made, ns; beyond all where no time is known."""
    times = rows.gather(np.array([row])).created_ns
    times = times[times != NULL]
    return (int(times.min()), int(times.max())) if len(times) else (np.iinfo(np.int64).max,) * 2
