"""What stays of one rank's ring: the tables of a ``Window``.

Arrays are structured; texts (signatures, call sites, group names) are packed once per window and decoded only
where something stands out. Digests are equal in every process, so windows compare without being decoded.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from collectors.formats import columns
from collectors.formats.columns import Signature

CALL: Final = np.dtype(
    [
        ("sequence", "<i8"),  # collective_seq_id; of a send or receive the p2p number
        ("created_ns", "<i8"),
        ("timeout_ms", "<i8"),
        ("at", "<i4"),  # place in the ring: later is greater
        ("group", "<i4"),
        ("signature", "<i4"),
        ("site", "<i4"),
        ("parts", "<i4"),  # entries of the call; more than one when coalesced
        ("state", "i1"),
        ("retired", "?"),
        ("finished", "?"),
    ]
)
"""One kept call; ``signature`` and ``site`` are indices into the window's tables."""

TAIL: Final = np.dtype([("sequence", "<i8"), ("group", "<i4"), ("signature", "<i4"), ("site", "<i4")])

GROUP: Final = np.dtype(
    [
        ("key", "<u8"),  # digest of name, description and members
        ("low", "<i8"),  # collective_seq_id
        ("high", "<i8"),
        ("first_open", "<i8"),
        ("first_open_ns", "<i8"),  # when it was made
        ("first_open_at", "<i4"),  # its place in the ring
        ("first_open_state", "i1"),
        ("shared_end", "<i8"),  # newest finished call that nobody can finish without all members
        ("last_enqueued", "<i8"),  # pg_status as the dump has it; its meaning differs per backend
        ("last_started", "<i8"),
        ("last_completed", "<i8"),
        ("call_count", "<i4"),
        ("open_count", "<i4"),
        ("timed_out_count", "<i4"),
        ("p2p_count", "<i4"),
        ("p2p_open_count", "<i4"),
        ("first_call", "<i4"),  # rows of ``Window.calls``
        ("end_call", "<i4"),
        ("told", "?"),  # the dump names the members
    ]
)
"""One group of one rank; ``NULL`` where there is no such call or the dump does not say."""

SIGNATURE: Final = np.dtype(
    [
        ("call", "<u8"),  # digest of what the members must share
        ("coalesced", "<u8"),  # the same for a call of several entries
        ("token", "<u8"),  # digest of what a rank repeats from step to step
        ("sent", "<i8"),  # elements in all, of an all-to-all with known sizes
        ("received", "<i8"),
        ("all_party", "?"),
    ]
)

Rows = NDArray[np.void]
Numbers = NDArray[np.int64]
Marks = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """One dump, reduced. Arrays are structured: ``groups[G]``, ``calls[K]``, ``p2p[P]``, ``tail[T]``."""

    rank: int
    source: str
    version: str
    backend: str
    taken_ns: int | None
    newest_ns: int | None
    oldest_ns: int | None
    longest_gap_ns: int
    """longest pause between two calls in a row"""
    entry_count: int
    truncated: bool
    timed: bool
    """a start was seen: the recorder's timing is on"""
    any_finished: bool
    """False also for an only-active dump, which drops finished calls"""
    oldest_open_at: int | None
    """place of the oldest open call of any group and kind"""
    last: tuple[int, int, int | None, int] | None
    """newest entry: group, signature, sequence, site (``NULL`` without one)"""
    groups: Rows
    """``GROUP``, as the dump lists them"""
    calls: Rows
    """``CALL``, by group and rising sequence; the entry that tells the state, the last one, of each call"""
    p2p: Rows
    """``CALL``: sends and receives not known to be finished, in record order"""
    p2p_pairs: Rows
    """``CALL`` columns group and signature only: sends and receives that are not open"""
    tail: Rows
    """``TAIL``, in record order"""
    tail_key: int
    """digest of the tail as roles, signatures and sites: equal programs at one point have one"""
    signatures: Rows
    """``SIGNATURE``"""
    group_table: bytes
    call_table: bytes

    @property
    def gloo(self) -> bool:
        return self.backend == "gloo"

    @property
    def told_groups(self) -> tuple[ToldGroup, ...]:
        return _groups_in(self.group_table)

    @property
    def call_signatures(self) -> tuple[Signature, ...]:
        return _calls_in(self.call_table).signatures

    @property
    def sites(self) -> tuple[str, ...]:
        """Lines of the user's code, ``function (file:line)``."""
        return _calls_in(self.call_table).sites

    @property
    def stack(self) -> tuple[str, ...]:
        """Stack at the newest call, innermost first; empty without stacks."""
        return _calls_in(self.call_table).stack


class ToldGroup(msgspec.Struct, frozen=True, array_like=True):
    """A group by its dump. ``runs``: members as ``columns.member_runs`` writes them."""

    name: str
    desc: str
    runs: bytes

    @property
    def ranks(self) -> tuple[int, ...]:
        """In the order of group ranks; equal lists are one object. Empty when the dump does not say."""
        return columns.members_of(self.runs)


class CallTable(msgspec.Struct, frozen=True, array_like=True):
    signatures: tuple[Signature, ...]
    sites: tuple[str, ...]
    stack: tuple[str, ...]


@functools.lru_cache(maxsize=65_536)
def _groups_in(table: bytes) -> tuple[ToldGroup, ...]:
    return msgspec.msgpack.decode(table, type=tuple[ToldGroup, ...])


@functools.lru_cache(maxsize=65_536)
def _calls_in(table: bytes) -> CallTable:
    return msgspec.msgpack.decode(table, type=CallTable)


def digest(*parts: object) -> int:
    """64 bits that are equal in every process, unlike ``hash``."""
    return int.from_bytes(blake2b(repr(parts).encode(), digest_size=8).digest(), "little")
