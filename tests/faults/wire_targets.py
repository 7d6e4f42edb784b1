"""Everything that reads bytes from a node or from a gateway, as targets of mutants.

A target takes bytes and returns whether they were accepted. It may refuse them with the error its callers
expect; any other exception is a fault, and so is something accepted that cannot be read afterwards. Importing
this module needs Django's settings.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from clusterwatch.ingest import checks
from clusterwatch.ingest.admission import Admission, Refused, check_hello
from clusterwatch.ingest.apply import Origin
from clusterwatch.ingest.board import Board, MalformedFrame
from clusterwatch.ingest.hot_arrays import JobArrays
from clusterwatch.ingest.slot_values import SlotValues
from clusterwatch.store import block_arrays
from collectors import minute, segment
from collectors.formats import columns as trace_format
from collectors.formats.trace import TraceGroup
from collectors.wire import blocks, codec, hot_values, readings, records
from collectors.wire.codec import WireError
from tests.collectors.wire import samples

NOW_NS: Final = samples.T_NS + 10**9
SLOTS: Final = (0, 1)
RETENTION_NS: Final = dict.fromkeys(records.LANE_OF, 10**18)


class Broken(AssertionError):
    """Something was accepted that contradicts itself."""


@dataclass(frozen=True)
class Target:
    """One reader of foreign bytes."""

    name: str
    samples: Sequence[bytes]
    take: Callable[[bytes], bool]
    """true: accepted; false: refused with words"""
    refusals: tuple[type[Exception], ...] = ()
    """errors that refuse; they count like false"""

    def accepts(self, data: bytes) -> bool:
        """Raises what must not happen."""
        try:
            return self.take(data)
        except self.refusals:
            return False


# --- samples ---------------------------------------------------------------------------------------------


def sound_messages() -> dict[str, bytes]:
    """One message of each kind as it travels, all of them acceptable."""
    sound = samples.messages()
    sound["block"] = samples.block(blocks.encode(samples.METRICS, samples.COLUMNS))
    table = readings.pack(samples.TABLE)
    for name in ("readings", "device_readings"):
        sound[name] = msgspec.structs.replace(sound[name], data=table)
    sound["trace"] = msgspec.structs.replace(sound["trace"], columns=trace_format.pack(_trace()))
    sound["put"] = records.Put(
        lane="urgent",
        items=[records.PutItem(n, codec.encode(sound[kind])) for n, kind in enumerate(("event", "trace"), 7)],
    )
    return {name: codec.encode(message) for name, message in sound.items()}


def _trace() -> trace_format.TraceColumns:
    """Two calls of one group of 64 ranks."""
    entries = trace_format.Entries()
    for name, values in {
        "record_id": (0, 1), "group": (0, 0), "sequence": (1, 2), "p2p_sequence": (0, 0), "op_id": (1, 2),
        "signature": (0, 0), "stack": (0, 0), "state": (2, 0), "retired": (1, 0),
        "created_ns": (samples.T_NS, samples.T_NS + 9), "started_ns": (-1, -1), "completed_ns": (-1, -1),
        "duration_ns": (-1, -1), "timeout_ms": (600_000, 600_000),
    }.items():  # fmt: skip
        getattr(entries, name).extend(values)
    group = TraceGroup("0", "default_pg", tuple(range(64)))
    call = trace_format.Signature("all_reduce", False, ((4, 4),), ((4, 4),), ("Float",), ("Float",))
    return trace_format.TraceColumns(
        samples.RANK.rank, "2.10", "nccl", (group,), (call,), (("step (train.py:7)",),), entries
    )


def minute_file() -> bytes:
    """Two seconds as an agent writes them."""
    contents: list[object] = [{"specs": [("host_cpu_ratio", "ratio", 0.0001)]}]
    for second in range(2):
        values = {"host_cpu_ratio": [0.25]}
        contents.append({"t_ns": samples.MINUTE_NS + second * 10**9, "values": values})
    return b"".join(segment.frame(n, msgspec.msgpack.encode(one)) for n, one in enumerate(contents, 1))


# --- readers ---------------------------------------------------------------------------------------------


def take_from_node(data: bytes) -> bool:
    """What a gateway does with one websocket message."""
    message = codec.decode_from_node(data)
    if isinstance(message, records.Hello):
        check_hello(message)
    elif isinstance(message, records.HotFrame):
        beside_another(message)
    elif isinstance(message, records.Put):
        for item in message.items:
            take_record(message.lane, item.payload)
    return True


def take_from_gateway(data: bytes) -> bool:
    codec.decode_from_gateway(data)
    return True


def take_record(lane: records.Lane, data: bytes) -> bool:
    """A spooled record; what is refused has words, what is accepted can be read."""
    checked = checks.check(lane, 1, data, NOW_NS, RETENTION_NS)
    if checked.record is None:
        if not (checked.expired or checked.reason):
            raise Broken("refused without a word")
        return False
    if isinstance(checked.record, records.Block):
        read_block(checked.record)
    return True


def read_block(block: records.Block) -> None:
    """An accepted block decodes, and to the same numbers for both readers. Raises ``Broken``."""
    blocks.verify(block)
    plain = blocks.decode(block.metrics, block.data)
    layout = block_arrays.Layout.of(block.metrics)
    stack, sound = block_arrays.decompress(layout, [block.data])
    if not sound.all():
        raise Broken("accepted, and unreadable for queries")
    with np.errstate(over="ignore"):  # a mutant's resolution may make any number infinite
        fast = block_arrays.values(layout, stack, sound, range(len(block.metrics)), slice(None))
        for metric, column in zip(block.metrics, plain, strict=True):
            _check_equal(metric, column, fast[metric.name])


def _check_equal(metric: records.BlockMetric, plain: array[int], fast: NDArray[np.float64]) -> None:
    multiples = np.frombuffer(plain, np.int64)
    expected = np.where(multiples == blocks.MISSING, np.nan, multiples * metric.resolution)
    if not np.array_equal(fast[0].ravel(), expected, equal_nan=True):
        raise Broken(f"two readers of {metric.name} disagree")


def take_hot_metrics(data: bytes) -> bool:
    """The columns of a hot frame alone: (layout, values)."""
    layout, values = msgspec.msgpack.decode(data, type=tuple[bytes, bytes])
    hot_values.unpack(records.HotMetrics(layout, values))
    return True


def beside_another(frame: records.HotFrame) -> None:
    """A frame among those of a sound node, through to the arrays; the other's must come out as if alone."""
    sound = codec.decode_from_node(sound_messages()["hot"])
    assert isinstance(sound, records.HotFrame)
    board = Board()
    for node_id in (1, 2):
        board.opened(_admission(node_id), NOW_NS)
    board.take(1, sound, NOW_NS)
    try:
        board.take(2, frame, NOW_NS)
    finally:
        _check_untouched(board)


def _admission(node_id: int) -> Admission:
    origin = Origin("alpha", f"n{node_id}", "epoch", 1, node_id)
    slots = tuple(slot + len(SLOTS) * (node_id - 1) for slot in SLOTS)
    return Admission(origin, slots, records.LaneNext(0, 0), None)


def _check_untouched(board: Board) -> None:
    """Makes what is written to hot state; the first node's part must be what it sent."""
    snapshot = board.collect(NOW_NS)
    JobArrays().build(snapshot.progress)
    kept = SlotValues()
    for frames in snapshot.values.values():
        kept.take(frames, NOW_NS)
    power = kept.renewed()["power_w"].values
    if power[0] != 650.0 or not np.isnan(power[1]):
        raise Broken("a frame changed a value of another node")
    kept.tail(SLOTS)


def take_minute_file(data: bytes) -> bool:
    """An agent's open minute after a crash of its disk."""
    block = minute.build(samples.MINUTE_NS, data)
    if block is None:
        return False
    blocks.verify(block)
    return True


def targets() -> list[Target]:
    """All of them."""
    sound = sound_messages()
    from_gateway = [sound[name] for name in ("welcome", "refuse", "ack", "reject", "slow", "capture")]
    from_node = [sound[name] for name in ("hello", "hot", "put", "bye")]
    spooled = {
        lane: [data for name, data in sound.items() if records.LANE_OF.get(name) == lane]
        for lane in records.LANES
    }
    hot_frame = codec.decode_from_node(sound["hot"])
    assert isinstance(hot_frame, records.HotFrame) and hot_frame.metrics is not None
    columns = msgspec.msgpack.encode((hot_frame.metrics.layout, hot_frame.metrics.values))
    return [
        Target("message of a node", from_node, take_from_node, (WireError, Refused, MalformedFrame)),
        Target("message of a gateway", from_gateway, take_from_gateway, (WireError,)),
        *(Target(f"{lane} record", spooled[lane], partial(take_record, lane)) for lane in records.LANES),
        Target("block", [sound["block"]], partial(take_record, "bulk")),
        Target("trace", [sound["trace"]], partial(take_record, "urgent")),
        Target("hot frame", [sound["hot"]], take_from_node, (WireError, MalformedFrame, Refused)),
        Target("hot columns", [columns], take_hot_metrics, (WireError, msgspec.MsgspecError)),
        Target("minute file", [minute_file()], take_minute_file),
    ]
