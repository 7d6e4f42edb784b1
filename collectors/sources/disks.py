"""Disks: latency, throughput and load of each, and what NVMe drives say of their own health.

In: proc/diskstats; ``nvme smart-log -o json``, recorded as commands/nvme_smart-log_<dev>.json; what
``disks_ocp`` asks. Out: samples of ``disk/<dev>``; ``nvme_error`` while a drive warns of itself. Latencies
are averages over the requests finished since the look before; none finished: null.
Source: admin-guide/iostats.rst of Linux; NVM Express base specification, SMART / Health Information log.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Final

from collectors.minute import MetricSpec
from collectors.sources.base import FIRST_SAMPLE, OK, RESET, Attribute, Reading, Sample, SourceEvent
from collectors.sources.disks_ocp import OCP_METRICS, OcpLogs
from collectors.sources.nvme_numbers import SMART_TIMEOUT_S, drives, smart_number
from collectors.sources.tools import output
from collectors.sources.tree import Tree, reason
from collectors.wire.records import Severity

SECTOR_BYTES: Final = 512
"""diskstats counts sectors of 512 bytes whatever the disk's own sector is."""
KELVIN_OF_0_C: Final = 273
DISKS_MAX: Final = 256
SMART_EVERY_S: Final = 300.0
METRICS: Final = (
    MetricSpec("read_await_s", "s", 0.00001),
    MetricSpec("write_await_s", "s", 0.00001),
    MetricSpec("flush_await_s", "s", 0.00001),
    MetricSpec("read_bytes_per_s", "bytes_per_s", 1.0),
    MetricSpec("write_bytes_per_s", "bytes_per_s", 1.0),
    MetricSpec("busy_ratio", "ratio", 0.0001),
    MetricSpec("in_flight_count", "count", 1.0),
    MetricSpec("temperature_c", "c", 1.0),
    MetricSpec("percent_used_ratio", "ratio", 0.01),
    MetricSpec("data_units_written_total", "total", 1.0),
    MetricSpec("media_errors_total", "total", 1.0),
    MetricSpec("critical_warning_mask", "mask", 1.0),
    MetricSpec("available_spare_ratio", "ratio", 0.01),
    MetricSpec("spare_threshold_ratio", "ratio", 0.01),
    MetricSpec("unsafe_shutdowns_total", "total", 1.0),
)

_NOT_A_DISK: Final = re.compile(r"(loop|ram|zram|sr|fd|nbd)\d*")
_PARTITION: Final = re.compile(r"((nvme\d+n\d+|mmcblk\d+)p\d+|(sd|vd|xvd|hd)[a-z]+\d+)")
_NAME: Final = re.compile(r"[A-Za-z0-9_.!-]{1,64}")
_SMART_FILE: Final = re.compile(r"nvme_smart-log_(nvme\d{1,4})(?:n\d{1,4})?\.json")
_CRITICAL: Final = {
    0x1: "spare blocks run out",
    0x2: "too hot or too cold",
    0x4: "no longer reliable",
    0x8: "read-only",
    0x10: "backup of its memory failed",
    0x20: "persistent memory unreliable",
}
_FAILING: Final = 0x4 | 0x8
_AWAITS: Final = (("read_await_s", 0, 3), ("write_await_s", 4, 7), ("flush_await_s", 15, 16))
"""Metric, column of the requests finished, column of the milliseconds they took."""
_IN_FLIGHT: Final = 8
_SMART: Final = (
    ("temperature_c", "temperature"),
    ("percent_used_ratio", "percent_used"),
    ("data_units_written_total", "data_units_written"),
    ("media_errors_total", "media_errors"),
    ("critical_warning_mask", "critical_warning"),
    ("available_spare_ratio", "avail_spare"),
    ("spare_threshold_ratio", "spare_thresh"),
    ("unsafe_shutdowns_total", "unsafe_shutdowns"),
)
_CELSIUS: Final = re.compile(r"\s*-?\d+\s*°?\s?C\b")


class DisksSource:
    """Every whole disk of the node. Keeps the counters of the look before."""

    name = "disks"
    period_s = 10.0
    deadline_s = 2.0
    metrics = (*METRICS, *OCP_METRICS)

    def __init__(self) -> None:
        self._last: dict[str, tuple[int, ...]] = {}
        self._at_s = 0.0
        self._smart = SmartLogs()
        self._ocp = OcpLogs()

    def read(self, tree: Tree, at_s: float) -> Reading:
        samples: list[Sample] = []
        try:
            rows = disk_rows(tree.read_text("proc/diskstats"))
        except OSError:
            rows = {}
        for name, row in rows.items():
            samples += _disk(name, row, self._last.get(name), at_s - self._at_s)
        self._last, self._at_s = rows, at_s
        # One question a look; where both have more to ask they take turns.
        smart = list(self._smart.samples(tree, at_s, not (self._smart.has_asked and self._ocp.is_due(at_s))))
        ocp = self._ocp.look(tree, at_s, not self._smart.has_asked)
        events = [*_warnings(smart), *_spares(smart), *ocp.events]
        return Reading([*samples, *smart, *ocp.samples], events)


def disk_rows(text: str) -> dict[str, tuple[int, ...]]:
    """Disk -> the 11, 15 or 17 numbers after its name. Damaged lines and partitions are left out."""
    rows: dict[str, tuple[int, ...]] = {}
    for line in text.splitlines():
        words = line.split()
        if len(words) < 14 or not all(word.isascii() and word.isdigit() for word in words[3:]):
            continue
        name = words[2]
        if not _NAME.fullmatch(name) or _NOT_A_DISK.fullmatch(name) or _PARTITION.fullmatch(name):
            continue
        if len(rows) < DISKS_MAX and all(len(word) <= 20 for word in words[3:]):
            rows[name] = tuple(int(word) for word in words[3:])
    return rows


def _disk(name: str, row: tuple[int, ...], last: tuple[int, ...] | None, passed_s: float) -> Iterator[Sample]:
    entity = f"disk/{name}"
    yield Sample(entity, "in_flight_count", row[_IN_FLIGHT])
    quality = OK
    if last is None or passed_s <= 0:
        quality = FIRST_SAMPLE
    elif len(last) != len(row) or any(row[at] < last[at] for at in (0, 2, 4, 6)):
        quality = RESET
    if last is None or quality != OK:
        last = row
    change = [now - before for now, before in zip(row, last, strict=True)]
    for metric, done, spent_ms in _AWAITS:
        if spent_ms >= len(row):
            continue
        yield _average(entity, metric, change[done], change[spent_ms], quality)
    for metric, at in (("read_bytes_per_s", 2), ("write_bytes_per_s", 6)):
        value = change[at] * SECTOR_BYTES / passed_s if quality == OK else None
        yield Sample(entity, metric, value, quality)
    # The milliseconds of diskstats are unsigned ints: they wrap after 49 days.
    busy = change[9] % 2**32 / (1_000 * passed_s) if quality == OK else None
    yield Sample(entity, "busy_ratio", None if busy is None else min(busy, 1.0), quality)


def _average(entity: str, metric: str, done: int, spent_ms: int, quality: str) -> Sample:
    if quality != OK:
        return Sample(entity, metric, None, quality)
    if done <= 0:
        return Sample(entity, metric, None, "no_ops" if done == 0 else RESET)
    return Sample(entity, metric, spent_ms % 2**32 / (1_000 * done))


# --- NVMe --------------------------------------------------------------------------------------------------


class SmartLogs:
    """What drives say of themselves: all of a recorded tree; of a live one each drive once in a while.

    Asking starts a process, so at most one drive is asked at a look.
    """

    def __init__(self) -> None:
        self._kept: dict[str, tuple[float, list[Sample]]] = {}
        self.has_asked = False
        """whether a drive was asked at the last look"""

    def samples(self, tree: Tree, at_s: float, may_ask: bool = True) -> Iterator[Sample]:
        self.has_asked = False
        if not tree.is_live:
            for name in tree.list("commands")[:4_096]:
                if match := _SMART_FILE.fullmatch(name):
                    yield from _smart_samples(tree, match[1], name)
            return
        found = drives(tree)
        self._kept = {drive: kept for drive, kept in self._kept.items() if drive in found}
        never: tuple[float, list[Sample]] = (float("-inf"), [])
        oldest = min(found, key=lambda drive: self._kept.get(drive, never)[0], default=None)
        if may_ask and oldest is not None and at_s - self._kept.get(oldest, never)[0] >= SMART_EVERY_S:
            self.has_asked = True
            self._kept[oldest] = at_s, list(_smart_samples(tree, oldest, f"nvme_smart-log_{oldest}.json"))
        for _, samples in self._kept.values():
            yield from samples


def _warnings(samples: list[Sample]) -> Iterator[SourceEvent]:
    """``nvme_error`` while a drive warns of itself."""
    for sample in samples:
        if sample.metric == "critical_warning_mask" and sample.value:
            mask = int(sample.value)
            told = [text for bit, text in _CRITICAL.items() if mask & bit] or [f"bits {mask:#x}"]
            severity: Severity = "critical" if mask & _FAILING else "warning"
            text = f"{sample.entity.partition('/')[2]} warns of itself: {', '.join(told)}"
            attributes: dict[str, Attribute] = {"mask": mask, "warnings": told}
            yield SourceEvent(
                sample.entity, "nvme_error", text, severity, attributes=attributes, standing=True
            )


def _spares(samples: list[Sample]) -> Iterator[SourceEvent]:
    """``nvme_spare_low`` while a drive has fewer spare blocks than its own threshold."""
    left = {one.entity: one.value for one in samples if one.metric == "available_spare_ratio"}
    for sample in samples:
        spare, least = left.get(sample.entity), sample.value
        if sample.metric == "spare_threshold_ratio" and spare is not None and least and spare < least:
            name = sample.entity.partition("/")[2]
            text = f"{name} has {spare:.0%} of its spare blocks left, below its threshold of {least:.0%}"
            told: dict[str, Attribute] = {"spare_ratio": spare, "threshold_ratio": least}
            yield SourceEvent(
                sample.entity, "nvme_spare_low", text, "critical", attributes=told, standing=True
            )


def _smart_samples(tree: Tree, device: str, recording: str) -> Iterator[Sample]:
    entity = f"disk/{device}"
    argv = ["nvme", "smart-log", "-o", "json", f"/dev/{device}"]
    try:
        said = json.loads(output(tree, recording, argv, SMART_TIMEOUT_S, 65_536))
        unread = OK if isinstance(said, dict) else "unreadable"
    except OSError as error:
        said, unread = None, reason(error)
    except (ValueError, RecursionError):
        said, unread = None, "unreadable"
    for metric, key in _SMART:
        number, why = smart_number(said, key) if unread == OK else (None, unread)
        value = None if number is None else _in_our_unit(metric, number, said)
        if metric == "temperature_c" and value is not None and not -60 <= value <= 200:
            value, why = None, "out_of_range"
        yield Sample(entity, metric, value, why)


def _in_our_unit(metric: str, number: int, said: dict[str, object]) -> float:
    """Kelvin to degrees Celsius, unless the tool's text says that it is Celsius; percent to a ratio."""
    if metric == "temperature_c":
        return number if _CELSIUS.match(str(said.get("temperature"))) else number - KELVIN_OF_0_C
    return number / 100 if metric.endswith("_ratio") else number
