"""What a training process may say: JSON headers of ``hook/protocol.py`` as typed, bounded structs.

Everything from a training process is untrusted: a message of a wrong shape or beyond a bound raises
``protocol.ProtocolError`` and costs its sender the connection.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from collectors.hook import protocol
from collectors.wire import limits

Name = Annotated[str, Meta(max_length=limits.NAME_MAX_CHARS)]
LongText = Annotated[str, Meta(max_length=512 * 1024)]
Count = Annotated[int, Meta(ge=0, le=2**53)]
Number = Annotated[int, Meta(ge=-1, le=2**62)]
TimeNs = Annotated[int, Meta(ge=0, le=2**62)]
Pid = Annotated[int, Meta(ge=1, le=2**31)]
STEPS_PER_MESSAGE_MAX: Final = 4_096
EDGES_PER_MESSAGE_MAX: Final = 2_048


class Hello(msgspec.Struct, frozen=True):
    v: int
    rank: Annotated[int, Meta(ge=0, le=limits.RANKS_PER_GROUP_MAX)]
    world_size: Annotated[int, Meta(ge=1, le=limits.RANKS_PER_GROUP_MAX)]
    job: Annotated[str, Meta(min_length=1, max_length=limits.NAME_MAX_CHARS)]
    pid: int | None = None
    local_rank: Count | None = None
    attempt: Count = 0
    world: Name = ""
    role: Name = ""
    torch: Name = ""
    backend: Name = ""
    started_ns: TimeNs | None = None
    command: LongText = ""
    blind: Annotated[list[Name], Meta(max_length=64)] = []
    gpu_index: Annotated[int, Meta(ge=0, le=1023)] | None = None
    gpu_uuid: Name | None = None
    job_name: Name = ""
    user: Name = ""
    labels: Annotated[dict[Name, Name], Meta(max_length=limits.JOB_LABELS_MAX)] = {}


class Group(msgspec.Struct, frozen=True):
    index: Annotated[int, Meta(ge=0, lt=limits.GROUPS_PER_RANK_MAX)]
    name: Name
    desc: Name = ""
    backend: Name = ""
    ranks: Annotated[
        list[Annotated[int, Meta(ge=0, le=limits.RANKS_PER_GROUP_MAX)]],
        Meta(max_length=limits.RANKS_PER_GROUP_MAX),
    ] = []
    recorder_id: int | None = None


class Groups(msgspec.Struct, frozen=True):
    groups: Annotated[list[Group], Meta(max_length=limits.GROUPS_PER_RANK_MAX)]


GroupNumbers = tuple[
    Annotated[int, Meta(ge=0, lt=limits.GROUPS_PER_RANK_MAX)], Number | None, Number | None, Number | None
]


class Progress(msgspec.Struct, frozen=True):
    t_ns: TimeNs | None = None
    step: Number | None = None
    phase: Name = "unknown"
    phase_since_ns: TimeNs | None = None
    groups: Annotated[list[GroupNumbers], Meta(max_length=limits.GROUPS_PER_RANK_MAX)] = []


_Column = Annotated[list[float | None], Meta(max_length=STEPS_PER_MESSAGE_MAX)]


class Steps(msgspec.Struct, frozen=True):
    """Columns of equal length; a column that is left out is unknown in every row."""

    step: Annotated[list[Count], Meta(max_length=STEPS_PER_MESSAGE_MAX)]
    end_ns: Annotated[list[TimeNs], Meta(max_length=STEPS_PER_MESSAGE_MAX)]
    duration_s: Annotated[list[float], Meta(max_length=STEPS_PER_MESSAGE_MAX)]
    data_wait_s: _Column = []
    checkpoint_s: _Column = []
    gc_s: _Column = []
    cpu_s: _Column = []
    wait_s: _Column = []
    late_launch: _Column = []

    def __post_init__(self) -> None:
        rows = len(self.step)
        if len(self.end_ns) != rows or len(self.duration_s) != rows:
            raise ValueError("step columns of unequal length")
        optional = (
            self.data_wait_s, self.checkpoint_s, self.gc_s, self.cpu_s, self.wait_s, self.late_launch
        )  # fmt: skip
        told = [column for column in optional if column]
        if {len(column) for column in told} - {rows}:
            raise ValueError("step columns of unequal length")
        if not all(math.isfinite(value) and value >= 0 for value in self.duration_s):
            raise ValueError("a step of impossible length")
        if not all(value is None or math.isfinite(value) for column in told for value in column):
            raise ValueError("a step with an impossible number")
        if any(value is not None and not 0 <= value <= limits.STEP_WAIT_MAX_S for value in self.wait_s):
            raise ValueError("a step with an impossible wait")
        if any(value is not None and not 0 <= value <= 1 for value in self.late_launch):
            raise ValueError("a step with an impossible share of late launches")


_EdgeCounts = Annotated[list[Count], Meta(max_length=EDGES_PER_MESSAGE_MAX)]
_EdgeTimes = Annotated[list[float], Meta(max_length=EDGES_PER_MESSAGE_MAX)]
_EdgePlaces = Annotated[
    list[Annotated[int, Meta(ge=0, lt=limits.GROUPS_PER_RANK_MAX)]], Meta(max_length=EDGES_PER_MESSAGE_MAX)
]


class Edges(msgspec.Struct, frozen=True):
    """Columns of equal length, a row per (step, group, op, size); ``op`` is a place in ``ops``."""

    ops: Annotated[list[Name], Meta(max_length=limits.EDGE_OPS_MAX)]
    step: _EdgeCounts
    group: _EdgePlaces
    op: _EdgePlaces
    size_bytes: _EdgeCounts
    count: _EdgeCounts
    sum_s: _EdgeTimes
    min_s: _EdgeTimes
    p10_s: _EdgeTimes
    p50_s: _EdgeTimes

    def __post_init__(self) -> None:
        times = (self.sum_s, self.min_s, self.p10_s, self.p50_s)
        columns = (self.group, self.op, self.size_bytes, self.count, *times)
        if any(len(column) != len(self.step) for column in columns):
            raise ValueError("columns of calls of unequal length")
        if any(place >= len(self.ops) for place in self.op):
            raise ValueError("a call of an op that is not named")
        if not all(0 <= value <= limits.STEP_WAIT_MAX_S for column in times for value in column):
            raise ValueError("a call of impossible length")


class Phase(msgspec.Struct, frozen=True):
    t_ns: TimeNs
    phase: Name
    before: Name = "unknown"
    before_s: Annotated[float, Meta(ge=0)] = 0.0
    detail: LongText = ""

    def __post_init__(self) -> None:
        if not math.isfinite(self.before_s):
            raise ValueError("a phase of impossible length")


class Allocator(msgspec.Struct, frozen=True):
    """GPU memory of torch's caching allocator, over all devices of the process."""

    retries: Count
    ooms: Count
    allocated_bytes: Count
    allocated_peak_bytes: Count
    reserved_bytes: Count


class ExceptionRaised(msgspec.Struct, frozen=True):
    type: Name
    message: LongText
    traceback: LongText
    t_ns: TimeNs


class Finish(msgspec.Struct, frozen=True):
    t_ns: TimeNs | None = None


class Dump(msgspec.Struct, frozen=True):
    id: Count
    recorder: Name = ""
    format: Name = ""
    error: LongText | None = None


class Thread(msgspec.Struct, frozen=True):
    name: Name
    frames: Annotated[list[LongText], Meta(max_length=4_096)]
    main: bool = False


class StacksTaken(msgspec.Struct, frozen=True):
    id: Count
    threads: Annotated[list[Thread], Meta(max_length=1_024)] = []
    error: LongText | None = None


class Run(msgspec.Struct, frozen=True):
    pid: Pid
    job: Name = ""


class Exit(msgspec.Struct, frozen=True):
    pid: Pid
    code: Annotated[int, Meta(ge=-255, le=255)] | None = None
    signal: Annotated[int, Meta(ge=0, le=128)] | None = None


KINDS: Final[dict[str, Any]] = {
    "hello": Hello,
    "groups": Groups,
    "progress": Progress,
    "steps": Steps,
    "edges": Edges,
    "phase": Phase,
    "allocator": Allocator,
    "exception": ExceptionRaised,
    "finish": Finish,
    "dump": Dump,
    "stacks": StacksTaken,
    "run": Run,
    "exit": Exit,
}


class _Kind(msgspec.Struct):
    k: str


_kind = msgspec.json.Decoder(_Kind)
_DECODERS: Final = {name: msgspec.json.Decoder(kind) for name, kind in KINDS.items()}


class Reader(protocol.Reader):
    """Bytes -> (kind, typed message) and blob; one pass over the JSON per step, no dict in between."""

    def header(self, text: bytes) -> Any:
        """(kind, message), message None for a kind that this version does not know.

        Raises:
            protocol.ProtocolError: no JSON, wrong shape, wrong type or beyond a bound.
        """
        try:
            name = _kind.decode(text).k
            decoder = _DECODERS.get(name)
            return name, decoder.decode(text) if decoder is not None else None
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise protocol.ProtocolError(f"not a valid message: {error}") from None


def clip(text: str, max_chars: int = limits.TEXT_MAX_CHARS) -> str:
    """Text that fits a wire record; what was cut off the middle is said in its place."""
    if len(text) <= max_chars:
        return text
    half = (max_chars - 64) // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters left out ...\n{text[-half:]}"
