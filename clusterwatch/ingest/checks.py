"""Decides about each record from a node: storable, expired, or rejected with a reason. Pure, no I/O.

Everything from a node is untrusted: names hold no control or direction characters, numbers fit their
columns, times lie between retention and ``CLOCK_AHEAD_MAX_S``, parts unpack within bounds.
"""

from __future__ import annotations

import logging
import math
import operator
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import msgspec
import numpy as np

from clusterwatch.store.block_shapes import Shape, shape_of
from collectors.formats import columns as trace_format
from collectors.formats.trace import TraceError
from collectors.wire import blocks, codec, limits, readings, records

logger = logging.getLogger(__name__)

_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
"""Never in a name: they would forge lines in logs and reorder text on a page."""
_UNPRINTABLE: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Replaced in free text, which keeps its line breaks and tabs."""
_TEXT_FIELDS: Final = frozenset(
    {
        "text",
        "message",
        "traceback",
        "detail",
        "command",
        "error",
        "reason",
        "frames",
        "facts",
        "fields",
        "silent",
    }
)
_INT4_FIELDS: Final = frozenset(
    {"rank", "attempt", "world_size", "local_rank", "pid", "exit_code", "signal", "cpu_count", "samples"}
)
_INT8_MAX: Final = 2**63 - 1
_INT4_MAX: Final = 2**31 - 1
GPU_INDEX_MAX: Final = 1_023
DEVICE_KINDS: Final = frozenset({"switch", "bmc", "rack", "scheduler", "fabric", "kubernetes"})
MEMBERS_MAX: Final = 524_288
"""Of all groups of one rank together."""


class Rejected(ValueError):
    """The record cannot be stored; the text says why."""


@dataclass(frozen=True, slots=True)
class Checked:
    """One record after its check: exactly one of a record, a reason, or expired."""

    sequence: int
    size_bytes: int
    record: records.Spooled | None = None
    reason: str = ""
    expired: bool = False


def check(
    lane: records.Lane, sequence: int, payload: bytes, now_ns: int, retention_ns: Mapping[str, int]
) -> Checked:
    """Decodes and checks one record.

    Args:
        retention_ns: how long each kind (tag of the record) is kept.
    """
    size = len(payload)
    try:
        record = codec.decode_record(payload)
        tag = record.__struct_config__.tag
        if records.LANE_OF[str(tag)] != lane:
            raise Rejected(f"a {tag} does not belong into the lane {lane}")
        if _is_expired(record.t_ns, now_ns, retention_ns.get(str(tag), _INT8_MAX)):
            return Checked(sequence, size, expired=True)
        return Checked(sequence, size, record=_check_content(record))
    except (codec.WireError, Rejected, blocks.BlockError, TraceError) as error:
        return Checked(sequence, size, reason=str(error)[:500])
    except Exception as error:  # noqa: BLE001  one record must not end the thread that stores everybody's
        logger.exception("check_fault sequence=%d", sequence)
        return Checked(sequence, size, reason=f"the gateway failed to check it: {type(error).__name__}")


def check_name(field: str, name: str) -> None:
    """Raises ``Rejected`` for a name nobody should ever see on a page or in a log."""
    if _CONTROL.search(name):
        raise Rejected(f"{field} holds control characters")


def _is_expired(t_ns: int, now_ns: int, retention_ns: int) -> bool:
    if not 0 < t_ns <= _INT8_MAX:
        raise Rejected("a time that is no time")
    ahead_s = (t_ns - now_ns) / 1e9
    if ahead_s > limits.CLOCK_AHEAD_MAX_S:
        raise Rejected(f"its time is {ahead_s:.0f} s in the future: check the node's clock")
    return now_ns - t_ns > retention_ns


def _check_content(record: records.Spooled) -> records.Spooled:
    if isinstance(record, records.Block):
        _check_block(record)
        return record
    clean: records.Spooled = _cleaned("record", record)
    checker = _CHECKERS.get(type(clean))
    if checker is not None:
        checker(clean)
    return clean


def _cleaned(field: str, value: Any) -> Any:
    """The value with its free texts made printable; raises on a bad name or a number out of range."""
    if isinstance(value, str):
        if field in _TEXT_FIELDS:
            return _UNPRINTABLE.sub("\ufffd", value)
        check_name(field, value)
    elif isinstance(value, bool) or value is None or isinstance(value, bytes):
        pass
    elif isinstance(value, int):
        _check_integer(field, value)
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise Rejected(f"{field} is not a finite number")
    elif isinstance(value, msgspec.Struct):
        return _cleaned_struct(value)
    elif isinstance(value, dict):
        for key in value:
            check_name(f"a key of {field}", key)
        clean_dict = {key: _cleaned(field, part) for key, part in value.items()}
        return value if all(clean_dict[key] is value[key] for key in value) else clean_dict
    elif isinstance(value, list):
        clean_list = [_cleaned(field, part) for part in value]
        return value if all(map(operator.is_, clean_list, value)) else clean_list
    return value


def _cleaned_struct(value: msgspec.Struct) -> msgspec.Struct:
    changes = {}
    for name in value.__struct_fields__:
        before = getattr(value, name)
        after = _cleaned(name, before)
        if after is not before:
            changes[name] = after
    return msgspec.structs.replace(value, **changes) if changes else value


def _check_integer(field: str, value: int) -> None:
    largest = _INT4_MAX if field in _INT4_FIELDS else _INT8_MAX
    if not -largest <= value <= largest:
        raise Rejected(f"{field} is out of range")


# --- per kind ----------------------------------------------------------------------------------------------


def _check_rank_inventory(record: records.RankInventory) -> None:
    if record.pid < 0 or record.world_size < 1 or record.ref < 0:
        raise Rejected("a rank with an impossible pid, ref or world size")
    if record.gpu_index is not None and not 0 <= record.gpu_index <= GPU_INDEX_MAX:
        raise Rejected("gpu_index is out of range")
    if record.local_rank is not None and record.local_rank < 0:
        raise Rejected("local_rank is negative")
    if len(record.groups) > limits.GROUPS_PER_RANK_MAX:
        raise Rejected(f"{len(record.groups)} groups, the limit is {limits.GROUPS_PER_RANK_MAX}")
    indices = {group.index for group in record.groups}
    if len(indices) != len(record.groups) or not all(0 <= i < limits.GROUPS_PER_RANK_MAX for i in indices):
        raise Rejected("group indices repeat or are out of range")
    for group in record.groups:
        if group.span is not None:
            _check_span(group.span, record.world_size, group.name)
        elif any(not 0 <= rank <= _INT4_MAX for rank in group.ranks):
            raise Rejected(f"group {group.name} has an impossible member")
    if sum(len(group.members) for group in record.groups) > MEMBERS_MAX:
        raise Rejected(f"groups of more than {MEMBERS_MAX} members in all")


def _check_span(span: tuple[int, int, int], world_size: int, name: str) -> None:
    """Few bytes must not stand for more members than the job has."""
    first, step, count = span
    if not (0 <= first <= _INT4_MAX and 0 < step <= _INT4_MAX and 0 < count <= world_size):
        raise Rejected(f"group {name} has an impossible member")
    if first + step * (count - 1) > _INT4_MAX:
        raise Rejected(f"group {name} has an impossible member")


def _check_steps(record: records.Steps) -> None:
    rows = len(record.step)
    columns = (
        record.end_ns, record.duration_s, record.data_wait_s, record.checkpoint_s, record.gc_s, record.cpu_s,
    )  # fmt: skip
    if any(len(column) != rows for column in columns):
        raise Rejected("step columns of unequal length")
    if any(column and len(column) != rows for column in (record.wait_s, record.late_launch)):
        raise Rejected("step columns of unequal length")
    if any(duration < 0 for duration in record.duration_s):
        raise Rejected("a step of negative length")
    if any(wait is not None and not 0 <= wait <= limits.STEP_WAIT_MAX_S for wait in record.wait_s):
        raise Rejected("a step that waits for less than nothing, or for more than a day")
    if any(share is not None and not 0 <= share <= 1 for share in record.late_launch):
        raise Rejected("a share of late launches that is no share")


def _check_edges(record: records.Edges) -> None:
    rows = len(record.step)
    numbers = (record.group, record.op, record.size_bytes, record.count)
    seconds = (record.sum_s, record.min_s, record.p10_s, record.p50_s)
    if any(len(column) != rows for column in (*numbers, *seconds)):
        raise Rejected("edge columns of unequal length")
    if len(record.ops) > limits.EDGE_OPS_MAX or len(set(record.ops)) != len(record.ops):
        raise Rejected(f"more than {limits.EDGE_OPS_MAX} operations, or one twice")
    if any(not 0 <= op < len(record.ops) for op in record.op):
        raise Rejected("an edge of an operation that is not told")
    if any(not 0 <= group < limits.GROUPS_PER_RANK_MAX for group in record.group):
        raise Rejected("an edge of an impossible group")
    if any(not 0 <= size <= limits.EDGE_SIZE_MAX_BYTES for size in record.size_bytes):
        raise Rejected("an edge of an impossible size")
    if any(not 0 < count <= _INT4_MAX for count in record.count):
        raise Rejected("an edge of no calls, or of too many")
    if any(not 0 <= taken <= limits.STEP_WAIT_MAX_S for column in seconds for taken in column):
        raise Rejected("an edge that takes less than nothing, or more than a day")


def _check_block(record: records.Block) -> None:
    """A fleet sends 51 blocks a second: headers are looked at once, rollups by numpy, values not at all."""
    blocks.verify_frame(record)
    shape = _sound_shape(tuple(record.metrics))
    blocks.decompress(record.data, shape.expected_bytes)
    if len(record.rollup) != 4 * blocks.ROLLUP_PARTS * shape.series_count:
        raise Rejected("the rollup does not fit the header")
    low, mean, high, last = np.frombuffer(record.rollup, "<f4").reshape(blocks.ROLLUP_PARTS, -1)
    slack = np.float32(blocks.FLOAT32_SLACK) * np.maximum(np.abs(low), np.abs(high))
    with np.errstate(over="ignore", invalid="ignore"):  # a sum beyond float32 is infinite: that compares well
        sane = (low - slack <= mean) & (mean <= high + slack) & (low <= last) & (last <= high)
    sane &= np.isfinite(low) & np.isfinite(high)
    if not sane.all():
        unknown = np.isnan(low) & np.isnan(mean) & np.isnan(high) & np.isnan(last)
        if not (sane | unknown).all():
            raise Rejected("the rollup holds impossible numbers")


@lru_cache(maxsize=4_096)
def _sound_shape(metrics: tuple[records.BlockMetric, ...]) -> Shape:
    """The shape of a header whose names may be shown; raises on any other."""
    for metric in metrics:
        check_name("a metric", metric.name)
        check_name("a unit", metric.unit)
    return shape_of(metrics)


def _check_trace(record: records.Trace) -> None:
    if record.recorder not in ("nccl", "generic"):
        raise Rejected(f"unknown recorder {record.recorder}")
    found = trace_format.unpack(record.columns)
    if found.rank != record.id.rank:
        raise Rejected(f"the columns are those of rank {found.rank}, not of rank {record.id.rank}")


def _check_stacks(record: records.Stacks) -> None:
    if any(len(thread.frames) > limits.FRAMES_PER_STACK_MAX for thread in record.threads):
        raise Rejected(f"a stack of more than {limits.FRAMES_PER_STACK_MAX} frames")


def _check_readings(record: records.Readings | records.DeviceReadings) -> None:
    if record.codec != readings.CODEC:
        raise Rejected(f"unknown codec {record.codec} of readings")
    readings.unpack(record.data)


def _check_device_readings(record: records.DeviceReadings) -> None:
    if record.kind not in DEVICE_KINDS:
        raise Rejected("a device of an unknown kind")
    if not record.device or not record.poller or not record.state:
        raise Rejected("a device without a name, a poller or a state")
    if not record.device.isprintable():
        raise Rejected("device is not printable: two names that look the same would be two devices")
    _check_readings(record)


def _check_dropped(record: records.Dropped) -> None:
    if any(count < 0 for count in record.counts.values()):
        raise Rejected("a negative count of dropped records")


_CHECKERS: Final[dict[type, Any]] = {
    records.RankInventory: _check_rank_inventory,
    records.Steps: _check_steps,
    records.Edges: _check_edges,
    records.Trace: _check_trace,
    records.Stacks: _check_stacks,
    records.Readings: _check_readings,
    records.DeviceReadings: _check_device_readings,
    records.Dropped: _check_dropped,
}
