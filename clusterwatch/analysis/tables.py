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

PAIR: Final = np.dtype([("group", "<i4"), ("signature", "<i4")])

GROUP: Final = np.dtype(
    [
        ("key", "<u8"),  # digest of name, description and members
        ("low", "<i8"),  # collective_seq_id
        ("high", "<i8"),
        ("first_open", "<i8"),
        ("first_open_ns", "<i8"),  # when it was made
        ("first_open_at", "<i4"),  # its place in the ring
        ("first_open_state", "i1"),
        ("shared_end", "<i8"),  # newest call that surely ended with all members
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


COLLECTIVE_LOG: Final = "collective log"
"""Version of a trace made of one: each send and receive tells its own state, as no recorder does."""


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """One dump, reduced. Tables are bytes: small, quick to pickle, and joined over ranks in one copy."""

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
    tail_key: int
    """digest of the tail as roles, signatures and sites: equal programs at one point have one"""
    group_bytes: bytes
    call_bytes: bytes
    p2p_bytes: bytes
    pair_bytes: bytes
    tail_bytes: bytes
    signature_bytes: bytes
    group_texts: bytes
    """MessagePack: the table of ``told_groups``"""
    call_texts: bytes
    """MessagePack: ``CallTexts``"""
    unnumbered: int = 0
    """collective calls that the dump gives no usable number"""
    passed_over: int = 0
    """times, and numbers of sends and receives, that no recorder can have written"""

    @property
    def only_open(self) -> bool:
        """It lacks older calls not because its ring overflowed but since finished ones were left out
        (onlyActive): no ring holds thousands of calls of which none has ended.
        """
        return self.truncated and not self.any_finished

    @property
    def groups(self) -> Rows:
        """``GROUP``, as the dump lists them."""
        return np.frombuffer(self.group_bytes, GROUP)

    @property
    def calls(self) -> Rows:
        """``CALL``, by group and rising sequence: of each call the last entry, which tells the state."""
        return np.frombuffer(self.call_bytes, CALL)

    @property
    def p2p(self) -> Rows:
        """``CALL``: sends and receives not known to be finished, in record order."""
        return np.frombuffer(self.p2p_bytes, CALL)

    @property
    def p2p_pairs(self) -> Rows:
        """``PAIR``: different sends and receives that are over."""
        return np.frombuffer(self.pair_bytes, PAIR)

    @property
    def tail(self) -> Rows:
        """``TAIL``: the newest collective calls of all groups, in record order."""
        return np.frombuffer(self.tail_bytes, TAIL)

    @property
    def signatures(self) -> Rows:
        """``SIGNATURE``: digests of ``call_signatures``."""
        return np.frombuffer(self.signature_bytes, SIGNATURE)

    @property
    def gloo(self) -> bool:
        return self.backend == "gloo"

    @property
    def told_groups(self) -> tuple[ToldGroup, ...]:
        return _groups_in(self.group_texts)

    @property
    def call_signatures(self) -> tuple[Signature, ...]:
        return _calls_in(self.call_texts).signatures

    @property
    def sites(self) -> tuple[str, ...]:
        """Lines of the user's code, ``function (file:line)``."""
        return _calls_in(self.call_texts).sites

    @property
    def stack(self) -> tuple[str, ...]:
        """Stack at the newest call, innermost first; empty without stacks."""
        return _calls_in(self.call_texts).stack


class ToldGroup(msgspec.Struct, frozen=True, array_like=True):
    """A group by its dump. ``runs``: members as ``columns.member_runs`` writes them."""

    name: str
    desc: str
    runs: bytes

    @property
    def ranks(self) -> tuple[int, ...]:
        """In the order of group ranks; equal lists are one object. Empty when the dump does not say."""
        return columns.members_of(self.runs)


class CallTexts(msgspec.Struct, frozen=True, array_like=True):
    signatures: tuple[Signature, ...]
    sites: tuple[str, ...]
    stack: tuple[str, ...]


@functools.lru_cache(maxsize=65_536)
def _groups_in(table: bytes) -> tuple[ToldGroup, ...]:
    return msgspec.msgpack.decode(table, type=tuple[ToldGroup, ...])


@functools.lru_cache(maxsize=65_536)
def _calls_in(table: bytes) -> CallTexts:
    return msgspec.msgpack.decode(table, type=CallTexts)


def digest(*parts: object) -> int:
    """64 bits that are equal in every process, unlike ``hash``."""
    return int.from_bytes(blake2b(repr(parts).encode(), digest_size=8).digest(), "little")
