"""A drive's own count of slow requests: the latency monitor of OCP drives.

In: ``nvme ocp latency-monitor-log`` in JSON. Out: per operation and bucket how many requests took longer than
that bucket's threshold, the slowest and when it was; ``nvme_latency_high`` while requests come into the two
upper buckets. A drive moves its active counts to the static ones every few days and begins anew; what came
just before is then found there. Source: OCP Datacenter NVMe SSD specification 2.5, log page C3h.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Final

from collectors.minute import MetricSpec
from collectors.sources.base import OK, Attribute, Reading, Sample, SourceEvent
from collectors.sources.nvme_numbers import number

LATENCY_METRICS: Final = (
    MetricSpec("latency_monitor_count", "count", 1.0),
    MetricSpec("latency_threshold_s", "s", 0.001),
    MetricSpec("latency_bucket_count", "count", 1.0),
    MetricSpec("latency_slowest_s", "s", 0.001),
    MetricSpec("latency_stamp_s", "s", 0.001),
)
OPERATIONS: Final = ("Read", "Write", "Trim")
BUCKETS: Final = range(4)
HIGH: Final = (2, 3)
"""Requests slower than the drive's third and fourth threshold."""
COUNT_MAX: Final = 2**32
_MS_MAX: Final = 0xFFFF
_STAMP: Final = re.compile(r"(\d{4})-(\d{1,2})-(\d{1,2})D\|(\d{1,2}):(\d{1,2}):(\d{1,2}):(\d{3})", re.ASCII)
_CLOCK_SET_FROM: Final = 2015
"""A drive whose clock nobody has set counts from 1970."""

Counts = dict[tuple[str, int], int]


class Latency:
    """One drive, and its counts of the look before."""

    def __init__(self) -> None:
        self._last: Counts | None = None
        self._timer: int | None = None
        """how long the drive has counted, in its own unit"""

    def told(self, drive: str, said: Mapping[str, object]) -> Reading:
        entity = f"disk/{drive}"
        status, why = number(said.get("Feature Status"))
        is_on = None if status is None else status & 1
        samples = [Sample(entity, "latency_monitor_count", is_on, why)]
        if not is_on:
            self._last = None
            return Reading(samples)
        active, static = _counts(said, "Active"), _counts(said, "Static")
        samples += _thresholds(entity, said)
        samples += _buckets(entity, said, active)
        timer, _ = number(said.get("Active Bucket Timer"))
        moved = timer is not None and self._timer is not None and timer < self._timer
        events = list(self._high(entity, drive, said, active, static if moved else None))
        self._last, self._timer = active, timer
        return Reading(samples, events)

    def _high(
        self, entity: str, drive: str, said: Mapping[str, object], active: Counts, moved: Counts | None
    ) -> Iterator[SourceEvent]:
        """``moved``: the static counts, where those of the look before have been moved there."""
        came = {
            operation: sum(self._came((operation, bucket), active, moved) for bucket in HIGH)
            for operation in OPERATIONS
        }
        threshold_ms, _ = _ms(said.get("Active Threshold C"))
        if any(came.values()) and threshold_ms is not None:
            what = ", ".join(f"{count} {operation.lower()}s" for operation, count in came.items() if count)
            text = f"{drive} was slow: {what} took longer than {threshold_ms} ms since the look before"
            told: dict[str, Attribute] = {"threshold_ms": threshold_ms}
            yield SourceEvent(entity, "nvme_latency_high", text, attributes=told, standing=True)

    def _came(self, key: tuple[str, int], active: Counts, moved: Counts | None) -> int:
        """Requests since the look before; 0 where that cannot be told."""
        if self._last is None or key not in active or key not in self._last:
            return 0
        now, before = active[key], self._last[key]
        if moved is not None:
            return now + max(0, moved.get(key, 0) - before)
        return now - before if now >= before else now


def _counts(said: Mapping[str, object], kind: str) -> Counts:
    found: Counts = {}
    for operation, bucket, value in _cells(said, f"{kind} Bucket Counter"):
        count, _ = number(value)
        if count is not None and count < COUNT_MAX:
            found[operation, bucket] = count
    return found


def _cells(said: Mapping[str, object], name: str) -> Iterator[tuple[str, int, object]]:
    """(operation, bucket, value) of one of the tables."""
    for bucket in BUCKETS:
        row = said.get(f"{name}: Bucket {bucket}")
        if isinstance(row, Mapping):
            yield from ((operation, bucket, row[operation]) for operation in OPERATIONS if operation in row)


def _labels(operation: str, bucket: int) -> dict[str, str]:
    return {"operation": operation.lower(), "bucket": str(bucket)}


def _thresholds(entity: str, said: Mapping[str, object]) -> Iterator[Sample]:
    for bucket, letter in zip(BUCKETS, "ABCD", strict=True):
        value_ms, why = _ms(said.get(f"Active Threshold {letter}"))
        value = None if value_ms is None else value_ms / 1_000
        yield Sample(entity, "latency_threshold_s", value, why, {"bucket": str(bucket)})


def _buckets(entity: str, said: Mapping[str, object], active: Counts) -> Iterator[Sample]:
    """Counts, and the slowest request of each bucket that has had one."""
    for operation, bucket, _ in _cells(said, "Active Bucket Counter"):
        count = active.get((operation, bucket))
        why = OK if count is not None else "unreadable"
        yield Sample(entity, "latency_bucket_count", count, why, _labels(operation, bucket))
    stamps = {cell[:2]: cell[2] for cell in _cells(said, "Active Latency Time Stamp")}
    for operation, bucket, value in _cells(said, "Active Measured Latency"):
        stamp = stamps.get((operation, bucket))
        if not active.get((operation, bucket)) or stamp in (None, "NA"):
            continue
        labels = _labels(operation, bucket)
        value_ms, why = _ms(value)
        yield Sample(entity, "latency_slowest_s", None if value_ms is None else value_ms / 1_000, why, labels)
        yield Sample(entity, "latency_stamp_s", *_seconds(stamp), labels)


def _ms(value: object) -> tuple[int | None, str]:
    found, why = number(value)
    return (None, "out_of_range") if found is not None and found > _MS_MAX else (found, why)


def _seconds(stamp: object) -> tuple[float | None, str]:
    """A stamp of the tool, which is UTC, as seconds since 1970."""
    match = _STAMP.fullmatch(stamp) if isinstance(stamp, str) and len(stamp) <= 64 else None
    if match is None:
        return None, "unreadable"
    year, month, day, hour, minute, second, ms = map(int, match.groups())
    if year < _CLOCK_SET_FROM:
        return None, "clock_not_set"
    try:
        at = datetime(year, month, day, hour, minute, second, ms * 1_000, UTC)
    except ValueError:
        return None, "unreadable"
    return at.timestamp(), OK
