"""Collective calls of a ring whose sequence number cannot be read, as in a damaged or made file.

In: columns of one ring. Out: the numbers, with those put in that only one number fits: a group counts its
calls one by one, so a call is next to the one before it. ``told`` names the dump in which they were.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from numpy.typing import NDArray

from clusterwatch.analysis.model import InputProblem
from clusterwatch.analysis.sentence import count
from clusterwatch.analysis.tables import Marks, Numbers, Window
from collectors.formats.columns import NULL

FILLED_MAX: Final = 64
"""A ring that lacks more numbers than this is no witness of what its rank did."""

_SEQUENCE_MAX: Final = 1 << 62
"""No job counts so far; beyond it a neighbour has no place in 64 bits."""


def filled(sequence: Numbers, group: NDArray[Any], collective: Marks, truncated: bool) -> Numbers:
    """The numbers of all entries, shape N, with those of collective calls put in where the neighbours tell.

    Args:
        sequence: collective_seq_id or ``NULL``, shape N.
        group: index of each entry's group, shape N.
        collective: entries that are no send, receive or batch, shape N.
        truncated: the ring has dropped its first calls.

    Cost: O(N) for each number that is lacking, of which ``FILLED_MAX`` at most are put in.
    """
    places = (collective & (sequence == NULL)).nonzero()[0]
    if not 0 < len(places) <= FILLED_MAX:
        return sequence
    numbers = sequence.copy()
    for at in places.tolist():
        same = collective & (group == group[at]) & (numbers != NULL)
        before, after = numbers[:at][same[:at]], numbers[at:][same[at:]]
        if len(before):
            fitting = int(before[-1]) + 1
        elif len(after):
            fitting = int(after[0]) - 1
        else:
            fitting = NULL if truncated else 1
        if 0 <= fitting < _SEQUENCE_MAX and not (len(after) and fitting >= int(after[0])):
            numbers[at] = fitting
    return numbers


def usable(windows: Iterable[Window]) -> tuple[Window, ...]:
    """Windows of rings that tell the numbers of their calls, but for a few."""
    return tuple(window for window in windows if window.unnumbered <= FILLED_MAX)


def told(windows: Iterable[Window]) -> list[InputProblem]:
    """Each dump with numbers that are no use, by name."""
    return [InputProblem(w.source, _reason(w), w.rank) for w in windows if w.unnumbered or w.passed_over]


def _reason(window: Window) -> str:
    reasons = []
    if window.unnumbered:
        calls = count(window.unnumbered, "call")
        use = "the dump is not used" if window.unnumbered > FILLED_MAX else _TAKEN
        reasons.append(f"{calls} of {window.entry_count} without a usable sequence number: {use}")
    if window.passed_over:
        what = count(window.passed_over, "other number")
        reasons.append(f"{what} (a time, a p2p number) that no recorder can have written: passed over")
    return "; ".join(reasons)


_TAKEN: Final = "taken by the calls around, as far as these tell"
