"""A flight-recorder dump of one rank as columns, and its compact form on the wire.

``RankTrace`` is what every decoder of a trace returns and what the analysis eats. Plain tuples and lists:
the node side has no numpy. Field meanings: PyTorch's FlightRecorder.hpp and FlightRecorderDetail.hpp.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
import zstandard

from collectors.wire import limits


class TraceError(ValueError):
    """Bytes that hold no usable trace; the text says what is wrong with them."""


@dataclass(frozen=True, slots=True)
class TraceGroup:
    """A process group as one dump tells it: ``ranks`` is empty when the dump does not say (gloo)."""

    name: str
    desc: str
    ranks: tuple[int, ...]
    recorder_id: int | None = None
    """pg_id in that process; joins entries and status of one dump, never two dumps"""
    last_enqueued: int | None = None
    last_started: int | None = None
    """None where the recorder says -1: timing was off"""
    last_completed: int | None = None


@dataclass(frozen=True, slots=True)
class TraceEntries:
    """Columns of equal length N, in record order. None where the dump does not say."""

    record_id: list[int] = field(default_factory=list)
    group: list[int] = field(default_factory=list)
    """index into ``RankTrace.groups``"""
    sequence: list[int | None] = field(default_factory=list)
    """collective_seq_id"""
    p2p_sequence: list[int | None] = field(default_factory=list)
    op_id: list[int | None] = field(default_factory=list)
    op: list[str] = field(default_factory=list)
    """profiling name without its backend prefix, e.g. ``all_reduce``, ``send 0->1``, ``coalesced``"""
    is_p2p: list[bool] = field(default_factory=list)
    state: list[str] = field(default_factory=list)
    """``scheduled``, ``started``, ``completed``"""
    retired: list[bool] = field(default_factory=list)
    created_ns: list[int | None] = field(default_factory=list)
    started_ns: list[int | None] = field(default_factory=list)
    completed_ns: list[int | None] = field(default_factory=list)
    duration_ms: list[float | None] = field(default_factory=list)
    timeout_ms: list[int | None] = field(default_factory=list)
    input_sizes: list[tuple[tuple[int, ...], ...]] = field(default_factory=list)
    output_sizes: list[tuple[tuple[int, ...], ...]] = field(default_factory=list)
    input_dtypes: list[tuple[str, ...]] = field(default_factory=list)
    output_dtypes: list[tuple[str, ...]] = field(default_factory=list)
    frames: list[tuple[str, ...]] = field(default_factory=list)
    """innermost first as the recorder gives them, each ``function (file:line)``; empty without stacks"""

    def __len__(self) -> int:
        return len(self.record_id)


@dataclass(frozen=True, slots=True)
class RankTrace:
    """One dump. ``rank`` is the global rank (from the file name or the collector, never from the dump)."""

    rank: int
    version: str
    backend: str
    """prefix most entries carry: ``nccl``, ``gloo``, ...; empty when there is no entry"""
    groups: tuple[TraceGroup, ...]
    entries: TraceEntries
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
        return max((t for t in self.entries.created_ns if t is not None), default=None)


def pack(trace: RankTrace) -> bytes:
    """Columns as zstd-compressed MessagePack; ``unpack`` gives an equal ``RankTrace``."""
    return zstandard.ZstdCompressor(level=3, write_checksum=True).compress(msgspec.msgpack.encode(trace))


def unpack(data: bytes) -> RankTrace:
    """Reads what ``pack`` wrote. Bounded: raises ``TraceError`` on anything else or anything too large."""
    try:
        size = zstandard.frame_content_size(data)
        if not 0 <= size <= limits.PART_MAX_DECOMPRESSED_BYTES:
            raise TraceError(f"a trace of {size} bytes is over the limit or says no size")
        raw = zstandard.ZstdDecompressor().decompress(
            data, max_output_size=limits.PART_MAX_DECOMPRESSED_BYTES
        )
        trace = msgspec.msgpack.decode(raw, type=RankTrace)
    except (zstandard.ZstdError, msgspec.MsgspecError, RecursionError) as error:
        raise TraceError(f"not a packed trace: {error}") from error
    check(trace)
    return trace


def check(trace: RankTrace) -> None:
    """Raises ``TraceError`` unless the columns have one length and point at existing groups."""
    columns = [getattr(trace.entries, name) for name in TraceEntries.__slots__]
    count = len(trace.entries)
    if any(len(column) != count for column in columns):
        raise TraceError("columns of unequal length")
    if count > limits.ENTRIES_PER_TRACE_MAX:
        raise TraceError(f"{count} entries, the limit is {limits.ENTRIES_PER_TRACE_MAX}")
    if any(not 0 <= index < len(trace.groups) for index in trace.entries.group):
        raise TraceError("an entry names a group that the trace does not hold")
