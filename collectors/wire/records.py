"""Wire v1 records: every message between a node and a gateway.

Times are integer ns UTC of the sender's clock (``t_ns``). ``None`` means "not known", never 0 or -1.
Unknown fields are ignored, an unknown major version is refused. Structs are tagged with a short ``k``.

Three kinds of messages travel:

* control: ``Hello``, ``Welcome``, ``Refuse``, ``Ack``, ``Reject``, ``Slow``, ``CaptureOrder``, ``Bye``;
* ``HotFrame``: once a second, newest wins, never spooled, never acknowledged;
* ``Put``: spooled records of one lane, acknowledged after the server's commit.

Source of the shape: DESIGN sections 2 and 7.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from collectors.wire import limits

Name = Annotated[str, Meta(max_length=limits.NAME_MAX_CHARS)]
Text = Annotated[str, Meta(max_length=limits.TEXT_MAX_CHARS)]
Lane = Literal["urgent", "bulk"]
LANES: tuple[Lane, ...] = ("urgent", "bulk")
Severity = Literal["info", "warning", "critical", "unknown"]
CaptureWant = Literal["window", "ring", "stacks"]

PHASES = (
    "unknown",
    "startup",
    "train",
    "data_loading",
    "checkpoint",
    "evaluation",
    "compile",
    "gc",
    "teardown",
)
"""What a rank says it is doing; the index is what travels in ``HotProgress.phase``."""


class Record(msgspec.Struct, tag_field="k", omit_defaults=True, frozen=True):
    """Base of everything that travels."""


# --- who speaks ------------------------------------------------------------------------------------


class GpuIdentity(msgspec.Struct, omit_defaults=True, frozen=True):
    """One GPU of a node; ``index`` is its place on the node."""

    index: int
    uuid: Name | None = None
    serial: Name | None = None
    model: Name | None = None
    pci: Name | None = None
    nvlink_domain: Name | None = None


class RankId(msgspec.Struct, omit_defaults=True, frozen=True):
    """A rank as DESIGN 4 has it: RANK alone is not unique in elastic and RL jobs."""

    job: Name
    rank: Annotated[int, Meta(ge=0)]
    attempt: Annotated[int, Meta(ge=0)] = 0
    world: Name = ""
    role: Name = ""


class LaneNext(msgspec.Struct, frozen=True):
    """The next sequence number the sender will use in each lane."""

    urgent: int
    bulk: int


class Hello(Record, tag="hello", frozen=True):
    """First message of a connection. ``epoch`` is a random id made with the spool folder.

    ``credential`` is what a former ``Welcome`` issued; ``enrolment_token`` is needed without one.
    """

    version: str
    cluster: Name
    node: Name
    machine_id: Name
    boot_id: Name
    epoch: Name
    agent_version: Name
    t_ns: int
    next: LaneNext
    credential: Name | None = None
    enrolment_token: Name | None = None
    gpus: list[GpuIdentity] = []
    cpu_count: int | None = None
    memory_bytes: int | None = None
    simulated: bool = False
    rack: Name | None = None
    leaf: Name | None = None
    nvlink_domain: Name | None = None


class Welcome(Record, tag="welcome", frozen=True):
    """The gateway's answer: what is already stored, and the credential when it was just issued."""

    version: str
    t_ns: int
    acked: LaneNext
    """Highest committed sequence per lane of this epoch; 0 when none."""
    credential: Name | None = None


class Refuse(Record, tag="refuse", frozen=True):
    """The gateway will not talk: ``code`` is stable (``bad_version``, ``bad_credential``, ``revoked``,
    ``foreign_machine``, ``duplicate_node``, ``bad_enrolment``, ``bad_hello``, ``too_large``), ``reason`` is
    for people."""

    code: Name
    reason: Text
    retry_after_s: float | None = None


class Ack(Record, tag="ack", frozen=True):
    """All records of ``lane`` up to ``sequence`` are committed (or rejected and counted)."""

    lane: Lane
    sequence: int


class Reject(Record, tag="reject", frozen=True):
    """One record was not stored and must not be sent again."""

    lane: Lane
    sequence: int
    reason: Text


class Slow(Record, tag="slow", frozen=True):
    """Please hold ``Put`` messages of this lane for ``pause_s``; hot frames go on."""

    lane: Lane
    pause_s: float


class CaptureOrder(Record, tag="capture", frozen=True):
    """Collect ``want`` from ``ranks`` (``None``: every rank of the job on this node)."""

    capture_id: int
    job: Name
    want: list[CaptureWant]
    ranks: list[int] | None = None
    deadline_s: float = 10.0


class Bye(Record, tag="bye", frozen=True):
    """A clean stop: the close that follows is not a death."""

    reason: Text = ""


# --- once a second, newest wins ----------------------------------------------------------------------


class HotProgress(msgspec.Struct, omit_defaults=True, frozen=True):
    """Collective progress of every rank on a node, as little-endian columns.

    N ranks, M (rank, group) pairs in rank order; ``group_count[i]`` pairs belong to rank i.
    ``ref`` is the sender's number of a rank, given by its ``RankInventory``.
    """

    ref: bytes
    """uint32[N]"""
    step: bytes
    """int64[N], -1 where no step was seen yet"""
    phase: bytes
    """uint8[N], index into PHASES"""
    phase_since_ns: bytes
    """int64[N], sender's clock"""
    moved_ns: bytes
    """int64[N], sender's clock: when any number of the rank last changed"""
    heard_ns: bytes
    """int64[N], sender's clock: when the hook last spoke"""
    group_count: bytes
    """uint16[N]"""
    group_index: bytes
    """uint16[M], index into the rank's ``RankInventory.groups``"""
    enqueued: bytes
    """int64[M], last enqueued number of the recorder; on gloo it counts op ids"""
    completed: bytes
    """int64[M], last completed number of the recorder"""
    sequence: bytes
    """int64[M], collective sequence number of the group, -1 where unknown"""


class AgentCost(msgspec.Struct, omit_defaults=True, frozen=True):
    """What the agent itself uses and has lost, shown beside its data."""

    cpu_ratio: float | None = None
    rss_bytes: int | None = None
    spool_bytes: int = 0
    spool_records: int = 0
    dropped_total: int = 0
    sources: dict[str, str] = {}
    """source -> "ok" or the reason why it gives nothing"""


class HotMetrics(msgspec.Struct, frozen=True):
    """Newest values of a node: one series per GPU for GPU metrics, one for host metrics.

    Made and read by ``collectors.wire.hot_values``. A metric that is not in a frame has no new value.
    """

    layout: bytes
    """names and series of the metrics"""
    values: bytes
    """float32, all series of all metrics in the order of the layout, NaN where there is no value"""


class HotFrame(Record, tag="hot", frozen=True):
    """Latest values of a node."""

    t_ns: int
    metrics: HotMetrics | None = None
    progress: HotProgress | None = None
    agent: AgentCost | None = None


# --- spooled ------------------------------------------------------------------------------------------


class Inventory(Record, tag="inventory", frozen=True):
    """What the node is; sent at start and on change."""

    t_ns: int
    hostname: Name
    kernel: Name = ""
    os: Name = ""
    cpu_model: Name = ""
    cpu_count: int | None = None
    memory_bytes: int | None = None
    gpus: list[GpuIdentity] = []
    facts: dict[Name, Text] = {}


class GroupInfo(msgspec.Struct, omit_defaults=True, frozen=True):
    """One process group as its member sees it; made by ``group_info``, read by ``members``.

    Members are global ranks in group order: ``ranks``, or ``span`` where they lie at equal distances, as the
    groups of most layouts do. Without it every rank of a job of N would name N ranks: N * N numbers a start.
    """

    index: int
    name: Name
    desc: Name = ""
    backend: Name = ""
    ranks: list[int] = []
    recorder_id: int | None = None
    """pg_id in this process's recorder, when known; never comparable between ranks"""
    span: tuple[int, int, int] | None = None
    """first member, distance, count"""

    @property
    def members(self) -> Sequence[int]:
        """Global ranks in group order."""
        if self.span is None:
            return self.ranks
        first, step, count = self.span
        return range(first, first + step * count, step)


def group_info(
    index: int, name: str, desc: str, backend: str, members: Sequence[int], recorder_id: int | None = None
) -> GroupInfo:
    """A group in its shortest form."""
    if len(members) >= _SPAN_MIN and (step := members[1] - members[0]) > 0:
        span = (members[0], step, len(members))
        if list(members) == list(range(members[0], members[0] + step * len(members), step)):
            return GroupInfo(index, name, desc, backend, [], recorder_id, span)
    return GroupInfo(index, name, desc, backend, list(members), recorder_id)


_SPAN_MIN = 4


class RankInventory(Record, tag="rank_inventory", frozen=True):
    """A training process said hello to the agent, or its groups changed."""

    t_ns: int
    ref: int
    id: RankId
    pid: int
    host: Name
    world_size: int
    local_rank: int | None = None
    gpu_index: int | None = None
    gpu_uuid: Name | None = None
    started_ns: int | None = None
    torch_version: Name = ""
    backend: Name = ""
    command: Text = ""
    groups: list[GroupInfo] = []
    blind: list[Name] = []
    """what the hook cannot see in this process, in words (``p2p on gloo``, ``unknown torch version``)"""
    job_name: Name = ""
    user: Name = ""
    labels: dict[Name, Name] = {}


class ExceptionInfo(msgspec.Struct, omit_defaults=True, frozen=True):
    """The exception that ended (or will end) a rank, as its own process saw it."""

    type: Name
    message: Text
    traceback: Text
    t_ns: int


class RankExit(Record, tag="rank_exit", frozen=True):
    """A training process is gone: time by pidfd, status as far as a non-parent can know it.

    ``exit_code`` and ``signal`` come from ``clusterwatch-run`` (the parent) where it ran the process,
    else they stay None.
    """

    t_ns: int
    ref: int
    id: RankId
    pid: int
    exit_code: int | None = None
    signal: int | None = None
    exception: ExceptionInfo | None = None
    clean: bool | None = None
    """the hook saw the interpreter finish normally"""


class PhaseChange(Record, tag="phase", frozen=True):
    """A rank entered ``phase`` at ``t_ns``; ``before`` lasted ``before_s``."""

    t_ns: int
    id: RankId
    phase: Name
    before: Name
    before_s: float
    detail: Text = ""


class Steps(Record, tag="steps", frozen=True):
    """Steps one rank finished, columns of equal length."""

    t_ns: int
    id: RankId
    step: list[int]
    end_ns: list[int]
    duration_s: list[float]
    data_wait_s: list[float | None]
    checkpoint_s: list[float | None]
    gc_s: list[float | None]
    cpu_s: list[float | None]


class Trace(Record, tag="trace", frozen=True):
    """A recorder ring of one rank: ``columns`` is ``collectors.formats.columns.pack`` output."""

    t_ns: int
    id: RankId
    pid: int
    capture_id: int | None
    want: CaptureWant
    recorder: Name
    """``nccl`` or ``generic``"""
    columns: bytes


class ThreadStack(msgspec.Struct, omit_defaults=True, frozen=True):
    """One thread; ``frames`` outermost first, each ``function (file:line)``."""

    name: Name
    frames: list[Text]
    main: bool = False
    native: bool = False
    state: Name = ""


class Stacks(Record, tag="stacks", frozen=True):
    """Stacks of one process, by the hook or by py-spy from outside."""

    t_ns: int
    id: RankId
    pid: int
    capture_id: int | None
    source: Name
    threads: list[ThreadStack]
    error: Text = ""
    process_state: Name = ""
    """state letter of /proc/PID/stat (R, S, D, T, Z) when it was taken"""
    wchan: Name = ""


class CaptureDone(Record, tag="capture_done", frozen=True):
    """The node has sent everything it will send for a capture."""

    t_ns: int
    capture_id: int
    answered: list[int]
    silent: dict[str, Text]
    """rank -> why it gave nothing"""


class Event(Record, tag="event", frozen=True):
    """Something happened; ``kind`` is a stable word, ``text`` is for people."""

    t_ns: int
    source: Name
    kind: Name
    severity: Severity
    text: Text
    fields: dict[Name, Text] = {}
    id: RankId | None = None


class BlockMetric(msgspec.Struct, omit_defaults=True, frozen=True):
    """One metric of a block: ``series`` values of ``samples`` seconds each, resolution in ``unit``."""

    name: Name
    unit: Name
    resolution: float
    series: int
    samples: int


class Block(Record, tag="block", frozen=True):
    """One wall minute of a node: ``data`` is ``codec`` compressed, rows in the order of ``metrics``.

    Per metric: int64 multiples of ``resolution``, delta per series, zigzag, byte shuffle; zstd over all
    with a frame checksum. A missing second is the value ``MISSING`` of ``collectors.wire.blocks``.
    ``rollup``: four planes of little-endian float32, min, mean, max, last, each over all series of all
    metrics in the order of ``metrics``; NaN where a series has no sample.
    """

    minute_ns: int
    codec: Name
    metrics: list[BlockMetric]
    data: bytes
    rollup: bytes

    @property
    def t_ns(self) -> int:
        return self.minute_ns


class Readings(Record, tag="readings", frozen=True):
    """Everything a node knew of its parts at ``t_ns``: state, not history, so the newest one replaces all.

    ``data`` is made and read by ``collectors.wire.readings``.
    """

    t_ns: int
    codec: Name
    data: bytes


class Dropped(Record, tag="dropped", frozen=True):
    """The spool had to let records go; counted by what they were and why."""

    t_ns: int
    lane: Lane
    counts: dict[str, int]
    reason: Text
    first_sequence: int | None = None
    last_sequence: int | None = None


Spooled = (
    Inventory
    | RankInventory
    | RankExit
    | PhaseChange
    | Steps
    | Trace
    | Stacks
    | CaptureDone
    | Event
    | Block
    | Readings
    | Dropped
)
"""What may travel inside a ``Put``."""

LANE_OF: dict[str, Lane] = {
    "inventory": "urgent",
    "rank_inventory": "urgent",
    "rank_exit": "urgent",
    "phase": "urgent",
    "trace": "urgent",
    "stacks": "urgent",
    "capture_done": "urgent",
    "event": "urgent",
    "dropped": "urgent",
    "steps": "bulk",
    "block": "bulk",
    "readings": "bulk",
}


class PutItem(msgspec.Struct, frozen=True, array_like=True):
    """One spooled record: ``payload`` is the encoded record exactly as it lies in the spool."""

    sequence: int
    payload: bytes


class Put(Record, tag="put", frozen=True):
    """Records of one lane, sequences rising; a gap means the sender dropped (and reported) records."""

    lane: Lane
    items: list[PutItem]


FromNode = Hello | HotFrame | Put | Bye
FromGateway = Welcome | Refuse | Ack | Reject | Slow | CaptureOrder
