"""Steps of a training job out of the order of its calls, where the log tells none.

In: ``Lines`` by process and launch. Out: ``Steps``. The largest collective that comes again and again is made
once a step (gradients), and marks it; what follows up to the next call inside a micro-batch belongs to its
end. Where a job has no such call, every process's calls are cut into as many equal parts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from clusterwatch.analysis.slow.inspector_lines import UNKNOWN, Lines

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

MARKS_MIN: Final = 5
"""A call made less often marks no steps."""
NEAR_RATIO: Final = 0.1
"""Counts of marks of two processes may differ so much: lines are lost, logs end at different dumps."""
INNER_RATIO: Final = 1.5
"""A call made so many times as often as the mark lies inside the micro-batches."""
CALLS_MIN: Final = 4
"""of a step that has calls inside micro-batches; with fewer the mark is one of these itself"""
WINDOW_CALLS: Final = 16
WINDOWS_MAX: Final = 200
CELLS_MAX: Final = 50_000_000
"""steps x processes; with more, several steps are one"""


@dataclass(frozen=True, slots=True)
class Steps:
    """``step``: by row. ``is_found``: False where they are equal parts only. ``mark``: the communicator
    of the mark by process, ``UNKNOWN`` where it has none. ``count``: marks of a process, the median.
    ``is_end``: by row behind the mark of its step, or first in a step where nothing follows marks."""

    step: Ints
    is_end: Bools
    is_found: bool
    mark: Ints
    count: int


@dataclass(frozen=True, slots=True)
class _Kinds:
    """Sorts of collectives of each process; entries sorted by process. ``of_row``: UNKNOWN of p2p."""

    of_row: Ints
    process: Ints
    comm: Ints
    size_bytes: Ints
    count: Ints

    @classmethod
    def of(cls, lines: Lines) -> _Kinds:
        rows = np.flatnonzero(~lines.is_p2p)
        key = np.stack([getattr(lines, name)[rows] for name in ("process", "comm", "op", "size_bytes")])
        kinds, place, count = np.unique(key, axis=1, return_inverse=True, return_counts=True)
        of_row = np.full(len(lines), UNKNOWN)
        of_row[rows] = place.reshape(-1)
        return cls(of_row, kinds[0], kinds[1], kinds[3], count)


def cut(lines: Lines, number: Ints) -> Steps:
    """Steps by row. ``number``: as ``inspector_numbers.sequences`` gives it. Cost: O(n log n)."""
    process_count = len(lines.processes)
    kinds = _Kinds.of(lines)
    marks, count = _marks(kinds, process_count)
    known = marks != UNKNOWN
    calls = np.bincount(lines.process, minlength=process_count)
    if not known.any():
        return _equal_parts(lines, calls)
    of_mark = np.where(known, kinds.comm[np.maximum(marks, 0)], UNKNOWN)
    is_send = np.array([op == "Send" for op in lines.ops], np.bool_)[lines.op]
    begins = _inner(lines, kinds, marks, of_mark) & ~is_send  # sends run beside the work
    has_inner = np.bincount(lines.process, begins, process_count) > 0
    short = calls[known] < CALLS_MIN * kinds.count[marks[known]]
    if (short & has_inner[known]).mean() > 0.5:
        return _equal_parts(lines, calls)
    step, is_end = np.zeros(len(lines), np.int64), np.zeros(len(lines), np.bool_)
    of_step, ends = _mark_numbers(kinds, marks, number), np.cumsum(calls)
    for process in np.flatnonzero(calls).tolist():
        rows = np.arange(ends[process] - calls[process], ends[process])
        if not known[process]:
            step[rows] = np.arange(len(rows)) * count // len(rows)
            continue
        is_mark, first = kinds.of_row[rows] == marks[process], begins[rows]
        if not has_inner[process]:
            first = _widest(lines.rows(rows), kinds, rows, int(marks[process]))
        step[rows] = _numbered(is_mark, first, of_step[rows])
        is_end[rows] = _ends(is_mark, step[rows], is_send[rows])
    wide = -(-int(step.max(initial=0) + 1) * process_count // CELLS_MAX)
    return Steps(step // max(1, wide), is_end, True, of_mark, count)


def _marks(kinds: _Kinds, process_count: int) -> tuple[Ints, int]:
    """(sort that marks the steps by process, how often a process makes it)."""
    often = np.flatnonzero(kinds.count >= MARKS_MIN)
    marks = np.full(process_count, UNKNOWN)
    if not len(often):
        return marks, 0
    best = often[np.lexsort((kinds.count[often], -kinds.size_bytes[often], kinds.process[often]))]
    processes, first = np.unique(kinds.process[best], return_index=True)
    marks[processes] = best[first]
    count = int(np.median(kinds.count[best[first]]))
    near = max(2.0, NEAR_RATIO * count)
    off = np.abs(kinds.count - count)
    for process in processes[off[best[first]] > near].tolist():
        mine = often[kinds.process[often] == process]
        mine = mine[off[mine] <= near]
        nearest = mine[np.lexsort((-kinds.size_bytes[mine], off[mine]))]
        marks[process] = nearest[0] if len(nearest) else UNKNOWN
    return marks, count


def _inner(lines: Lines, kinds: _Kinds, marks: Ints, of_mark: Ints) -> Bools:
    """Calls inside micro-batches: point to point, and what another communicator does many times a step."""
    per_mark = kinds.count[np.maximum(marks, 0)][lines.process]
    often = kinds.count[np.maximum(kinds.of_row, 0)] >= INNER_RATIO * per_mark
    collective = (kinds.of_row != UNKNOWN) & often & (lines.comm != of_mark[lines.process])
    found: Bools = (lines.is_p2p | collective) & (marks[lines.process] != UNKNOWN)
    return found


def _widest(lines: Lines, kinds: _Kinds, rows: Ints, mark: int) -> Bools:
    """Calls before which a process without calls inside micro-batches works longest: steps begin there."""
    of_row = kinds.of_row[rows]
    gap = lines.start_ns - np.concatenate(([lines.start_ns[0]], np.maximum.accumulate(lines.end_ns)[:-1]))
    near = max(2.0, NEAR_RATIO * kinds.count[mark])
    candidates = [
        kind for kind in np.unique(of_row).tolist() if abs(int(kinds.count[kind] - kinds.count[mark])) <= near
    ]
    widest = max(candidates, key=lambda kind: (float(np.median(gap[of_row == kind])), kind))
    begins: Bools = of_row == widest
    return begins


def _mark_numbers(kinds: _Kinds, marks: Ints, number: Ints) -> Ints:
    """By row that marks a step: how many marks of its communicator lie before it, of any member."""
    found = np.zeros(len(number), np.int64)
    is_mark = np.isin(kinds.of_row, marks[marks != UNKNOWN])
    rows = np.flatnonzero(is_mark)
    comm = kinds.comm[kinds.of_row[rows]]
    keys, place = np.unique(np.stack((comm, number[rows])), axis=1, return_inverse=True)
    first = np.searchsorted(keys[0], np.arange(int(keys[0].max(initial=0)) + 1))
    found[rows] = place.reshape(-1) - first[comm]
    return found


def _numbered(is_mark: Bools, begins: Bools, number: Ints) -> Ints:
    """Step of each row of a process: that of the next mark, or of the last one before its step ends."""
    marks, starts = np.flatnonzero(is_mark), np.flatnonzero(begins)
    place = np.searchsorted(starts, marks, side="right")
    ends = np.append(starts, len(is_mark))[place]
    steps = np.append(number[marks], number[marks[-1]] + 1)
    found: Ints = steps[np.searchsorted(ends, np.arange(len(is_mark)), side="right")]
    return found


def _ends(is_mark: Bools, step: Ints, is_send: Bools) -> Bools:
    """Rows of a process behind the mark of their step; the first of each step where there are none."""
    last = np.maximum.accumulate(np.where(is_mark, np.arange(len(step)), UNKNOWN))
    found: Bools = (last != UNKNOWN) & (step[last] == step) & ~is_mark & ~is_send
    if found.any():
        return found
    rows = np.flatnonzero(~is_send)
    _, first = np.unique(step[rows], return_index=True)
    found[rows[first]] = True
    return found


def _equal_parts(lines: Lines, calls: Ints) -> Steps:
    """Every process's calls in as many parts of like length."""
    nowhere = np.full(len(calls), UNKNOWN)
    some = calls[calls > 0]
    if not len(some):
        return Steps(np.zeros(0, np.int64), np.zeros(0, np.bool_), False, nowhere, 0)
    most = min(WINDOWS_MAX, max(1, CELLS_MAX // len(calls)))
    parts = int(np.clip(np.median(some) // WINDOW_CALLS, 1, most))
    first = (np.cumsum(calls) - calls)[lines.process]
    step = (np.arange(len(lines)) - first) * parts // np.maximum(1, calls[lines.process])
    return Steps(step, np.zeros(len(step), np.bool_), False, nowhere, parts)


def occurrences(lines: Lines, step: Ints, is_late: Bools) -> Ints:
    """How many calls of its sort the process made in the step before each.

    In steps with lost lines nobody knows: negative, another number in each, so that they are like no other
    step; ``UNKNOWN`` in all where most steps lack lines.
    """
    keys = (lines.size_bytes, lines.peer, lines.op, lines.comm, step, lines.process)
    order = np.lexsort((lines.launch_ns, *keys))
    begins = np.zeros(len(order), np.bool_)
    begins[:1] = True
    for key in keys:
        begins[1:] |= key[order][1:] != key[order][:-1]
    found = np.zeros(len(order), np.int64)
    first = np.flatnonzero(begins)
    found[order] = np.arange(len(order)) - first[np.cumsum(begins) - 1]
    wide = int(step.max(initial=0)) + 1
    cell = lines.process * wide + step
    lossy = np.unique(cell[is_late])
    place = np.minimum(np.searchsorted(lossy, cell), max(0, len(lossy) - 1))
    is_lossy = lossy[place] == cell if len(lossy) else np.zeros(len(cell), np.bool_)
    most = 2 * len(lossy) > len(np.unique(cell))
    return np.where(is_lossy, UNKNOWN if most else UNKNOWN - 1 - place, found)
