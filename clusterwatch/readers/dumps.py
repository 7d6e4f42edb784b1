"""One file -> what the analysis needs of one dump, small enough to keep for every rank of a large job.

In: a ``Blob`` and the rank its name tells. Out: ``Dump`` or ``Unusable``. The columns are let go as soon as
they are reduced, so memory follows the number of ranks, not what their rings hold.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from clusterwatch.analysis.tables import Window
from clusterwatch.analysis.window import reduce
from clusterwatch.readers.archives import Blob, UnreadableError, label
from clusterwatch.readers.names import Named
from clusterwatch.readers.texts import as_utf8
from collectors.formats.columns import NULL, UNKNOWN_RANK, TraceColumns
from collectors.formats.flight_recorder import DUMP_MAX_BYTES, decode
from collectors.formats.trace import TraceError

_REASON_MAX_CHARS: Final = 300
_HEAD_BYTES: Final = 4_096
_MARK_EVERY: Final = 16
"""Two rings that share fewer calls than this share their ends, more share a marked one."""
_MIX: Final = np.int64(0x9E3779B97F4A7C1)

Marks = tuple[NDArray[np.int64], NDArray[np.int64]]


@dataclass(frozen=True, slots=True)
class Dump:
    """A dump that can be used."""

    rank: int
    source: str
    prefix: str
    window: Window
    world: tuple[int, int] | None
    """size and digest of the default group; None when the dump does not tell it (gloo)"""
    marks: Marks | None
    """record ids, rising, and what was recorded under them: equal in all dumps of one process. None where the
    rank has one dump only"""
    series: str = ""
    """its path up to the rank: dumps of one series were numbered together"""
    as_told: Window | None = None
    """the window with all lists of members, where some lack the rank that the name gives"""

    @property
    def newest_ns(self) -> int | None:
        return self.window.newest_ns

    @property
    def oldest_ns(self) -> int | None:
        return self.window.oldest_ns


@dataclass(frozen=True, slots=True)
class Unusable:
    """A dump that cannot be used, and why."""

    source: str
    reason: str
    rank: int


def load(blob: Blob, named: Named, *, marked: bool) -> Dump | Unusable | None:
    """The dump in a file; None for a file that is no dump and whose name does not promise one."""
    data = b""
    try:
        data = blob.read(DUMP_MAX_BYTES)
        told = _decoded(data, blob)
        trace = _of_rank(told, named.rank)
        window = reduce(trace)
        marks = _marks(trace) if marked else None
        as_told = None if trace.groups == told.groups or trace.backend == "gloo" else reduce(told)
        world = _world(trace, window) if as_told is None else _world(told, as_told)
        return Dump(named.rank, blob.name, named.prefix, window, world, marks, named.series, as_told)
    except UnreadableError as error:
        return Unusable(blob.name, str(error)[:_REASON_MAX_CHARS], named.rank) if named.sure else None
    except TraceError as error:
        if not named.sure and not _like_a_dump(data):
            return None
        return Unusable(blob.name, label(str(error))[:_REASON_MAX_CHARS], named.rank)
    except MemoryError:
        return Unusable(blob.name, f"{len(data)} bytes: decoding needs more memory than there is", named.rank)
    except Exception as error:  # noqa: BLE001  a file that finds a hole in the decoder costs itself, no more
        return Unusable(blob.name, f"cannot be decoded: {type(error).__name__}", named.rank)


def decoded(blob: Blob, rank: int) -> TraceColumns:
    """The whole ring in a file. Raises ``TraceError``, ``UnreadableError``."""
    return decode(as_utf8(blob.read(DUMP_MAX_BYTES)), rank, blob.name)


def _decoded(data: bytes, blob: Blob) -> TraceColumns:
    """The ring of whoever it is; a file that has grown since is read once more: its writer may just have
    ended.
    """
    try:
        return decode(as_utf8(data), UNKNOWN_RANK, blob.name)
    except TraceError:
        again = blob.read(DUMP_MAX_BYTES)
        if len(again) <= len(data):
            raise
        try:
            return decode(as_utf8(again), UNKNOWN_RANK, blob.name)
        except TraceError as error:
            raise TraceError(f"{error}; it was being written while it was read") from error


def _of_rank(trace: TraceColumns, rank: int) -> TraceColumns:
    """The ring as one of ``rank``: lists without it are of other groups, and gloo's are of no group."""
    if all(rank in group.ranks for group in trace.groups if group.ranks):
        return replace(trace, rank=rank)
    groups = (group if rank in group.ranks else replace(group, ranks=()) for group in trace.groups)
    return replace(trace, rank=rank, groups=tuple(groups))


def groups_with(blob: Blob, rank: int) -> int:
    """How many groups of the dump have ``rank`` as a member; 0 when it cannot be read."""
    try:
        trace = decoded(blob, rank)
    except (TraceError, UnreadableError):
        return 0
    return sum(rank in group.ranks for group in trace.groups)


def _like_a_dump(data: bytes) -> bool:
    head = data[:_HEAD_BYTES]
    return b"pg_config" in head or b"entries" in head


def _world(trace: TraceColumns, window: Window) -> tuple[int, int] | None:
    for group, key in zip(trace.groups, window.groups["key"].tolist(), strict=True):
        if group.ranks and (group.desc == "default_pg" or group.name in ("0", "default_pg")):
            return len(group.ranks), key
    return None


def _marks(trace: TraceColumns) -> Marks:
    """Every sixteenth record, and both ends of the ring: enough to find any overlap of two rings."""
    entries = trace.entries
    count = len(entries)
    if not count:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    ids = np.frombuffer(entries.record_id, np.int64)
    at = np.arange(count)
    kept = (ids % _MARK_EVERY == 0) | (at < _MARK_EVERY) | (at >= count - _MARK_EVERY)
    kept &= ids != NULL
    created, sequence = (np.frombuffer(c, np.int64) for c in (entries.created_ns, entries.sequence))
    with np.errstate(over="ignore"):
        what = created[kept] * _MIX + sequence[kept]
    ids, first = np.unique(ids[kept], return_index=True)
    return ids, what[first]


def same_process(one: Dump, other: Dump) -> bool:
    """Whether two dumps of one rank share records: then they are looks at one process."""
    if one.world != other.world or one.marks is None or other.marks is None:
        return False
    _, mine, theirs = np.intersect1d(one.marks[0], other.marks[0], assume_unique=True, return_indices=True)
    return bool(len(mine)) and bool((one.marks[1][mine] == other.marks[1][theirs]).all())
