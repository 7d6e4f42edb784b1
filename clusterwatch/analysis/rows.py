"""All windows of a job as columns: one row per (rank, group), and their kept calls.

In: windows, one per rank, by rising rank. Out: ``Rows``. One concatenation per table, so the cost follows the
bytes of the windows and not the number of Python objects.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from clusterwatch.analysis.tables import CALL, GROUP, SIGNATURE, Marks, Numbers, Rows, Window
from collectors.formats.columns import NULL


@dataclass(slots=True, eq=False)
class Calls:
    """Kept calls of one group: equal lengths, by rank, then by sequence."""

    rank: Numbers
    sequence: Numbers
    digest: Numbers
    """of what the members must share"""
    created_ns: Numbers
    finished: Marks
    balance: Numbers
    """elements sent less those received, of an all-to-all; else 0"""

    def at(self, sequence: int) -> Marks:
        """The members' calls of one number."""
        marks: Marks = self.sequence == sequence
        return marks


@dataclass(eq=False)
class JobRows:
    """``R`` rows, by rank and then as each dump lists its groups."""

    windows: tuple[Window, ...]
    owner: Numbers
    """[R] index into ``windows``"""
    index: Numbers
    """[R] of the group in its window"""
    groups: Rows
    """[R] ``tables.GROUP``"""
    number: Numbers
    """[R] of the group in ``World.groups``; ``NULL`` where the row stands for none"""
    by_group: Numbers = field(default_factory=lambda: np.zeros(0, np.int64))
    """[R] rows by ``number``, then by rank"""
    _calls_by_row: dict[int, Calls] = field(default_factory=dict)

    @classmethod
    def of(cls, windows: Sequence[Window]) -> JobRows:
        counts = _lengths([window.group_bytes for window in windows], GROUP)
        owner = np.repeat(np.arange(len(windows)), counts)
        first = np.cumsum(counts) - counts
        return cls(
            windows=tuple(windows),
            owner=owner,
            index=np.arange(len(owner)) - first[owner],
            groups=joined([window.group_bytes for window in windows], GROUP),
            number=np.full(len(owner), NULL),
        )

    @functools.cached_property
    def rank(self) -> Numbers:
        """[R]"""
        ranks = np.array([window.rank for window in self.windows], np.int64)
        return ranks[self.owner]

    @functools.cached_property
    def high(self) -> Numbers:
        """[R] last call issued"""
        return np.ascontiguousarray(self.groups["high"])

    @functools.cached_property
    def first_open(self) -> Numbers:
        """[R] oldest call issued and not finished"""
        return np.ascontiguousarray(self.groups["first_open"])

    @functools.cached_property
    def shared_end(self) -> Numbers:
        """[R] newest call that ended with all members; ``NULL`` without one"""
        return np.ascontiguousarray(self.groups["shared_end"])

    @functools.cached_property
    def gloo(self) -> Marks:
        """[R]"""
        return np.array([window.gloo for window in self.windows], np.bool_)[self.owner]

    @functools.cached_property
    def timed(self) -> Marks:
        """[R] the recorder has seen a start"""
        return np.array([window.timed for window in self.windows], np.bool_)[self.owner]

    @functools.cached_property
    def oldest_open_at(self) -> Numbers:
        """[R] place of the oldest open call of the rank, of any kind; beyond all where there is none"""
        none = np.iinfo(np.int64).max
        places = [none if w.oldest_open_at is None else w.oldest_open_at for w in self.windows]
        return np.array(places, np.int64)[self.owner]

    def bounds(self, rank_index: int) -> tuple[int, int]:
        """Rows of one window."""
        first, end = np.searchsorted(self.owner, (rank_index, rank_index + 1)).tolist()
        return first, end

    @functools.cached_property
    def _call_starts(self) -> Numbers:
        """[W] where each window's calls begin in ``calls``."""
        counts = _lengths([window.call_bytes for window in self.windows], CALL)
        starts: Numbers = np.cumsum(counts) - counts
        return starts

    @functools.cached_property
    def calls(self) -> Rows:
        """[K] kept calls of all windows."""
        return joined([window.call_bytes for window in self.windows], CALL)

    @functools.cached_property
    def call_row(self) -> Numbers:
        """[K] the row each call belongs to."""
        counts = _lengths([window.group_bytes for window in self.windows], GROUP)
        calls = _lengths([window.call_bytes for window in self.windows], CALL)
        owner = np.repeat(np.arange(len(self.windows)), calls)
        rows: Numbers = (np.cumsum(counts) - counts)[owner] + self.calls["group"]
        return rows

    @functools.cached_property
    def _passed(self) -> tuple[Numbers, Numbers]:
        """[K] digest of what each call passed, and its all-to-all balance."""
        parts = [window.signature_bytes for window in self.windows]
        counts, table = _lengths(parts, SIGNATURE), joined(parts, SIGNATURE)
        starts = (np.cumsum(counts) - counts)[self.owner[self.call_row]]
        number = starts + self.calls["signature"]
        several = self.calls["parts"] > 1
        digest = np.where(several, table["coalesced"][number], table["call"][number]).view(np.int64)
        return digest, (table["sent"] - table["received"])[number]

    @property
    def call_digest(self) -> Numbers:
        return self._passed[0]

    @property
    def call_balance(self) -> Numbers:
        return self._passed[1]

    def calls_of(self, rows: Numbers) -> Calls:
        """Kept calls of the rows of one group. Cost: O(those calls), once per group."""
        key = int(rows[0])
        known = self._calls_by_row.get(key)
        if known is None:
            known = self._calls_by_row[key] = self.gather(rows)
        return known

    def gather(self, rows: Numbers) -> Calls:
        """Kept calls of any rows."""
        starts = self._call_starts[self.owner[rows]]
        first, end = starts + self.groups["first_call"][rows], starts + self.groups["end_call"][rows]
        counts = end - first
        place = np.repeat(first - (np.cumsum(counts) - counts), counts) + np.arange(counts.sum())
        kept = self.calls[place]
        return Calls(
            rank=np.repeat(self.rank[rows], counts),
            sequence=kept["sequence"],
            digest=self.call_digest[place],
            created_ns=kept["created_ns"],
            finished=kept["finished"],
            balance=self.call_balance[place],
        )


def joined(parts: list[bytes], dtype: np.dtype[np.void]) -> Rows:
    """Tables of all windows, one after the other."""
    return np.frombuffer(b"".join(parts), dtype)


def _lengths(parts: list[bytes], dtype: np.dtype[np.void]) -> Numbers:
    sizes: Numbers = np.array([len(part) for part in parts], np.int64) // dtype.itemsize
    return sizes


def split(values: Numbers, owner: Numbers, count: int) -> list[tuple[int, ...]]:
    """``values`` by rising ``owner`` as one tuple per owner, 0 to ``count``."""
    ends = np.searchsorted(owner, np.arange(1, count + 1)).tolist()
    plain = values.tolist()
    return [tuple(plain[first:end]) for first, end in zip([0, *ends], ends, strict=False)]
