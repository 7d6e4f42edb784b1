"""What the ranks of a job share, found once: digests and tables of signatures, call sites, groups and texts.

In: signatures, stacks, names and member lists of ``TraceColumns``. Out: what ``window`` puts into windows. It
is all cached by value or by identity, within bounds: thousands of ranks run one program.
"""

from __future__ import annotations

import functools
from typing import Final

import msgspec
import numpy as np

from clusterwatch.analysis.signature import ALL_PARTY, TOTALS, comparable, element_count, plain
from clusterwatch.analysis.stacks import user_frame
from clusterwatch.analysis.tables import SIGNATURE, CallTexts, Rows, digest
from collectors.formats import columns
from collectors.formats.columns import NULL, Signature, Sizes
from collectors.wire import limits


@functools.lru_cache(maxsize=16_384)
def _signature_row(signature: Signature) -> tuple[int, int, int, int, int, bool]:
    op = plain(signature.op)
    sent = received = NULL
    shapes: object = signature.input_sizes
    if op in TOTALS:
        sent, received = _elements(signature.input_sizes), _elements(signature.output_sizes)
        if not (signature.input_sizes and signature.output_sizes):
            sent = received = NULL
    if op.startswith("alltoall"):
        shapes = ()  # legal to differ from step to step
    return (
        digest(comparable(signature)),
        digest(comparable(signature, coalesced=True)),
        digest(signature.op, shapes),
        sent,
        received,
        op in ALL_PARTY,
    )


_ELEMENTS_MAX: Final = 1 << 48
"""More than any memory holds; sums over the members of a group still fit 64 bits."""


def _elements(shapes: Sizes) -> int:
    return min(element_count(shapes), _ELEMENTS_MAX)


class Signatures:
    """A dump's table of signatures as arrays, one place each."""

    def __init__(self, table: tuple[Signature, ...]) -> None:
        self.table = table
        self.rows: Rows = np.array(list(map(_signature_row, table)), SIGNATURE)
        self.is_p2p = np.array([signature.is_p2p for signature in table], np.bool_)
        self.closing = np.array([signature.op == "coalesced" for signature in table], np.bool_)
        self.all_party = np.ascontiguousarray(self.rows["all_party"])


@functools.lru_cache(maxsize=1_024)
def _signatures(table: tuple[Signature, ...]) -> Signatures:
    return Signatures(table)


_BY_IDENTITY: Final[dict[int, Signatures]] = {}
_TABLES_HELD_MAX: Final = 1_024
_TABLE_SHARED_MAX: Final = 512
"""Signatures of a table that is kept; a program has some dozens, a large table is nobody else's."""


def signatures_of(table: tuple[Signature, ...]) -> Signatures:
    """Cached: ranks of one pipeline stage hold equal tables, and from columns the same one."""
    if len(table) > _TABLE_SHARED_MAX:
        return Signatures(table)
    known = _BY_IDENTITY.get(id(table))
    if known is not None and known.table is table:
        return known
    made = _signatures(table)
    if made.table is table:
        if len(_BY_IDENTITY) >= _TABLES_HELD_MAX:
            _BY_IDENTITY.clear()
        _BY_IDENTITY[id(table)] = made  # holds the table, so its identity stays its own
    return made


@functools.lru_cache(maxsize=16_384)
def site_of_stack(frames: tuple[str, ...]) -> str:
    return user_frame(reversed(frames))


class Members:
    """Runs and digest of a member list, by identity: ranks of a job share one object, hashed once."""

    def __init__(self) -> None:
        self._held: dict[int, tuple[tuple[int, ...], bytes, int]] = {}
        self._room = _MEMBERS_HELD_MAX

    def of(self, ranks: tuple[int, ...]) -> tuple[bytes, int]:
        known = self._held.get(id(ranks))
        if known is not None and known[0] is ranks:
            return known[1], known[2]
        if len(ranks) > self._room:
            self._held.clear()
            self._room = _MEMBERS_HELD_MAX
        self._room -= len(ranks) + 1
        told = ranks if max(ranks, default=0) < limits.RANKS_PER_GROUP_MAX else ()  # no job has such a rank
        runs = columns.member_runs(told)
        number = digest(runs if _rising(told) else columns.member_runs(tuple(sorted(told))))
        self._held[id(ranks)] = (ranks, runs, number)
        return runs, number


_MEMBERS_HELD_MAX: Final = 4_000_000
MEMBERS: Final = Members()


def _rising(ranks: tuple[int, ...]) -> bool:
    numbers = np.fromiter(ranks, np.int64, len(ranks))
    return bool((numbers[1:] > numbers[:-1]).all())


@functools.lru_cache(maxsize=65_536)
def group_key(name: str, desc: str, members: int) -> int:
    return digest(name, desc, members)


text_digest: Final = functools.lru_cache(maxsize=65_536)(digest)


def call_texts(table: Signatures, used: bytes, sites: tuple[str, ...], stack: tuple[str, ...]) -> bytes:
    """``CallTexts``. ``used``: places in ``table``, as int64. Equal texts of a job's ranks are one object."""
    if len(table.table) > _TABLE_SHARED_MAX or len(sites) > _TABLE_SHARED_MAX:
        return _call_texts.__wrapped__(table, used, sites, stack)
    return _call_texts(table, used, sites, stack)


@functools.lru_cache(maxsize=1_024)
def _call_texts(table: Signatures, used: bytes, sites: tuple[str, ...], stack: tuple[str, ...]) -> bytes:
    signatures = tuple(table.table[index] for index in np.frombuffer(used, np.int64).tolist())
    return msgspec.msgpack.encode(CallTexts(signatures, sites, stack))
