"""A dump of one rank as typed columns: decoders return it, the wire carries it, the analysis eats it.

Standard-library arrays: the node side has no numpy, and ``numpy.frombuffer`` reads them without a copy. What
repeats from entry to entry (signature of a call, stack) is held once in a table and named by its index, so
2,000 entries take about 180 kB and a few table rows. Field meanings: PyTorch's FlightRecorder.hpp and
FlightRecorderDetail.hpp.
"""

from __future__ import annotations

import functools
import importlib
import sys
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeVar

import msgspec
import zstandard

from collectors.formats.trace import TraceError, TraceGroup
from collectors.wire import limits

NULL: Final = -1
"""In a column of numbers that exist from 0 up only (ids, sequences, times): the dump does not say. It never
leaves the columns: findings give None."""

UNKNOWN_RANK: Final = -1
"""Given to a decoder in place of a rank: lists of members are then kept whoever is in them."""

SCHEDULED: Final = 0
STARTED: Final = 1
COMPLETED: Final = 2
STATES: Final = ("scheduled", "started", "completed")

Sizes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Signature:
    """What a call passes; equal calls of equal arguments share one."""

    op: str
    """profiling name without its backend prefix, e.g. ``all_reduce``, ``send 0->1``, ``coalesced``"""
    is_p2p: bool = False
    input_sizes: Sizes = ()
    output_sizes: Sizes = ()
    input_dtypes: tuple[str, ...] = ()
    output_dtypes: tuple[str, ...] = ()


def _numbers() -> array[int]:
    return array("q")


def _indices() -> array[int]:
    return array("i")


def _flags() -> array[int]:
    return array("b")


@dataclass(frozen=True, slots=True)
class Entries:
    """Columns of equal length N, in record order. ``NULL`` where the dump does not say."""

    record_id: array[int] = field(default_factory=_numbers)
    group: array[int] = field(default_factory=_indices)
    """index into ``TraceColumns.groups``"""
    sequence: array[int] = field(default_factory=_numbers)
    """collective_seq_id"""
    p2p_sequence: array[int] = field(default_factory=_numbers)
    op_id: array[int] = field(default_factory=_numbers)
    signature: array[int] = field(default_factory=_indices)
    """index into ``TraceColumns.signatures``"""
    stack: array[int] = field(default_factory=_indices)
    """index into ``TraceColumns.stacks``"""
    state: array[int] = field(default_factory=_flags)
    """``SCHEDULED``, ``STARTED``, ``COMPLETED``"""
    retired: array[int] = field(default_factory=_flags)
    """0 or 1"""
    created_ns: array[int] = field(default_factory=_numbers)
    started_ns: array[int] = field(default_factory=_numbers)
    completed_ns: array[int] = field(default_factory=_numbers)
    duration_ns: array[int] = field(default_factory=_numbers)
    timeout_ms: array[int] = field(default_factory=_numbers)

    def __len__(self) -> int:
        return len(self.record_id)


COLUMNS: Final = tuple(Entries.__slots__)
TYPE_OF: Final = {name: getattr(Entries(), name).typecode for name in COLUMNS}


@dataclass(frozen=True, slots=True)
class TraceColumns:
    """One dump. ``rank`` is the global rank (from the file name or the collector, never from the dump)."""

    rank: int
    version: str
    backend: str
    """prefix most entries carry: ``nccl``, ``gloo``, ...; empty when there is no entry"""
    groups: tuple[TraceGroup, ...]
    signatures: tuple[Signature, ...]
    stacks: tuple[tuple[str, ...], ...]
    """innermost frame first as the recorder gives them, each ``function (file:line)``"""
    entries: Entries
    source: str = ""
    """file name or capture it came from, for people"""
    taken_ns: int | None = None
    """when it was taken, when the collector knows it"""

    @property
    def truncated(self) -> bool:
        """The ring overflowed: the first record held is not the first one made."""
        return bool(self.entries.record_id) and self.entries.record_id[0] > 0

    @property
    def newest_ns(self) -> int | None:
        newest = max(self.entries.created_ns, default=NULL)
        return None if newest == NULL else newest


class _PackedGroup(msgspec.Struct, frozen=True, array_like=True):
    """``members``: little-endian int32 triples (first, stride, count). A world of 24,576 takes 12 bytes."""

    name: str
    desc: str
    members: bytes
    recorder_id: int | None
    last_enqueued: int | None
    last_started: int | None
    last_completed: int | None


class _Packed(msgspec.Struct, frozen=True, array_like=True):
    """On the wire: little-endian column bytes by the order of ``COLUMNS``."""

    rank: int
    version: str
    backend: str
    groups: tuple[_PackedGroup, ...]
    signatures: msgspec.Raw
    stacks: msgspec.Raw
    columns: tuple[bytes, ...]
    source: str
    taken_ns: int | None


def pack(trace: TraceColumns) -> bytes:
    """Columns as zstd-compressed MessagePack; ``unpack`` gives an equal ``TraceColumns``."""
    columns = tuple(_little(getattr(trace.entries, name)) for name in COLUMNS)
    packed = _Packed(
        trace.rank,
        trace.version,
        trace.backend,
        tuple(map(_packed_group, trace.groups)),
        msgspec.Raw(msgspec.msgpack.encode(trace.signatures)),
        msgspec.Raw(msgspec.msgpack.encode(trace.stacks)),
        columns,
        trace.source,
        trace.taken_ns,
    )
    return zstandard.ZstdCompressor(level=3, write_checksum=True).compress(msgspec.msgpack.encode(packed))


def unpack(data: bytes) -> TraceColumns:
    """Reads what ``pack`` wrote. Bounded: raises ``TraceError`` on anything else or anything too large."""
    try:
        size = zstandard.frame_content_size(data)
        if not 0 <= size <= limits.PART_MAX_DECOMPRESSED_BYTES:
            raise TraceError(f"a trace of {size} bytes is over the limit or says no size")
        raw = zstandard.ZstdDecompressor().decompress(
            data, max_output_size=limits.PART_MAX_DECOMPRESSED_BYTES
        )
        packed = msgspec.msgpack.decode(raw, type=_Packed)
        signatures, stacks = _signatures_in(bytes(packed.signatures)), _stacks_in(bytes(packed.stacks))
    except (zstandard.ZstdError, msgspec.MsgspecError, RecursionError) as error:
        raise TraceError(f"not a packed trace: {error}") from error
    if len(packed.columns) != len(COLUMNS):
        raise TraceError(f"{len(packed.columns)} columns instead of {len(COLUMNS)}")
    entries = Entries(
        **{name: _column(name, part) for name, part in zip(COLUMNS, packed.columns, strict=True)}
    )
    trace = TraceColumns(
        packed.rank,
        packed.version,
        packed.backend,
        tuple(map(_group, packed.groups)),
        signatures,
        stacks,
        entries,
        packed.source,
        packed.taken_ns,
    )
    check(trace)
    return trace


_TABLE_KEPT_MAX_BYTES: Final = 32 * 1024
_Table = TypeVar("_Table")


def _kept(decode: Callable[[bytes], _Table]) -> Callable[[bytes], _Table]:
    """Equal tables of a job's ranks are decoded once and are one object, unless they are large."""
    cached = functools.lru_cache(maxsize=256)(decode)
    return lambda data: (decode if len(data) > _TABLE_KEPT_MAX_BYTES else cached)(data)


@_kept
def _signatures_in(data: bytes) -> tuple[Signature, ...]:
    return msgspec.msgpack.decode(data, type=tuple[Signature, ...])


@_kept
def _stacks_in(data: bytes) -> tuple[tuple[str, ...], ...]:
    return msgspec.msgpack.decode(data, type=tuple[tuple[str, ...], ...])


def _packed_group(group: TraceGroup) -> _PackedGroup:
    return _PackedGroup(
        group.name,
        group.desc,
        member_runs(group.ranks),
        group.recorder_id,
        group.last_enqueued,
        group.last_started,
        group.last_completed,
    )


def _group(group: _PackedGroup) -> TraceGroup:
    return TraceGroup(
        group.name,
        group.desc,
        members_of(group.members),
        group.recorder_id,
        group.last_enqueued,
        group.last_started,
        group.last_completed,
    )


@functools.lru_cache(maxsize=4096)
def member_runs(ranks: tuple[int, ...]) -> bytes:
    """``ranks`` in their order as runs of one stride. Cached: every rank of a job holds the same lists."""
    runs = array("i")
    at = 0
    while at < len(ranks):
        stride = ranks[at + 1] - ranks[at] if at + 1 < len(ranks) else 1
        end = at + 1
        while end < len(ranks) and ranks[end] - ranks[end - 1] == stride:
            end += 1
        runs.extend((ranks[at], stride, end - at))
        at = end
    return _little(runs)


@functools.lru_cache(maxsize=65_536)
def members_of(packed: bytes) -> tuple[int, ...]:
    """The members. Cached, so equal lists of a job's ranks are one object."""
    runs = array("i")
    if len(packed) % (3 * runs.itemsize):
        raise TraceError("a list of members is cut off")
    runs.frombytes(packed)
    if sys.byteorder == "big":
        runs.byteswap()
    if sum(runs[2::3]) > limits.RANKS_PER_GROUP_MAX or min(runs[2::3], default=1) < 1:
        raise TraceError(f"more than {limits.RANKS_PER_GROUP_MAX} members in a group")
    members: list[int] = []
    for first, stride, count in zip(runs[::3], runs[1::3], runs[2::3], strict=True):
        members += (first + stride * step for step in range(count))
    if len(set(members)) != len(members) or min(members, default=0) < 0:
        raise TraceError("a list of members holds a rank twice or one below 0")
    return tuple(members)


def _little(column: array[int]) -> bytes:
    if sys.byteorder == "little":
        return column.tobytes()
    turned = array(column.typecode, column)
    turned.byteswap()
    return turned.tobytes()


def _column(name: str, part: bytes) -> array[int]:
    column = array(TYPE_OF[name])
    if len(part) % column.itemsize:
        raise TraceError(f"column {name} is cut off")
    column.frombytes(part)
    if sys.byteorder == "big":
        column.byteswap()
    return column


def check(trace: TraceColumns) -> None:
    """Raises ``TraceError`` unless the columns have one length and point into their tables.

    Cost: a few passes in C; no Python step per entry.
    """
    entries, count = trace.entries, len(trace.entries)
    if any(len(getattr(entries, name)) != count for name in COLUMNS):
        raise TraceError("columns of unequal length")
    if count > limits.ENTRIES_PER_TRACE_MAX:
        raise TraceError(f"{count} entries, the limit is {limits.ENTRIES_PER_TRACE_MAX}")
    if not count:
        return
    ends = {"group": len(trace.groups), "signature": len(trace.signatures), "stack": len(trace.stacks)}
    for name in _INDICES:
        if not within(getattr(entries, name), NULL if name == "stack" else 0, ends[name]):
            raise TraceError(f"column {name} points outside its table")
    for name, end in (("state", len(STATES)), ("retired", 2)):
        if not within(getattr(entries, name), 0, end):
            raise TraceError(f"column {name} holds a number that stands for nothing")
    for name in _NUMBERS:
        if not within(getattr(entries, name), NULL, 2**63):
            raise TraceError(f"column {name} holds a number below {NULL}")


_INDICES: Final = tuple(name for name in COLUMNS if TYPE_OF[name] == "i")
_NUMBERS: Final = tuple(name for name in COLUMNS if TYPE_OF[name] == "q")


def _within() -> Callable[[array[int], int, int], bool]:
    """``within_plain``, or the same by the compiled reader's module where that is built."""
    try:
        bounds = importlib.import_module("collectors.formats._pickle_columns").bounds
    except (ImportError, AttributeError):  # not built, or built from an earlier version
        return within_plain

    def compiled(column: array[int], low: int, end: int) -> bool:
        least, most = bounds(column)
        return bool(low <= least and most < end)

    return compiled


def within_plain(column: array[int], low: int, end: int) -> bool:
    """Whether every number of a column is from ``low`` (``NULL`` or 0) up and below ``end``; it holds some.
    In a column of 64 bits all are below.
    """
    if low == NULL and _all_null(column):
        return True
    if column.typecode == "q":
        return not _below_null(column)
    raw = _little(column)
    if column.typecode == "b":
        return not raw.translate(None, _BYTES[:end])
    if end <= len(_BYTES):  # such an index is one byte and three of zeros: 4 times faster than numbers
        above = raw[1::4] + raw[2::4] + raw[3::4]
        if not above.strip(b"\0") and not raw[::4].translate(None, _BYTES[:end]):
            return True
    different = set(column)
    return low <= min(different) and max(different) < end


_BYTES: Final = bytes(range(256))
_NOT_NEGATIVE: Final = _BYTES[:128]


def _all_null(column: array[int]) -> bool:
    raw = column.tobytes()
    return raw == b"\xff" * len(raw)


def _below_null(column: array[int]) -> bool:
    """Whether a 64-bit number is below ``NULL``; by the bytes that hold the signs, so without a Python number
    for each."""
    signs = column.tobytes()[7 if sys.byteorder == "little" else 0 :: 8].translate(None, _NOT_NEGATIVE)
    if not signs or _all_null(column):
        return False
    return bool(signs.strip(b"\xff")) or column.count(NULL) != len(signs)


within: Final = _within()
