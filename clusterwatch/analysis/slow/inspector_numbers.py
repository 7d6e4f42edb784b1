"""Numbers by which calls of one communicator are matched among its members, and lost lines are seen.

In: ``Lines`` and the processes that point-to-point calls lead to. Out: a sequence number per row. The plugin
counts collectives by operation, calls it did not log included, so its numbers jump where nothing is lost:
here the calls that any member logged are counted. Of point-to-point calls the n-th send of a pair meets the
n-th receive, until a line is lost.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from clusterwatch.analysis.slow.inspector_lines import Lines

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_UNMATCHED = 2**32
"""More than a pair's calls: numbers behind a lost line meet none of the other end's."""


def sequences(lines: Lines) -> tuple[Ints, Bools]:
    """(number by row, a line of the row's stream is lost right before it)."""
    number = np.zeros(len(lines), np.int64)
    is_late = np.zeros(len(lines), np.bool_)
    is_p2p = lines.is_p2p
    for rows, numbered in ((np.flatnonzero(~is_p2p), _collectives), (np.flatnonzero(is_p2p), _pairs)):
        if len(rows):
            number[rows], is_late[rows] = numbered(lines.rows(rows))
    return number, is_late


def _collectives(lines: Lines) -> tuple[Ints, Bools]:
    number = np.zeros(len(lines), np.int64)
    order = np.argsort(lines.comm, kind="stable")
    begin = np.flatnonzero(np.diff(lines.comm[order], prepend=-1))
    for rows in np.split(order, begin[1:]):
        number[rows] = _of_communicator(lines.rows(rows))
    return number, _jumps(number, lines.process, lines.comm)


def _of_communicator(lines: Lines) -> Ints:
    """Numbers in the order in which the member with most lines made its calls."""
    busiest = lines.process == np.bincount(lines.process).argmax()
    guide = lines.rows(busiest)
    keys, place = np.unique(np.stack((lines.op, lines.sn)), axis=1, return_inverse=True)
    op, sn = keys
    at = np.zeros(len(op))
    for one in np.unique(op).tolist():
        mine = np.flatnonzero(guide.op == one)
        if len(mine):  # the guide's rows are in the order of its program
            by_number = mine[np.argsort(guide.sn[mine], kind="stable")]
            at[op == one] = np.interp(sn[op == one], guide.sn[by_number], by_number)
    order = np.lexsort((sn, op, at))
    step = np.ones(len(order), np.int64)
    if lines.is_old.any():
        lost = np.diff(sn, prepend=0) - 1
        lost[np.concatenate(([True], op[1:] != op[:-1]))] = 0
        step += np.clip(lost, 0, 2**20)[order]
    number = np.empty(len(order), np.int64)
    number[order] = np.cumsum(step)
    return number[place.reshape(-1)]


def _jumps(number: Ints, process: Ints, stream: Ints) -> Bools:
    """Rows whose number is not one more than that of the row before it in the process's stream."""
    order = np.lexsort((number, stream, process))
    same = (process[order][1:] == process[order][:-1]) & (stream[order][1:] == stream[order][:-1])
    found = np.zeros(len(number), np.bool_)
    found[order[1:]] = same & (np.diff(number[order]) > 1)
    return found


def _pairs(lines: Lines) -> tuple[Ints, Bools]:
    """The plugin counts sends and receives of a communicator together, so its jumps are lost lines."""
    is_late = _jumps(lines.sn, lines.process, lines.comm)
    by_stream = np.lexsort((lines.sn, lines.comm, lines.process))
    lost = np.zeros(len(lines), np.int64)
    lost[by_stream] = _counted(
        is_late[by_stream].astype(np.int64), lines.process[by_stream], lines.comm[by_stream]
    )
    order = np.lexsort((lines.sn, lines.op, lines.peer, lines.comm, lines.process))
    ordinal = np.zeros(len(lines), np.int64)
    ones = np.ones(len(lines), np.int64)
    ordinal[order] = _counted(
        ones, lines.process[order], lines.comm[order], lines.peer[order], lines.op[order]
    )
    behind = (lost > 0) * (lines.process + 2) * _UNMATCHED
    return ordinal + 2 * lost + behind, is_late


def _counted(values: Ints, *keys: Ints) -> Ints:
    """Running sum of sorted rows, which begins anew where a key changes."""
    begins = np.zeros(len(values), np.bool_)
    begins[0] = True
    for key in keys:
        begins[1:] |= key[1:] != key[:-1]
    total = np.cumsum(values)
    first = np.flatnonzero(begins)
    before = total[first] - values[first]
    counted: Ints = total - before[np.cumsum(begins) - 1]
    return counted
