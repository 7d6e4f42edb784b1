"""Changes of phase that a job's ranks told, in a stretch of time.

In: job, attempt and ns UTC bounds. Out: ``PhaseRows``, plain arrays; one query however many ranks there are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from clusterwatch.store import binary_reads

ROWS_MAX: Final = 400_000
"""Read at once, the oldest first: 24,576 ranks that begin and end eight phases."""
WORD_MAX_CHARS: Final = 16
"""As numpy keeps them; the wire's words are shorter, and a longer one is none of them."""

_OF_ATTEMPT: Final = """
SELECT world, rank, t_ns, left(phase, %(chars)s), left(before, %(chars)s), before_s FROM phase
WHERE job_id = %(job)s AND attempt = %(attempt)s AND t_ns >= %(from)s AND t_ns < %(until)s
ORDER BY t_ns LIMIT %(limit)s
"""


@dataclass(frozen=True, slots=True, eq=False)
class PhaseRows:
    """One change each, shape (K,), the oldest first.

    Attributes:
        world, phase, before: indices into ``worlds`` and ``words``.
        before_s: how long the phase before lasted.
        is_whole: False where there are more than ``ROWS_MAX``; the newest are missing then.
    """

    worlds: tuple[str, ...]
    words: tuple[str, ...]
    world: NDArray[np.int64]
    rank: NDArray[np.int64]
    t_ns: NDArray[np.int64]
    phase: NDArray[np.int64]
    before: NDArray[np.int64]
    before_s: NDArray[np.float64]
    is_whole: bool


def between(job_id: int, attempt: int, from_ns: int, until_ns: int) -> PhaseRows:
    """Changes told within [from, until). Cost: O(rows), about 3 us each."""
    asked = {
        "job": job_id, "attempt": attempt, "from": from_ns, "until": until_ns, "limit": ROWS_MAX + 1,
        "chars": WORD_MAX_CHARS,
    }  # fmt: skip
    rows = binary_reads.fetch(_OF_ATTEMPT, asked)
    is_whole = len(rows) <= ROWS_MAX
    world, rank, t_ns, phase, before, before_s = (
        [list(column) for column in zip(*rows[:ROWS_MAX], strict=True)] if rows else [[]] * 6
    )
    worlds, words = _names(world), _names(phase, before)
    return PhaseRows(
        worlds=tuple(worlds),
        words=tuple(words),
        world=_placed(world, worlds),
        rank=np.array(rank, np.int64),
        t_ns=np.array(t_ns, np.int64),
        phase=_placed(phase, words),
        before=_placed(before, words),
        before_s=np.array(before_s, np.float64),
        is_whole=is_whole,
    )


def _names(*columns: list[Any]) -> dict[str, int]:
    """Each name's place, in the order of the alphabet."""
    return {name: place for place, name in enumerate(sorted({name for column in columns for name in column}))}


def _placed(names: list[Any], places: dict[str, int]) -> NDArray[np.int64]:
    return np.array([places[name] for name in names], np.int64)
