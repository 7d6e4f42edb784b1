"""Wire v1 records: every message between a node and a gateway.

Times are integer ns UTC of the sender's clock (``t_ns``). ``None`` means "not known", never 0 or -1.
Unknown fields are ignored, an unknown major version is refused. Structs are tagged with a short ``k``.

Three kinds of messages travel; the spooled ones are here and in ``ranks``, the others in ``control`` and
``hot``; all may be had from here:

* control: ``Hello``, ``Welcome``, ``Refuse``, ``Ack``, ``Reject``, ``Slow``, ``CaptureOrder``, ``Bye``;
* ``HotFrame``: once a second, newest wins, never spooled, never acknowledged;
* ``Put``: spooled records of one lane, acknowledged after the server's commit.

Source of the shape: DESIGN sections 2 and 7.
"""

from __future__ import annotations

import msgspec

from collectors.wire.base import (
    LANES,
    PHASES,
    CaptureWant,
    GpuIdentity,
    Lane,
    Name,
    RankId,
    Record,
    Severity,
    Text,
)
from collectors.wire.control import (
    Ack,
    Bye,
    CaptureOrder,
    Hello,
    LaneNext,
    Refuse,
    Reject,
    Slow,
    Welcome,
)
from collectors.wire.hot import AgentCost, HotFrame, HotMetrics, HotProgress
from collectors.wire.ranks import (
    Edges,
    ExceptionInfo,
    GroupInfo,
    PhaseChange,
    RankExit,
    RankInventory,
    Steps,
    group_info,
)

__all__ = [
    "LANES",
    "LANE_OF",
    "PHASES",
    "Ack",
    "AgentCost",
    "Block",
    "BlockMetric",
    "Bye",
    "CaptureDone",
    "CaptureOrder",
    "CaptureWant",
    "DeviceReadings",
    "Dropped",
    "Edges",
    "Event",
    "ExceptionInfo",
    "FromGateway",
    "FromNode",
    "GpuIdentity",
    "GroupInfo",
    "Hello",
    "HotFrame",
    "HotMetrics",
    "HotProgress",
    "Inventory",
    "Lane",
    "LaneNext",
    "Name",
    "PhaseChange",
    "Put",
    "PutItem",
    "RankExit",
    "RankId",
    "RankInventory",
    "Readings",
    "Record",
    "Refuse",
    "Reject",
    "Severity",
    "Slow",
    "Spooled",
    "Stacks",
    "Steps",
    "Text",
    "ThreadStack",
    "Trace",
    "Welcome",
    "group_info",
]


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


class DeviceReadings(Record, tag="device_readings", frozen=True):
    """Everything that one device (a switch, a BMC, a rack's power) told at ``t_ns``: state, as ``Readings``.

    A poller asks a device from a node that it does not belong to; the record travels as one of that node.
    """

    t_ns: int
    kind: Name
    """switch, bmc, rack, scheduler, fabric or kubernetes"""
    device: Name
    """as the site calls it; unique within its kind and cluster"""
    poller: Name
    state: Text
    """``ok``, or why it gave nothing"""
    codec: Name
    data: bytes
    """made and read by ``collectors.wire.readings``"""
    node: Name = ""
    """the host that the device belongs to, if it belongs to one"""


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
    | Edges
    | Trace
    | Stacks
    | CaptureDone
    | Event
    | Block
    | Readings
    | DeviceReadings
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
    "edges": "bulk",
    "block": "bulk",
    "readings": "bulk",
    "device_readings": "bulk",
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
