"""The newest values of a node, once a second: newest wins, never spooled, never acknowledged."""

from __future__ import annotations

import msgspec

from collectors.wire.base import Record


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
