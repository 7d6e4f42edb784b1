"""What the nodes of ``bench ingest`` say: hellos, training processes, hot frames and blocks, made beforehand.

A dozen jobs of equal size fill the cluster; each rank is in eight groups, as tensor, pipeline, data, context
and expert parallel training has them. Values are random within the width of the catalogue's metrics.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from typing import Final
from urllib.parse import urlsplit

import msgspec
import numpy as np
import zstandard
from numpy.typing import NDArray

from collectors.wire import blocks, codec, hot_values, records
from collectors.wire.metrics import GPU_METRICS

GPUS: Final = 8
JOBS: Final = 12
CLUSTER: Final = "bench"
METRICS: Final = GPU_METRICS[:20]
SECONDS: Final = 60
MINUTE_NS: Final = 60_000_000_000
_STRIDES: Final = (
    ("tp", 1, 8),
    ("cp", 8, 2),
    ("pp", 16, 8),
    ("ep", 1, 16),
    ("dp", 128, 4),
    ("embd", 16, 8),
    ("mp", 1, 64),
)
"""(description, distance between members, members) of the groups beside the job's own"""


PERIOD_S: Final = 12
"""Blocks and none in turn, so long each: other costs drift more slowly than that."""


class Plan(msgspec.Struct, frozen=True):
    """What the load process is told."""

    url: str
    token: str
    nodes: int
    seconds: int
    block_seconds: int
    """of these, how many at the beginning in which blocks are sent too; then in every second period only"""

    def has_blocks(self, second: float) -> bool:
        """Whether blocks are sent at this moment of the run."""
        return second < self.block_seconds or int((second - self.block_seconds) // PERIOD_S) % 2 == 1

    @property
    def address(self) -> tuple[str, int]:
        parts = urlsplit(self.url)
        return parts.hostname or "127.0.0.1", parts.port or 80

    @property
    def job_nodes(self) -> int:
        """Nodes of each job; the last nodes of a cluster that is no multiple stay idle."""
        return max(1, self.nodes // JOBS)


def hello(plan: Plan, number: int) -> records.Hello:
    """The first message of a node."""
    gpus = [records.GpuIdentity(gpu, uuid=f"GPU-{number:05d}-{gpu}") for gpu in range(GPUS)]
    return records.Hello(
        version=codec.VERSION, cluster=CLUSTER, node=f"n{number:05d}", machine_id=f"machine-{number}",
        boot_id="bench", epoch=f"epoch-{number}", agent_version="bench", t_ns=time.time_ns(),
        next=records.LaneNext(1, 1), enrolment_token=plan.token, gpus=gpus, cpu_count=192,
        memory_bytes=2 * 2**40, simulated=True, rack=f"r{number // 8:04d}",
    )  # fmt: skip


def inventories(plan: Plan, number: int) -> Iterator[records.RankInventory]:
    """The training processes of a node."""
    job, place = divmod(number, plan.job_nodes)
    if job >= JOBS:
        return
    size = plan.job_nodes * GPUS
    for gpu in range(GPUS):
        rank = place * GPUS + gpu
        yield records.RankInventory(
            t_ns=time.time_ns(), ref=gpu, id=records.RankId(job=f"bench-{job}", rank=rank), pid=1000 + gpu,
            host=f"n{number:05d}", world_size=size, local_rank=gpu, gpu_index=gpu, backend="nccl",
            groups=list(_groups(rank, size)),
        )  # fmt: skip


def _groups(rank: int, size: int) -> Iterator[records.GroupInfo]:
    yield records.group_info(0, "0", "default_pg", "nccl", range(size))
    for index, (desc, stride, count) in enumerate(_STRIDES, 1):
        first = rank // (stride * count) * stride * count + rank % stride
        members = range(first, min(size, first + stride * count), stride)
        yield records.group_info(index, f"{desc}{first}", desc, "nccl", members)


class Frames:
    """One hot frame per node, ready for the socket; a second changes only the bytes of its numbers."""

    def __init__(self, nodes: int) -> None:
        payload, marks = _template()
        head = bytes([0x82, 0xFE]) + struct.pack("!H", len(payload)) + bytes(4)  # masked with zeros
        self._rows = np.tile(np.frombuffer(head + payload, np.uint8), (nodes, 1))
        self._at = {name: len(head) + place for name, place in marks.items()}
        values = np.random.default_rng(1).uniform(1, 700, (nodes, len(METRICS) * GPUS)).astype("<f4")
        self._put("values", slice(None), values)
        self._count = 0

    def _put(self, name: str, rows: slice, numbers: NDArray[np.generic]) -> None:
        at = self._at[name]
        raw = np.ascontiguousarray(numbers).view(np.uint8)
        self._rows[rows, at : at + raw.shape[-1]] = raw

    def renew(self, rows: slice, now_ns: int) -> None:
        """The next second of some nodes: time, steps and calls move on, a metric changes."""
        self._count += 1
        self._put("t_ns", rows, np.array([now_ns], ">i8"))
        self._put("step", rows, np.full(GPUS, now_ns // 1_000_000, "<i8"))
        for name in ("moved_ns", "heard_ns"):
            self._put(name, rows, np.full(GPUS, now_ns, "<i8"))
        calls = np.full(GPUS * (1 + len(_STRIDES)), self._count, "<i8")
        for name in ("enqueued", "completed", "sequence"):
            self._put(name, rows, calls)
        self._put("values", rows, np.full(GPUS, 300 + self._count % 400, "<f4"))

    def of(self, number: int) -> bytes:
        return bytes(self._rows[number])


def _template() -> tuple[bytes, dict[str, int]]:
    """An encoded frame and where its numbers lie."""
    pairs = GPUS * (1 + len(_STRIDES))
    random = np.random.default_rng(2)
    columns = {name: random.bytes(8 * GPUS) for name in ("step", "phase_since_ns", "moved_ns", "heard_ns")}
    columns |= {name: random.bytes(8 * pairs) for name in ("enqueued", "completed", "sequence")}
    progress = records.HotProgress(
        ref=struct.pack(f"<{GPUS}I", *range(GPUS)), phase=bytes([2]) * GPUS,
        group_count=struct.pack(f"<{GPUS}H", *[1 + len(_STRIDES)] * GPUS),
        group_index=struct.pack(f"<{pairs}H", *list(range(1 + len(_STRIDES))) * GPUS), **columns,
    )  # fmt: skip
    layout = tuple((metric.name, GPUS) for metric in METRICS)
    values = random.bytes(hot_values.VALUE_BYTES * GPUS * len(METRICS))
    t_ns = time.time_ns()
    frame = records.HotFrame(
        t_ns, records.HotMetrics(hot_values.layout_bytes(layout), values), progress,
        records.AgentCost(cpu_ratio=0.001, rss_bytes=40_000_000, sources={"bench": "ok"}),
    )  # fmt: skip
    payload = codec.encode(frame)
    marks = columns | {"values": values, "t_ns": struct.pack(">q", t_ns)}
    return payload, {name: payload.index(mark) for name, mark in marks.items()}


class Blocks:
    """A minute of a node; all nodes send the same values under their own numbers."""

    def __init__(self) -> None:
        random = np.random.default_rng(3)
        self._headers = [
            records.BlockMetric(metric.name, metric.unit, metric.resolution, GPUS, SECONDS)
            for metric in METRICS
        ]
        steps = random.integers(-3, 4, (len(METRICS), GPUS, SECONDS)).cumsum(axis=2) + 1_000
        deltas = np.diff(steps, axis=2, prepend=0)
        zigzag = ((deltas << 1) ^ (deltas >> 63)).astype("<i8")
        shuffled = zigzag.view(np.uint8).reshape(len(METRICS), -1, 8).transpose(0, 2, 1)
        self._data = zstandard.ZstdCompressor(level=3, write_checksum=True).compress(shuffled.tobytes())
        scaled = steps * np.array([metric.resolution for metric in METRICS])[:, None, None]
        planes = [scaled.min(axis=2), scaled.mean(axis=2), scaled.max(axis=2), scaled[..., -1]]
        self._rollup = np.stack(planes).astype("<f4").tobytes()
        self._sequence: dict[int, int] = {}

    def next(self, number: int) -> tuple[bytes, int]:
        """The payload of the minute that just ended and its number in the lane."""
        sequence = self._sequence[number] = self._sequence.get(number, 0) + 1
        minute_ns = time.time_ns() // MINUTE_NS * MINUTE_NS - MINUTE_NS
        block = records.Block(minute_ns, blocks.CODEC, self._headers, self._data, self._rollup)
        return codec.encode(block), sequence
