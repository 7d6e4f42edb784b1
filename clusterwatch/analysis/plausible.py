"""Numbers of one ring that no recorder can have written, as in a damaged or made file: each costs its entry.

In: columns of one ring, entries in record order. Out: the same columns with ``NULL`` for such numbers, or the
number that alone fits. What the rules rest on: a group counts its calls one by one and a process records them
as it makes them; a ring holds minutes or hours of one job; a new group begins at call 1.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from clusterwatch.analysis.tables import Marks, Numbers
from collectors.formats.columns import NULL
from collectors.formats.trace import TraceGroup

COUNT_MAX: Final = 1 << 40
"""Calls of one group: 10,000 a second for three years."""
AHEAD_MAX: Final = 1 << 20
"""Calls that lie between two of one ring, or between a member and its peers: a GPU's launch queue holds some
thousand, and a captured graph that is not recorded some thousand more."""

_ERA_NS: Final = (1 << 60, 1 << 62)
"""Host clocks of the years 2006 to 2116."""
_SPAN_NS: Final = 30 * 86_400 * 1_000_000_000
_DISORDER: Final = 8
"""Threads of one process may record their calls so much out of order."""
_ODD_MAX: Final = 8
"""More odd numbers of one group are no accident: its calls are then taken as they are told."""
_STRAYS_MAX: Final = 2
"""Entries of one group with a pg_id of their own."""


def times(column: Numbers) -> Numbers:
    """Times in ns, shape N, without those far from most of their ring and from any clock of a host."""
    if not len(column):
        return column
    least, most = int(column.min()), int(column.max())
    if least >= _ERA_NS[0] and most < _ERA_NS[1] and most - least <= _SPAN_NS:
        return column
    known = column[(column != NULL) & (column < _ERA_NS[1])]
    if not len(known):
        return np.full(len(column), NULL)
    inside = known[known >= _ERA_NS[0]]
    middle = _lower_median(inside if len(inside) else known)
    return np.where((column < _ERA_NS[1]) & near(column, middle), column, NULL)


def difference(told: Numbers, used: Numbers) -> int:
    """How many numbers of a column were passed over or put in order."""
    return 0 if used is told else int((told != used).sum())


def near(column: Numbers, at: Numbers | int) -> Marks:
    """Which times, none below ``NULL``, lie within the span of a ring around ``at``."""
    marks: Marks = (column != NULL) & (np.abs(column - at) <= _SPAN_NS)
    return marks


def overflowed(record_id: Sequence[int]) -> bool:
    """Whether the ring has dropped its first records, by most of three: one number may be odd."""
    last = len(record_id) - 1
    if last < 0:
        return False
    return sum(record_id[at] > at for at in (0, last // 2, last)) >= 2


def numbers(values: Numbers, owner: NDArray[Any]) -> list[int]:
    """Places of numbers of calls that do not fit those around them; often none.

    Args:
        values: of one ring's numbered calls in record order, stably sorted by group.
        owner: group of each.
    """
    beyond = owner[values > COUNT_MAX].tolist() if len(values) and int(values.max()) > COUNT_MAX else []
    step = np.where(owner[1:] == owner[:-1], values[1:] - values[:-1], 0)
    if not beyond and len(step) and int(step.min()) >= 0 and int(step.max()) <= AHEAD_MAX:
        return []
    strange = owner[1:][(step < 0) | (step > AHEAD_MAX)]
    found: list[int] = []
    for one in {*strange.tolist(), *beyond}:
        mine = np.flatnonzero(owner == one)
        odd = _misfits(values[mine].tolist())
        found += mine[odd].tolist() if len(odd) <= _ODD_MAX else []
    return sorted(found)


def _misfits(values: list[int]) -> list[int]:
    """Places of numbers that do not fit between their neighbours in record order."""
    middle = _lower_median(np.array([value for value in values if value > 0] or [0], np.int64))
    odd, before = [], NULL
    for place, value in enumerate(values):
        after = values[place + 1] if place + 1 < len(values) else value
        far = value > COUNT_MAX or abs(value - middle) > AHEAD_MAX
        peak = before <= after < value - _DISORDER
        dip = before - value > _DISORDER or value == 0 < before
        if far or peak or dip:
            odd.append(place)
        else:
            before = value
    return odd


def _lower_median(values: Numbers) -> int:
    return int(np.sort(values)[(len(values) - 1) // 2])


def torn(values: Numbers, owner: NDArray[Any]) -> bool:
    """Whether p2p numbers of a group leave their order: each is the one before or the next, from 1 on.

    Args:
        values: of one ring's sends, receives and closing entries in record order, stably sorted by group.
        owner: group of each.
    """
    step = np.where(owner[1:] == owner[:-1], values[1:] - values[:-1], 0)
    if len(values) and int(values.max()) > COUNT_MAX:
        return True
    return bool(len(step)) and bool(((step < 0) | (step > 1) | ((step > 0) & (values[:-1] == 0))).any())


def batches(values: Numbers, owner: NDArray[Any], closing: Marks) -> Numbers:
    """p2p numbers as of ``torn``, with those put in order that tear a batch apart.

    A batch's entries share one number and lie side by side, its closing entry last.
    """
    mended = values.tolist()
    ends = [0, *((owner[1:] != owner[:-1]).nonzero()[0] + 1).tolist(), len(mended)]
    for first, end in pairwise(ends):
        for at in range(first, end):
            behind, ahead = mended[max(first, at - 2) : at][::-1], mended[at + 1 : min(end, at + 3)]
            if not _fits(mended[at], behind, ahead):
                own = ahead if ahead and not (closing[at] and behind) else behind
                mended[at] = own[0] if own else NULL
    return np.array(mended, np.int64)


def _fits(value: int, behind: list[int], ahead: list[int]) -> bool:
    """Whether a p2p number is in line with those next to it, or they with none.

    Args:
        behind: up to two numbers before it, the nearest first.
        ahead: up to two after it, the nearest first.
    """
    if not 0 < value <= COUNT_MAX:
        return not any(behind + ahead)
    if behind and ahead:
        return not _follows(behind[0], ahead[0]) or behind[0] <= value <= ahead[0]
    if len(ahead) == 2:
        return not _follows(ahead[0], ahead[1]) or _follows(value, ahead[0])
    return len(behind) < 2 or not _follows(behind[1], behind[0]) or _follows(behind[0], value)


def _follows(one: int, other: int) -> bool:
    return one > 0 and 0 <= other - one <= 1


def one_group_each(
    group: NDArray[np.int32], groups: Sequence[TraceGroup], sequence: Numbers, p2p_sequence: Numbers
) -> NDArray[np.int32]:
    """The group of each entry, shape N, with groups put together that differ by an odd pg_id only.

    A group that is made anew under its name begins at call 1; one that goes on where another stops, or lies
    among its calls, is the same.
    """
    alike: dict[tuple[str, str], list[int]] = defaultdict(list)
    for index, one in enumerate(groups):
        alike[(one.name, one.desc)].append(index)
    if len(alike) == len(groups):
        return group
    joined = group.copy()
    for several in alike.values():
        if len(several) > 1:
            _join(joined, several, sequence, p2p_sequence)
    return joined


def _join(group: NDArray[np.int32], several: list[int], sequence: Numbers, p2p_sequence: Numbers) -> None:
    """Gives strays among the entries of ``several`` to the group with most of them, in place."""
    held = {index: np.flatnonzero(group == index) for index in several}
    main = max(several, key=lambda index: (len(held[index]), -index))
    for index, rows in held.items():
        if index == main or not 0 < len(rows) <= _STRAYS_MAX:
            continue
        both = np.sort(np.concatenate([held[main], rows]))
        seams = np.flatnonzero(np.isin(both[1:], rows) != np.isin(both[:-1], rows))
        counts = [column[both] for column in (sequence, p2p_sequence)]
        steps = [count[1:][seams] - count[:-1][seams] for count in counts]
        in_line = all(((step >= 0) & (step <= 1)).all() for step in steps)
        begins = [max(int(count[seam + 1]) for count in counts) <= 1 for seam in seams.tolist()]
        if in_line and (len(seams) > 1 or not any(begins)):
            group[rows] = main
