"""What each rank of a job does at this moment: one decision for live frames and for served pages.

In: columns of ranks and of (rank, group) rows from hot state. Out: a state per rank, how far behind it is and
the words for how a process ended. The words are those of the live topic ``job:<id>`` (``live/README.md``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from clusterwatch.analysis import ending
from clusterwatch.analysis.ending import Ending

RANK_STATES: Final = ("unknown", "moving", "waiting", "behind", "still", "ended", "failed", "stopped")
UNKNOWN, MOVING, WAITING, BEHIND, STILL, ENDED, FAILED, STOPPED = range(len(RANK_STATES))

STILL_AFTER_NS: Final = 3_000_000_000
"""A rank that moved within so long is moving; a group whose waiters have not is shown as stuck."""

EXIT_NONE, EXIT_ENDED, EXIT_FAILED = 0, 1, 2
"""Lives; ended well; ended badly."""

NOBODY: Final = np.int64(-(2**62))
"""Front of a group in which nobody waits: below every number a recorder gives."""

Column = NDArray[np.int64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Calls:
    """(rank, group) rows, columns of length M."""

    place: Column
    """row of the rank"""
    group: Column
    """index of the group, below ``group_count``"""
    group_count: int
    number: Column
    """collective sequence number, else the recorder's own"""
    in_flight: Mask


def newest_number(sequence: NDArray[Any], enqueued: NDArray[Any]) -> Column:
    """The collective sequence number where the recorder gives one (not below 0), else its own count."""
    return np.where(sequence >= 0, sequence, enqueued).astype(np.int64)


def waiters_front(calls: Calls) -> Column:
    """Per group the highest number at which a member waits; ``NOBODY`` where none does."""
    front = np.full(calls.group_count, NOBODY, np.int64)
    np.maximum.at(front, calls.group[calls.in_flight], calls.number[calls.in_flight])
    return front


def waiting_and_behind(rank_count: int, calls: Calls) -> tuple[Mask, Column]:
    """Ranks with a call of their own in flight; and how many calls each is behind its groups' waiters.

    Cost: O(ranks + rows).
    """
    waiting = np.zeros(rank_count, bool)
    waiting[calls.place[calls.in_flight]] = True
    front = waiters_front(calls)
    behind = np.zeros(rank_count, np.int64)
    lag = np.where(front[calls.group] == NOBODY, 0, front[calls.group] - calls.number)
    np.maximum.at(behind, calls.place, lag)
    return waiting, behind


def states(
    *, exits: NDArray[Any], silent: Mask, stopped: Mask, moves: Mask, waiting: Mask, behind: Column
) -> NDArray[np.uint8]:
    """Index into ``RANK_STATES`` per rank; columns of one length, the first that holds decides.

    A rank that waits in one group while others wait for it in another is a waiter: what it waits for holds
    them all up.
    """
    conditions = [exits == EXIT_FAILED, exits == EXIT_ENDED, silent, stopped, moves, waiting, behind > 0]
    choices = [FAILED, ENDED, UNKNOWN, STOPPED, MOVING, WAITING, BEHIND]
    return np.select(conditions, choices, STILL).astype(np.uint8)


def how_it_ended(ended: bool, *, signal: int | None, code: int | None, clean: bool | None) -> tuple[int, str]:
    """How a process ended, and the words for it. Arguments as of ``ending.of_process``."""
    how = ending.of_process(ended, signal=signal, code=code, clean=clean)
    if how is Ending.ALIVE:
        return EXIT_NONE, ""
    if how is Ending.CLEAN:
        return EXIT_ENDED, ""
    if signal:
        return EXIT_FAILED, f"ended by signal {signal}"
    if code:
        return EXIT_FAILED, f"exit code {code}"
    return EXIT_FAILED, "ended without a clean exit"
