"""Changes of phase as ranks told them -> when each rank was in which phase.

In: rows of changes in a stretch of time, in no order. Out: ``Spans`` by phase, and which phase stays open at
the end of a window. A change tells its own moment, the phase before and how long that one lasted, so a phase
is known by its end even where its begin was never told.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from clusterwatch.analysis.goodput_model import Ints, Spans

OPEN_MAX_NS: Final = 3_600 * 10**9
"""A phase whose end nobody told is believed for an hour."""
PHASE_MAX_S: Final = 30 * 86_400.0
"""What is told to have lasted longer is a clock that was set."""


@dataclass(frozen=True, slots=True, eq=False)
class Changes:
    """Rows of shape (K,): rank by its place in the roster, the moment, the phase begun, the one before."""

    who: Ints
    t_ns: Ints
    phase: Ints
    """number in ``words``"""
    before: Ints
    before_s: NDArray[np.float64]
    words: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Open:
    """The phase each rank was in at a moment, and since when; shape (N,), empty words where none is known."""

    phase: NDArray[np.str_]
    since_ns: Ints


def nothing_open(count: int) -> Open:
    return Open(np.zeros(count, "U16"), np.zeros(count, np.int64))


def spans(changes: Changes, before: Open, end_ns: int) -> tuple[dict[str, Spans], Open]:
    """Spans of each phase up to ``end_ns``, and what is open then.

    Args:
        changes: of one stretch; those after ``end_ns`` tell how long the phase before lasted.
        before: what was open when the stretch began.
    """
    order = np.lexsort((changes.t_ns, changes.who))
    who, t_ns = changes.who[order], changes.t_ns[order]
    phase, ended = changes.phase[order], changes.before[order]
    seconds = np.nan_to_num(changes.before_s[order], nan=0.0)
    lasted_ns = (np.clip(seconds, 0.0, PHASE_MAX_S) * 1e9).astype(np.int64)
    last = np.ones(len(who), bool)
    last[:-1] = who[1:] != who[:-1]
    until = np.minimum(t_ns + OPEN_MAX_NS, end_ns)
    until[:-1] = np.where(last[:-1], until[:-1], t_ns[1:])
    first = np.ones(len(who), bool)
    first[1:] = last[:-1]
    found = _of_open(before, np.unique(who), end_ns)
    for number, word in enumerate(changes.words):
        begun, closed = phase == number, (ended == number) & first
        of_word = (
            np.concatenate([who[begun], who[closed]]),
            np.concatenate([t_ns[begun], t_ns[closed] - lasted_ns[closed]]),
            np.concatenate([until[begun], t_ns[closed]]),
        )
        found.setdefault(word, []).append(of_word)
    return {word: _joined(parts) for word, parts in found.items()}, _open_at(
        before, who, t_ns, np.array(changes.words or ("",), "U16")[phase], end_ns
    )


_Part = tuple[Ints, Ints, Ints]


def _of_open(before: Open, heard: Ints, end_ns: int) -> dict[str, list[_Part]]:
    """What was open before and of which no change was told since goes on, for at most ``OPEN_MAX_NS``."""
    goes_on = before.phase != ""
    goes_on[heard] = False
    found: dict[str, list[_Part]] = {}
    for word in np.unique(before.phase[goes_on]).tolist():
        who = np.flatnonzero(goes_on & (before.phase == word))
        since = before.since_ns[who]
        found[word] = [(who, since, np.minimum(since + OPEN_MAX_NS, end_ns))]
    return found


def _open_at(before: Open, who: Ints, t_ns: Ints, words: NDArray[np.str_], end_ns: int) -> Open:
    """The newest change of each rank before ``end_ns``; rows are sorted by rank and time."""
    phase, since_ns = before.phase.copy(), before.since_ns.copy()
    begun = t_ns < end_ns
    phase[who[begun]], since_ns[who[begun]] = words[begun], t_ns[begun]  # of equal places the last one stays
    return Open(phase, since_ns)


def _joined(parts: list[_Part]) -> Spans:
    return Spans(*(np.concatenate([part[at] for part in parts]) for at in range(3)))
