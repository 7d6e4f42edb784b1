"""Logs of NCCL's Inspector plugin: one finished call a line, as each process of a job wrote them.

In: a folder or archive with files ``<host>-pid<pid>.log`` or ``.jsonl``, packed or not. Out:
``InspectorLog``: calls as columns, whose they are, and what could not be used. Lines are decoded in blocks;
one that is none costs itself only. Hosts and processes are taken from the lines, not from the names of files.
Source: plugins/profiler/inspector of NCCL 2.28 to 2.30 (format v4.0 to v4.2), verbose.
"""

from __future__ import annotations

import codecs
import functools
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from clusterwatch.analysis.model import InputProblem
from clusterwatch.analysis.slow.inspector_lines import COLUMNS, Communicator, Lines, Process
from clusterwatch.readers import tasks
from clusterwatch.readers.archives import Blob, Survey, UnreadableError, label
from clusterwatch.readers.line_blocks import LINE_MAX_BYTES, whole_lines
from clusterwatch.readers.names import PARTS
from clusterwatch.readers.progress import Show
from collectors.wire.limits import RANKS_PER_GROUP_MAX

LOG_MAX_BYTES: Final = 64 * 1024**3
ROWS_MAX: Final = 400_000_000
"""Of all files together."""
FILE_ROWS_MAX: Final = 50_000_000
NAMES_MAX: Final = 100_000
"""Communicators of one file."""
OPS_MAX: Final = 64
_SNIFF_BYTES: Final = 4_096
_SNIFFED_FILES: Final = 4
_NAME: Final = re.compile(r"-pid\d{1,10}\.(?:log|jsonl)(?:[.-]\d{1,14})?$", re.IGNORECASE)
_BARE: Final = re.compile(rb":-?(?:inf|nan)\b")
"""What C prints for numbers that JSON does not know."""
_P2P: Final = frozenset({"Send", "Recv"})

_Count = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
_Time = Annotated[int, msgspec.Meta(gt=0, lt=2**53)]
_Rank = Annotated[int, msgspec.Meta(ge=0, lt=RANKS_PER_GROUP_MAX)]
_Size = Annotated[int, msgspec.Meta(ge=1, le=RANKS_PER_GROUP_MAX)]
_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=255)]


class _Header(msgspec.Struct, gc=False):
    id: Annotated[str, msgspec.Meta(max_length=64)]
    rank: _Rank
    n_ranks: _Size
    nnodes: _Size = 1
    comm_name: Annotated[str, msgspec.Meta(max_length=4_096)] | None = None


class _Metadata(msgspec.Struct, gc=False):
    hostname: _Name
    pid: _Count


class _Kernel(msgspec.Struct, gc=False):
    kernel_start_ts: _Time
    kernel_stop_ts: _Time


class _Times(msgspec.Struct, gc=False):
    coll_start_ts: _Time | None = None
    p2p_start_ts: _Time | None = None
    kernel_events: Annotated[list[_Kernel], msgspec.Meta(max_length=1_024)] = []


class _Call(msgspec.Struct, gc=False):
    """``coll_perf`` and ``p2p_perf``."""

    coll: _Name | None = None
    coll_sn: _Count | None = None
    coll_msg_size_bytes: _Count = 0
    p2p: _Name | None = None
    p2p_sn: _Count | None = None
    p2p_peer: _Rank | None = None
    p2p_msg_size_bytes: _Count = 0
    event_trace_ts: _Times | None = None


class _Stats(msgspec.Struct, gc=False):
    coll_dropped_since_last_dump: int = 0
    p2p_dropped_since_last_dump: int = 0


class _Line(msgspec.Struct, gc=False):
    header: _Header
    metadata: _Metadata
    coll_perf: _Call | None = None
    p2p_perf: _Call | None = None
    dump_stats: _Stats | None = None


@dataclass(frozen=True, slots=True)
class InspectorLog:
    lines: Lines
    problems: tuple[InputProblem, ...]


def names_in(found: Survey) -> frozenset[str]:
    """Files at a path that are such logs: by their names, and by the first lines of a few of them."""
    named = sorted(name for name in found.blobs if _NAME.search(PARTS.split(name)[-1]))
    if found.one_file and not named:
        named = sorted(found.blobs)
    if named and not any(_is_one(found.blobs[name]) for name in named[:_SNIFFED_FILES]):
        named = []
    packed = [name for _, inside in found.streams for name in inside if _NAME.search(PARTS.split(name)[-1])]
    return frozenset((*named, *packed))


def without(found: Survey, names: frozenset[str]) -> Survey:
    """What else lies there."""
    if not names:
        return found
    blobs = {name: blob for name, blob in found.blobs.items() if name not in names}
    streams = [(stream, [name for name in inside if name not in names]) for stream, inside in found.streams]
    left = [(stream, inside) for stream, inside in streams if inside]
    return Survey(blobs, left, found.not_opened, found.one_file)


def _is_one(blob: Blob) -> bool:
    try:
        first = next(blob.stream(LOG_MAX_BYTES), b"")[:_SNIFF_BYTES]
    except UnreadableError:
        return False
    return b'"header"' in first and (b'"inspector_output_format_version"' in first or b'_perf"' in first)


def read(found: Survey, names: frozenset[str], show: Show | None = None) -> InspectorLog:
    """All logs of those names, whatever the order of files."""
    every: list[tasks.Task] = [found.blobs[name] for name in sorted(names & found.blobs.keys())]
    every += [stream for stream, inside in found.streams if not names.isdisjoint(inside)]

    def each(blob: Blob) -> Iterator[_File]:
        if blob.name in names:
            yield _read(blob)

    files: list[_File] = []
    problems, rows = [], 0
    for item in tasks.read(every, each, show=show):
        if isinstance(item, InputProblem):
            problems.append(item)
        elif rows + item.table.shape[1] > ROWS_MAX:
            problems.append(InputProblem(item.source, f"more than {ROWS_MAX} calls: the rest is not used"))
        else:
            rows += item.table.shape[1]
            files.append(item)
    files.sort(key=lambda one: one.source)
    problems += [problem for one in files for problem in one.problems()]
    return InspectorLog(_joined(files), tuple(problems))


@dataclass(slots=True)
class _File:
    """One log as it is read; numbers in ``table`` are places in its own names."""

    source: str
    table: NDArray[np.int64] = field(default_factory=lambda: np.zeros((len(COLUMNS), 0), np.int64))
    processes: dict[Process, int] = field(default_factory=dict)
    comms: dict[Communicator, int] = field(default_factory=dict)
    ops: dict[str, int] = field(default_factory=dict)
    bad: int = 0
    first_bad: str = ""
    untimed: int = 0
    dropped: int = 0
    end: str = ""

    def problems(self) -> Iterator[InputProblem]:
        if self.bad:
            lines = f"{self.bad} line{'s are' if self.bad > 1 else ' is'} none of the plugin's and not used"
            yield InputProblem(self.source, f"{lines}; the first: {self.first_bad}")
        if self.untimed:
            yield InputProblem(
                self.source,
                f"{self.untimed} calls bear no times of their kernels and are not used: "
                "NCCL_INSPECTOR_DUMP_VERBOSE=1 writes them",
            )
        if self.dropped:
            yield InputProblem(self.source, f"the plugin overwrote {self.dropped} calls before it wrote them")
        if self.end:
            yield InputProblem(self.source, self.end)


def _read(blob: Blob) -> _File:
    """One file; what could be read of a damaged one."""
    found, parts, rows = _File(blob.name), [], 0
    try:
        for block in whole_lines(blob.stream(LOG_MAX_BYTES)):
            made = [row for line in _lines(found, block) if (row := _row(found, line)) is not None]
            if made:
                parts.append(np.array(made, np.int64).T)
                rows += len(made)
            if rows > FILE_ROWS_MAX:
                found.end = f"only its first {rows} calls are used"
                break
    except UnreadableError as error:
        found.end = f"{error}: what comes after is not used"
    if parts:
        found.table = np.concatenate(parts, axis=1)
    return found


_decoder: Final = msgspec.json.Decoder(_Line)


def _lines(found: _File, block: bytes) -> Iterable[_Line]:
    try:
        return _decoder.decode_lines(block.removeprefix(codecs.BOM_UTF8))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _one_by_one(found, block.removeprefix(codecs.BOM_UTF8))


def _one_by_one(found: _File, block: bytes) -> Iterator[_Line]:
    for text in block.split(b"\n"):
        if not text.strip():
            continue
        try:
            if len(text) > LINE_MAX_BYTES:
                raise msgspec.DecodeError(f"longer than {LINE_MAX_BYTES} bytes")
            yield _decoder.decode(_BARE.sub(b":null", text))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            found.bad += 1
            found.first_bad = found.first_bad or str(error)[:200]


def _row(found: _File, line: _Line) -> tuple[int, ...] | None:
    """A call in the order of ``COLUMNS``; None where the line tells none."""
    if (call := line.coll_perf or line.p2p_perf) is None:
        if line.dump_stats is not None:
            told = line.dump_stats.coll_dropped_since_last_dump, line.dump_stats.p2p_dropped_since_last_dump
            found.dropped += sum(min(max(one, 0), 2**48) for one in told)
        else:
            _refuse(found, "it holds neither coll_perf nor p2p_perf")
        return None
    is_p2p = line.coll_perf is None
    op, sn = (call.p2p, call.p2p_sn) if is_p2p else (call.coll, call.coll_sn)
    header, times, peer = line.header, call.event_trace_ts, call.p2p_peer
    if op is None or sn is None or header.rank >= header.n_ranks or is_p2p != (op in _P2P):
        _refuse(found, "its operation, its number or its rank contradicts itself")
        return None
    if is_p2p and (peer is None or peer >= header.n_ranks or peer == header.rank):
        _refuse(found, "its peer is none of the communicator")
        return None
    launch = None if times is None else times.p2p_start_ts if is_p2p else times.coll_start_ts
    if times is None or launch is None or not times.kernel_events:
        found.untimed += 1
        return None
    process, comm, number = _numbers(found, line.metadata, header, op)
    if number > OPS_MAX or comm > NAMES_MAX:
        _refuse(found, f"more than {OPS_MAX} operations or {NAMES_MAX} communicators")
        return None
    return (
        process, comm, header.rank, number, sn, -1 if peer is None or not is_p2p else peer,
        call.p2p_msg_size_bytes if is_p2p else call.coll_msg_size_bytes,
        1_000 * launch, 1_000 * min(one.kernel_start_ts for one in times.kernel_events),
        1_000 * max(one.kernel_stop_ts for one in times.kernel_events), header.comm_name is None,
    )  # fmt: skip


def _refuse(found: _File, why: str) -> None:
    """Counts a line that is none of the plugin's."""
    found.bad += 1
    found.first_bad = found.first_bad or why


def _numbers(found: _File, metadata: _Metadata, header: _Header, op: str) -> tuple[int, int, int]:
    """(process, communicator, operation) as numbers of the file."""
    process = _process(metadata.hostname, metadata.pid)
    comm = _communicator(header.id, header.n_ranks, header.nnodes)
    return (
        found.processes.setdefault(process, len(found.processes)),
        found.comms.setdefault(comm, len(found.comms)),
        found.ops.setdefault(op, len(found.ops)),
    )


@functools.lru_cache(maxsize=256)
def _process(host: str, pid: int) -> Process:
    return Process(label(host), pid)


@functools.lru_cache(maxsize=1_024)
def _communicator(name: str, n_ranks: int, nnodes: int) -> Communicator:
    return Communicator(label(name), n_ranks, nnodes)


def _joined(files: Iterable[_File]) -> Lines:
    """All files as one table; numbers are places in sorted names, so the order of files does not matter."""
    files = list(files)
    processes = _places({one for file in files for one in file.processes})
    comms = _places({one for file in files for one in file.comms})
    ops = _places({one for file in files for one in file.ops})
    tables = []
    for file in files:
        table = file.table
        for row, known, own in ((0, processes, file.processes), (1, comms, file.comms), (3, ops, file.ops)):
            if own:
                table[row] = np.array([known[name] for name in own], np.int64)[table[row]]
        tables.append(table)
    whole = np.concatenate(tables, axis=1) if tables else np.zeros((len(COLUMNS), 0), np.int64)
    columns = dict(zip(COLUMNS, whole, strict=True))
    return Lines(**columns, processes=tuple(processes), comms=tuple(comms), ops=tuple(ops))


def _places(names: set[Any]) -> dict[Any, int]:
    places: dict[Any, int] = defaultdict(int)
    for number, name in enumerate(sorted(names)):
        places[name] = number
    return dict(places)
