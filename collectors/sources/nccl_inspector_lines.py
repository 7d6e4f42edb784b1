"""Lines of NCCL Inspector's logs: one finished operation each, and what they sum up to between two looks.

In: lines of JSON (``coll_perf``, ``p2p_perf`` or ``dump_stats`` beside ``header`` and ``metadata``) of any
version; fields that are not known are passed over. Out: ``Window``: per operation, group size and class of
sizes how many there were, how long they took and how fast they were. Nothing of a line is trusted.
Source: plugins/profiler/inspector of NCCL 2.28 to 2.30 (format v4.0 to v4.2).
"""

from __future__ import annotations

import functools
import re
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import msgspec

CLASSES_MAX: Final = 64
"""Of one rank; what is beyond is counted as one."""
NAME_MAX_CHARS: Final = 64
OTHER: Final = "other"
_UNNAMED: Final = ("", "unknown")
"""What the plugin writes for a communicator without a name."""
_OPERATION: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,31}")
_LIMITS: Final = (2**13, 2**16, 2**19, 2**22, 2**25, 2**28, 2**31)
_SIZES: Final = (
    "below_8KiB", "8KiB_64KiB", "64KiB_512KiB", "512KiB_4MiB", "4MiB_32MiB", "32MiB_256MiB", "256MiB_2GiB",
    "from_2GiB",
)  # fmt: skip
_SIZE_BYTES_MAX: Final = 2.0**63
_RANKS_MAX: Final = 10_000_000
_EXEC_US_MAX: Final = 1e11
"""A day and more: no operation takes that long."""
_GBS_MAX: Final = 1e6
_TIME_US_MAX: Final = 1e17
_DROPPED_MAX: Final = 2**48
_BITS: Final = 8
"""The plugin's ``gbs`` are gigabytes a second."""
_BARE: Final = re.compile(rb":-?(?:inf|nan)\b")
"""What C prints for numbers that JSON does not know."""

Labels = tuple[tuple[str, str], ...]


class _Header(msgspec.Struct):
    n_ranks: float | None = None
    comm_name: str | None = None


class _Metadata(msgspec.Struct):
    dump_timestamp_us: float | None = None


class _Perf(msgspec.Struct):
    """``coll_perf`` and ``p2p_perf``."""

    coll: str | None = None
    coll_msg_size_bytes: float | None = None
    coll_exec_time_us: float | None = None
    coll_algobw_gbs: float | str | None = None
    coll_busbw_gbs: float | str | None = None
    p2p: str | None = None
    p2p_msg_size_bytes: float | None = None
    p2p_exec_time_us: float | None = None
    p2p_algobw_gbs: float | str | None = None
    p2p_busbw_gbs: float | str | None = None


class _Stats(msgspec.Struct):
    coll_dropped_since_last_dump: float | None = None
    p2p_dropped_since_last_dump: float | None = None


class _Line(msgspec.Struct):
    header: _Header
    metadata: _Metadata | None = None
    coll_perf: _Perf | None = None
    p2p_perf: _Perf | None = None
    dump_stats: _Stats | None = None


_decode = msgspec.json.Decoder(_Line).decode


@dataclass(slots=True)
class Class:
    """Operations of one kind. ``weighed_s``, ``..._gbit``: of those that told their bandwidths."""

    count: int = 0
    exec_s: float = 0.0
    exec_max_s: float = 0.0
    weighed_s: float = 0.0
    algorithm_gbit: float = 0.0
    bus_gbit: float = 0.0

    def add(self, exec_s: float, algorithm_gbs: float | None, bus_gbs: float | None) -> None:
        self.count += 1
        self.exec_s += exec_s
        self.exec_max_s = max(self.exec_max_s, exec_s)
        if algorithm_gbs is not None and bus_gbs is not None:
            self.weighed_s += exec_s
            self.algorithm_gbit += algorithm_gbs * _BITS * exec_s
            self.bus_gbit += bus_gbs * _BITS * exec_s

    def join(self, more: Class) -> None:
        self.count += more.count
        self.exec_s += more.exec_s
        self.exec_max_s = max(self.exec_max_s, more.exec_max_s)
        self.weighed_s += more.weighed_s
        self.algorithm_gbit += more.algorithm_gbit
        self.bus_gbit += more.bus_gbit


@dataclass(slots=True)
class Window:
    """What the lines of one look tell.

    Attributes:
        classes: labels -> what was done.
        newest_us: the newest time of a dump, of the rank's own clock.
        dropped: operations that the plugin overwrote before it wrote them; None: it does not tell.
        unreadable: lines that are none of the plugin's.
    """

    classes: dict[Labels, Class] = field(default_factory=dict)
    newest_us: float | None = None
    dropped: int | None = None
    lines: int = 0
    unreadable: int = 0


def window(lines: Iterable[bytes], known: Iterable[Labels] = ()) -> Window:
    """The sums of some lines. ``known``: labels that have a place of their own already."""
    found = Window()
    places = set(known)
    for text in lines:
        if not text.strip():
            continue
        line = _decoded(text)
        if line is None or not _add(found, line, places):
            found.unreadable += 1
            continue
        found.lines += 1
        told_us = line.metadata.dump_timestamp_us if line.metadata is not None else None
        if told_us is not None and 0 < told_us < _TIME_US_MAX:
            found.newest_us = max(found.newest_us or 0.0, told_us)
    return found


def size_class(size_bytes: float) -> str:
    """The class of an operation's size."""
    return _SIZES[bisect_right(_LIMITS, size_bytes)]


def other() -> Labels:
    """The labels of what has no place of its own."""
    return (("coll", OTHER),)


def _decoded(text: bytes) -> _Line | None:
    try:
        return _decode(text)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        pass
    bare = _BARE.sub(b":null", text)
    if bare == text:
        return None
    try:
        return _decode(bare)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None


def _add(found: Window, line: _Line, places: set[Labels]) -> bool:
    """Whether the line told something."""
    if line.coll_perf is not None:
        one = line.coll_perf
        operation, size, took_us = one.coll, one.coll_msg_size_bytes, one.coll_exec_time_us
        algorithm, bus = one.coll_algobw_gbs, one.coll_busbw_gbs
    elif line.p2p_perf is not None:
        one = line.p2p_perf
        operation, size, took_us = one.p2p, one.p2p_msg_size_bytes, one.p2p_exec_time_us
        algorithm, bus = one.p2p_algobw_gbs, one.p2p_busbw_gbs
    elif line.dump_stats is not None:
        return _add_dropped(found, line.dump_stats)
    else:
        return False
    ranks = line.header.n_ranks
    if operation is None or ranks is None or size is None or took_us is None:
        return False
    if not 0 <= took_us <= _EXEC_US_MAX or not 0 <= size < _SIZE_BYTES_MAX:
        return False
    name = (line.header.comm_name or "")[: 2 * NAME_MAX_CHARS]
    labels = _labels(operation[: 2 * NAME_MAX_CHARS], ranks, size_class(size), name)
    if labels is None:
        return False
    if labels not in places:
        if len(places) < CLASSES_MAX:
            places.add(labels)
        else:
            labels = other()
    found.classes.setdefault(labels, Class()).add(took_us / 1e6, _gbs(algorithm), _gbs(bus))
    return True


def _add_dropped(found: Window, stats: _Stats) -> bool:
    told = [stats.coll_dropped_since_last_dump, stats.p2p_dropped_since_last_dump]
    sound = [int(one) for one in told if one is not None and 0 <= one <= _DROPPED_MAX]
    if sound:
        found.dropped = (found.dropped or 0) + sum(sound)
    return bool(sound)


@functools.lru_cache(maxsize=512)
def _labels(operation: str, ranks: float, size: str, name: str) -> Labels | None:
    """None: not an operation of a communicator."""
    if not _OPERATION.fullmatch(operation) or not 1 <= ranks <= _RANKS_MAX:
        return None
    plain = (("coll", operation), ("group_size", str(int(ranks))), ("size", size))
    name = name.strip()[:NAME_MAX_CHARS]
    return plain if name in _UNNAMED or not name.isprintable() else (*plain, ("group", name))


def _gbs(told: float | str | None) -> float | None:
    return told if isinstance(told, float) and 0 <= told <= _GBS_MAX else None
