"""Collective logs: what every rank saw of every call, as ``records.jsonl`` and ``topology.json``.

In: a folder or archive that holds both. Out: ``CollectiveLog``: calls as columns, the layout, and what could
not be used. Lines are decoded in chunks, so that a log of any length takes the memory of its columns; a line
that is no record costs itself only. Everything else in the folder is not looked at. Format: version 1 of the
collective log, docs/collective-log.md.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Final, Literal

import msgspec
import numpy as np

from clusterwatch.analysis.model import InputProblem, RankFacts
from clusterwatch.analysis.slow.calls import COLUMNS, COMPLETED, SCHEDULED, STARTED, Calls
from clusterwatch.analysis.slow.layout import UNKNOWN, Layout
from clusterwatch.readers.archives import Survey, members
from clusterwatch.readers.blobs import Blob, Stream, UnreadableError
from clusterwatch.readers.line_blocks import LINE_MAX_BYTES, whole_lines
from collectors.wire.limits import RANKS_PER_GROUP_MAX

RECORDS: Final = "records.jsonl"
TOPOLOGY: Final = "topology.json"
UNPACKED_MAX_BYTES: Final = 64 * 1024**3
NAMES_MAX: Final = 1_000_000
OPS_MAX: Final = 10_000
ROWS_MAX: Final = 400_000_000
_TOPOLOGY_MAX_BYTES: Final = 256 * 1024**2
_STATES: Final = {"scheduled": SCHEDULED, "started": STARTED, "completed": COMPLETED}
_INT64: Final = 2**63 - 1

_Count = Annotated[int, msgspec.Meta(ge=-1, le=2**40)]
_Time = Annotated[int, msgspec.Meta(ge=0, le=_INT64)]
_Rank = Annotated[int, msgspec.Meta(ge=0, lt=RANKS_PER_GROUP_MAX)]
_Name = Annotated[str, msgspec.Meta(max_length=255)]


class CollectiveLogError(ValueError):
    """The log cannot be used at all; the text says why."""


class _Record(msgspec.Struct, gc=False):
    rank: _Rank
    node: _Count
    gpu: _Count
    pg: _Name
    op: _Name
    seq: _Count
    step: _Count
    mb: _Count
    peer: _Rank | None
    bytes: Annotated[int, msgspec.Meta(ge=0, le=_INT64)]
    enqueue_ns: _Time
    start_ns: _Time | None
    end_ns: _Time | None
    state: Literal["scheduled", "started", "completed"]


class Place(msgspec.Struct):
    """One rank in a topology file."""

    rank: _Rank
    node: _Count = UNKNOWN
    gpu: _Count = UNKNOWN
    tp: _Count = UNKNOWN
    dp: _Count = UNKNOWN
    pp: _Count = UNKNOWN
    nic: _Name = ""
    leaf: _Name = ""
    host: _Name = ""


class _Topology(msgspec.Struct):
    ranks: list[Place]
    steps: _Count | None = None


@dataclass(frozen=True, slots=True)
class CollectiveLog:
    calls: Calls
    layout: Layout
    facts: dict[int, RankFacts]
    problems: tuple[InputProblem, ...]


@dataclass(frozen=True, slots=True)
class Found:
    """Where a log lies: the blobs, or the packed archive they are in."""

    records: str
    topology: str
    at: Mapping[str, Blob] | Stream

    def lines(self) -> Iterator[bytes]:
        """The records in chunks. Raises ``UnreadableError``."""
        for blob in self._blobs(self.records):
            yield from blob.stream(UNPACKED_MAX_BYTES)

    def places(self) -> bytes:
        """The topology. Raises ``CollectiveLogError``."""
        try:
            return b"".join(blob.read(_TOPOLOGY_MAX_BYTES) for blob in self._blobs(self.topology))
        except UnreadableError as error:
            raise CollectiveLogError(f"{self.topology}: {error}") from error

    def _blobs(self, name: str) -> Iterator[Blob]:
        """The blob; those of a packed archive can be read only as they come."""
        blobs = members(self.at) if isinstance(self.at, Stream) else iter((self.at[name],))
        for blob in blobs:
            if blob.name == name:
                yield blob
                return


def found_in(found: Survey) -> Found | None:
    """The log at a path, or None: the first folder, by name, that holds records and topology."""
    places: list[tuple[Iterable[str], Mapping[str, Blob] | Stream]] = [(found.blobs, found.blobs)]
    places += [(names, stream) for stream, names in found.streams]
    for names, at in places:
        known = set(names)
        for name in sorted(known):
            cut = max(name.rfind("/"), name.rfind(":")) + 1
            if name[cut:] == RECORDS and name[:cut] + TOPOLOGY in known:
                return Found(name, name[:cut] + TOPOLOGY, at)
    return None


def read(found: Found, topology: bytes | None = None) -> CollectiveLog:
    """The whole log.

    Args:
        topology: another topology than the one beside the records.

    Raises:
        CollectiveLogError: the topology is none, or no line is a record.
    """
    places = places_of(found.places() if topology is None else topology)
    lines = _Lines(found.records)
    try:
        for block in whole_lines(found.lines()):
            lines.take(block)
    except UnreadableError as error:
        lines.cut_off(str(error))
    calls = lines.calls()
    if not len(calls):
        raise CollectiveLogError(f"{found.records}: no line of it is a record of a call")
    layout, problems = layout_of(places, calls)
    facts = {
        place.rank: RankFacts(place.rank, host=_host(place), gpu=None if place.gpu == UNKNOWN else place.gpu)
        for place in places
    }
    return CollectiveLog(calls, layout, facts, (*lines.problems(), *problems))


def _host(place: Place) -> str | None:
    return place.host or (f"node {place.node}" if place.node != UNKNOWN else None)


# --- records ---------------------------------------------------------------------------------------------


class _Lines:
    """Records as they are read, in columns."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._decoder = msgspec.json.Decoder(_Record)
        self._groups: dict[str, int] = {}
        self._ops: dict[str, int] = {}
        self._columns: list[np.ndarray[tuple[int, int], np.dtype[np.int64]]] = []
        self._rows = 0
        self._bad = 0
        self._first_bad = ""
        self._end = ""

    def take(self, block: bytes) -> None:
        if self._rows > ROWS_MAX:
            self._end = f"only its first {self._rows} records are used"
            return
        try:
            records = self._decoder.decode_lines(block.removeprefix(codecs.BOM_UTF8))
        except (msgspec.MsgspecError, UnicodeDecodeError):
            records = list(self._one_by_one(block))
        if not records:
            return
        rows = [self._row(record) for record in records]
        self._rows += len(rows)
        self._columns.append(np.array(rows, np.int64).T)

    def _one_by_one(self, block: bytes) -> Iterator[_Record]:
        for line in block.removeprefix(codecs.BOM_UTF8).splitlines():
            if not line.strip():
                continue
            try:
                if len(line) > LINE_MAX_BYTES:
                    raise msgspec.DecodeError(f"longer than {LINE_MAX_BYTES} bytes")
                yield self._decoder.decode(line)
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                self._bad += 1
                self._first_bad = self._first_bad or str(error)[:200]

    def _row(self, record: _Record) -> tuple[int, ...]:
        group = self._groups.setdefault(record.pg, len(self._groups))
        op = self._ops.setdefault(record.op, len(self._ops))
        if group > NAMES_MAX or op > OPS_MAX:
            raise CollectiveLogError(f"{self._source}: more than {NAMES_MAX} groups or {OPS_MAX} operations")
        start, end = record.start_ns, record.end_ns
        return (
            record.rank, group, op, record.seq, record.step, record.mb,
            UNKNOWN if record.peer is None else record.peer, record.bytes, record.enqueue_ns,
            UNKNOWN if start is None else start, UNKNOWN if end is None else end, _STATES[record.state],
        )  # fmt: skip

    def cut_off(self, reason: str) -> None:
        self._end = f"{reason}: what comes after is not used"

    def calls(self) -> Calls:
        table = (
            np.concatenate(self._columns, axis=1) if self._columns else np.zeros((len(COLUMNS), 0), np.int64)
        )
        columns = dict(zip(COLUMNS, table, strict=True))
        return Calls(**columns, groups=tuple(self._groups), ops=tuple(self._ops))

    def problems(self) -> Iterator[InputProblem]:
        if self._bad:
            lines = f"{self._bad} line{'s are' if self._bad > 1 else ' is'} no record and not used"
            yield InputProblem(self._source, f"{lines}; the first: {self._first_bad}")
        if self._end:
            yield InputProblem(self._source, self._end)


# --- topology --------------------------------------------------------------------------------------------


def places_of(data: bytes) -> list[Place]:
    """The ranks of a topology file, rising. Raises ``CollectiveLogError``."""
    try:
        topology = msgspec.json.decode(data.removeprefix(codecs.BOM_UTF8), type=_Topology)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CollectiveLogError(f"{TOPOLOGY}: {error}") from error
    by_rank = {place.rank: place for place in topology.ranks}
    if not by_rank:
        raise CollectiveLogError(f"{TOPOLOGY}: it lists no rank")
    if len(by_rank) < len(topology.ranks):
        raise CollectiveLogError(f"{TOPOLOGY}: a rank is listed twice")
    return [by_rank[rank] for rank in sorted(by_rank)]


def layout_of(places: list[Place], calls: Calls) -> tuple[Layout, list[InputProblem]]:
    """Coordinates of ranks 0 to the highest listed; unlisted ones are told of and left out."""
    count = places[-1].rank + 1
    problems = []
    listed = np.zeros(count, np.bool_)
    listed[[place.rank for place in places]] = True
    if not listed.all() or int(calls.rank.max(initial=0)) >= count:
        problems.append(
            InputProblem(TOPOLOGY, "it does not list all ranks: calls of the others are not used")
        )
    column = {name: np.full(count, UNKNOWN, np.int64) for name in ("stage", "replica", "node", "gpu")}
    nic, leaf, hosts = [""] * count, [""] * count, [""] * count
    for place in places:
        column["stage"][place.rank], column["replica"][place.rank] = place.pp, place.dp
        column["node"][place.rank], column["gpu"][place.rank] = place.node, place.gpu
        nic[place.rank], leaf[place.rank], hosts[place.rank] = place.nic, place.leaf, place.host
    is_declared = bool((column["stage"] >= 0).all() and (column["replica"] >= 0).all())
    return Layout(
        **column,
        nic=tuple(nic),
        leaf=tuple(leaf),
        hosts=tuple(hosts),
        is_declared=is_declared,
        parts_told=True,
    ), problems
