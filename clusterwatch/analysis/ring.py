"""Columns of one ring as far as they can be believed, for ``window`` to reduce.

In: ``TraceColumns``. Out: ``Ring``: the same columns as arrays, without the numbers that no recorder can have
written (``plausible``) and with those put in that the calls around them tell (``unnumbered``).
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from clusterwatch.analysis import plausible, unnumbered
from clusterwatch.analysis.shared_tables import signatures_of
from clusterwatch.analysis.tables import Marks, Numbers
from collectors.formats.columns import COMPLETED, NULL, STARTED, TraceColumns


class Ring:
    """Arrays of N entries in record order, but where it is said otherwise."""

    def __init__(self, trace: TraceColumns) -> None:
        self.trace = trace
        entries = trace.entries
        self.truncated = plausible.overflowed(entries.record_id)
        """it has dropped its first records"""
        told = column(entries.sequence, np.int64), column(entries.p2p_sequence, np.int64)
        self.group = plausible.one_group_each(column(entries.group, np.int32), trace.groups, *told)
        self.signature = column(entries.signature, np.int32)
        self.state = column(entries.state, np.int8)
        self.retired = column(entries.retired, np.int8) == 1
        created = column(entries.created_ns, np.int64)
        self.created = plausible.times(created)
        # On gloo ``state`` stays "scheduled" for ever.
        self.finished = self.retired if trace.backend == "gloo" else self._ended()
        self.table = signatures_of(trace.signatures)
        self.is_p2p = self.table.is_p2p[self.signature]
        self.sequence, self.unnumbered = self._numbered(told[0])
        self.p2p = self.is_p2p.nonzero()[0]
        """rows of sends, receives and closing entries"""
        self.p2p_sequence = self._batched(told[1]) if len(self.p2p) else told[1]
        self.passed_over = plausible.difference(created, self.created)
        self.passed_over += plausible.difference(told[1], self.p2p_sequence)

    @property
    def timed(self) -> bool:
        """Whether a start was seen, at a time that can be."""
        if (self.state == STARTED).any():
            return True
        started = column(self.trace.entries.started_ns, np.int64)
        seen = (started > 0).nonzero()[0][:_STARTS_MAX]
        return bool(plausible.near(started[seen], self.created[seen]).any())

    def _ended(self) -> Marks:
        """Calls that are over; an end at a time of another age is none."""
        ended: Marks = self.state == COMPLETED
        completed = column(self.trace.entries.completed_ns, np.int64)
        told = (completed != NULL) & ~ended
        return ended | (told & plausible.near(completed, self.created)) if told.any() else ended

    def _numbered(self, told: Numbers) -> tuple[Numbers, int]:
        """Numbers of the calls as far as they can be known, and of how many the dump tells none that fits."""
        collective = ~self.is_p2p
        self._sort(told, collective)
        odd = plausible.numbers(*self.ordered[1:])
        lacking = int(collective.sum()) - len(self.collective) + len(odd)
        if lacking:
            told = told.copy()
            told[self.ordered[0][odd]] = NULL
            told = unnumbered.filled(told, self.group, collective, self.truncated)
            self._sort(told, collective)
        return told, lacking

    def _sort(self, sequence: Numbers, collective: Marks) -> None:
        """Fills ``collective``, rows of numbered calls, and ``ordered``: the same by group and then in record
        order, their numbers and their groups."""
        self.collective = ((sequence != NULL) & collective).nonzero()[0]
        rows = self._by_group(self.collective)
        self.ordered: tuple[Numbers, Numbers, NDArray[Any]] = rows, sequence[rows], self.group[rows]

    def _batched(self, told: Numbers) -> Numbers:
        rows = self._by_group(self.p2p)
        values, owner = told[rows], self.group[rows]
        if not plausible.torn(values, owner):
            return told
        mended = told.copy()
        mended[rows] = plausible.batches(values, owner, self.table.closing[self.signature[rows]])
        return mended

    def _by_group(self, rows: Numbers) -> Numbers:
        """Entries in record order, stably sorted by group: by counting, in one pass."""
        narrow = np.int16 if len(self.trace.groups) < 2**15 else np.int32
        group = self.group[rows].astype(narrow)
        if len(group) and group[0] == group[-1] and (group == group[0]).all():
            return rows
        ordered: Numbers = rows[np.argsort(group, kind="stable")]
        return ordered


_STARTS_MAX: Final = 64
"""Starts that are looked at; one number may be odd, not all of them."""


def column(values: Any, dtype: Any) -> NDArray[Any]:
    """A column of the dump, without a copy."""
    return np.frombuffer(values, dtype) if len(values) else np.zeros(0, dtype)
