"""Communication calls of a job as columns: one row per rank and call.

In: what a reader or a ring holds, in any order, with late, repeated and absurd rows. Out: ``Calls``, sorted
by rank, step and time, each call once, without rows that contradict themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

SCHEDULED, STARTED, COMPLETED = 0, 1, 2
NEVER = -1
"""of a time: it did not happen, or nobody knows"""


@dataclass(frozen=True, slots=True)
class Calls:
    """All arrays have one length. Times are ns of the clock of the rank's host, ``NEVER`` where unknown."""

    rank: Ints
    group: Ints
    """index in ``groups``"""
    op: Ints
    """index in ``ops``"""
    sequence: Ints
    step: Ints
    microbatch: Ints
    peer: Ints
    size_bytes: Ints
    enqueue_ns: Ints
    start_ns: Ints
    end_ns: Ints
    state: Ints
    groups: tuple[str, ...]
    ops: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.rank)

    def rows(self, which: Bools | Ints) -> Calls:
        """The rows chosen, in that order."""
        if which.dtype == np.bool_ and which.all():
            return self
        columns = {name: getattr(self, name)[which] for name in COLUMNS}
        return Calls(**columns, groups=self.groups, ops=self.ops)

    @property
    def is_p2p(self) -> Bools:
        return self._of_op(lambda op: op.startswith(("send", "recv")))

    @property
    def is_send(self) -> Bools:
        return self._of_op(lambda op: op.startswith("send"))

    @property
    def is_barrier(self) -> Bools:
        return self._of_op(lambda op: op.startswith("barrier"))

    def _of_op(self, test: Callable[[str], bool]) -> Bools:
        flags = np.fromiter((test(op) for op in self.ops), np.bool_, len(self.ops))
        found: Bools = flags[self.op] if len(self.ops) else np.zeros(0, np.bool_)
        return found


COLUMNS = tuple(field.name for field in fields(Calls) if field.name not in ("groups", "ops"))


def tidied(calls: Calls) -> Calls:
    """Each call once, by rank, step and time; rows whose times run backwards are gone. Cost: O(n log n)."""
    known_end = calls.end_ns != NEVER
    known_start = calls.start_ns != NEVER
    backwards = (known_end & (calls.end_ns < calls.start_ns)) | (
        known_start & (calls.start_ns < calls.enqueue_ns)
    )
    kept = calls.rows(~backwards & (calls.step >= 0) & (calls.rank >= 0) & (calls.sequence >= 0))
    kept = kept.rows(_in_order(kept))
    if not len(kept):
        return kept
    same = np.ones(len(kept) - 1, np.bool_)
    for column in (kept.rank, kept.step, kept.group, kept.op, kept.sequence):
        same &= column[1:] == column[:-1]
    first = np.concatenate(([True], ~same))
    return kept.rows(first)


def _in_order(calls: Calls) -> Ints:
    """Rows by rank, step, time; what has the same time by group, operation, number and newest state."""
    order = np.lexsort((calls.enqueue_ns, calls.step, calls.rank))
    same = np.ones(max(0, len(order) - 1), np.bool_)
    for column in (calls.rank, calls.step, calls.enqueue_ns):
        same &= column[order[1:]] == column[order[:-1]]
    if not same.any():
        return order
    tied = np.concatenate((same, [False])) | np.concatenate(([False], same))
    rows = order[tied]
    keys = (-calls.state, calls.sequence, calls.op, calls.group, calls.enqueue_ns, calls.step, calls.rank)
    order[tied] = rows[np.lexsort([key[rows] for key in keys])]
    return order


def coded(values: Ints) -> tuple[Ints, Ints]:
    """(the distinct values, rising; the place of each value in them), for few distinct values."""
    distinct = np.unique(values)
    return distinct, np.searchsorted(distinct, values).astype(np.int64)
