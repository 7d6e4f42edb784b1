"""What drives of data centres say beyond SMART: their own latency monitor, spare blocks, backup power.

In: ``nvme ocp smart-add-log`` and ``nvme ocp latency-monitor-log`` in JSON, recorded as
commands/nvme_ocp_<log>_<dev>.json. Out: samples of ``disk/<dev>``; ``nvme_latency_high`` while requests above
the drive's own third threshold come, ``nvme_plp_failed``. Only the oldest answer is asked for anew at a look;
a drive (or an nvme-cli) that has no such log is asked again after an hour, and nothing is said of it.
Source: OCP Datacenter NVMe SSD specification 2.5, log pages C0h and C3h; plugins/ocp of nvme-cli 2.3 to 3.0.
"""

from __future__ import annotations

import errno
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from collectors.minute import MetricSpec
from collectors.sources.base import OK, Reading, Sample, SourceEvent
from collectors.sources.disks_latency import LATENCY_METRICS, Latency
from collectors.sources.nvme_numbers import SMART_TIMEOUT_S, drives, number
from collectors.sources.tools import output
from collectors.sources.tree import Tree, reason

EVERY_S: Final = 300.0
UNSUPPORTED_EVERY_S: Final = 3_600.0
OCP_METRICS: Final = (
    MetricSpec("media_written_bytes_total", "total", 1.0),
    MetricSpec("media_read_bytes_total", "total", 1.0),
    MetricSpec("bad_user_blocks_total", "total", 1.0),
    MetricSpec("bad_user_blocks_health_ratio", "ratio", 0.01),
    MetricSpec("bad_system_blocks_total", "total", 1.0),
    MetricSpec("bad_system_blocks_health_ratio", "ratio", 0.01),
    MetricSpec("free_blocks_ratio", "ratio", 0.01),
    MetricSpec("capacitor_health_ratio", "ratio", 0.01),
    MetricSpec("thermal_throttling_events_total", "total", 1.0),
    MetricSpec("thermal_throttling_level_count", "count", 1.0),
    MetricSpec("uncorrectable_reads_total", "total", 1.0),
    MetricSpec("end_to_end_errors_total", "total", 1.0),
    MetricSpec("pcie_correctable_errors_total", "total", 1.0),
    MetricSpec("incomplete_shutdowns_total", "total", 1.0),
    *LATENCY_METRICS,
)
_SMART: Final = "smart-add-log"
_LATENCY: Final = "latency-monitor-log"
LOGS: Final = (_SMART, _LATENCY)
_FILE: Final = re.compile(rf"nvme_ocp_({_SMART}|{_LATENCY})_(nvme\d{{1,4}})(?:n\d{{1,4}})?\.json")
_FIELDS: Final = (
    ("media_written_bytes_total", "physical_media_units_written"),
    ("media_read_bytes_total", "physical_media_units_read"),
    ("bad_user_blocks_total", "bad_user_nand_blocks_raw"),
    ("bad_user_blocks_health_ratio", "bad_user_nand_blocks_normalized"),
    ("bad_system_blocks_total", "bad_system_nand_blocks_raw"),
    ("bad_system_blocks_health_ratio", "bad_system_nand_blocks_normalized"),
    ("free_blocks_ratio", "percent_free_blocks"),
    ("capacitor_health_ratio", "capacitor_health"),
    ("thermal_throttling_events_total", "thermal_throttling_events"),
    ("thermal_throttling_level_count", "current_throttling_status"),
    ("uncorrectable_reads_total", "uncorrectable_read_errors"),
    ("end_to_end_errors_total", "end_to_end_detected_errors"),
    ("pcie_correctable_errors_total", "pcie_correctable_errors"),
    ("incomplete_shutdowns_total", "incomplete_shutdowns"),
)
"""Metric, and the field in the newer of the two spellings."""
_OLDER: Final = {
    "thermal_throttling_events": "number_of_thermal_throttling_events",
    "uncorrectable_read_errors": "uncorrectable_read_error_count",
    "pcie_correctable_errors": "pcie_correctable_error_count",
}
_NONE: Final = {
    "capacitor_health": 0xFFFF,
    "bad_user_nand_blocks_raw": 2**48 - 1,
    "bad_system_nand_blocks_raw": 2**48 - 1,
    "bad_user_nand_blocks_normalized": 0xFFFF,
    "bad_system_nand_blocks_normalized": 0xFFFF,
}
"""What says that a drive has no such thing: no capacitor, a count that is not kept."""
_FULL: Final = {"thermal_throttling_events": 0xFF}
"""Counters that stop there."""
_PERCENT_MAX: Final = {"percent_free_blocks": 100}
_LEVELS: Final = 3
_ASKED_MAX_BYTES: Final = 65_536

Question = tuple[str, str]
"""Log and drive."""


@dataclass(slots=True)
class _Kept:
    """One log of one drive. ``next_s``: when it is asked again; ``known``: it has answered once."""

    next_s: float = float("-inf")
    asked_s: float = float("-inf")
    known: bool = False
    latency: Latency = field(default_factory=Latency)
    reading: Reading = field(default_factory=Reading)


class OcpLogs:
    """All of a recorded tree; of a live one each drive once in a while, one question a look."""

    def __init__(self) -> None:
        self._kept: dict[Question, _Kept] = {}

    def is_due(self, at_s: float) -> bool:
        """Whether something would be asked now."""
        return any(kept.next_s <= at_s for kept in self._kept.values())

    def look(self, tree: Tree, at_s: float, may_ask: bool) -> Reading:
        files = _files(tree)
        self._kept = {one: self._kept.get(one) or _Kept() for one in files}
        due = [one for one, kept in self._kept.items() if kept.next_s <= at_s or not tree.is_live]
        if tree.is_live:
            due.sort(key=lambda one: self._kept[one].asked_s)
            del due[int(may_ask) :]
        for one in due:
            self._ask(tree, one, files[one], at_s)
        readings = [kept.reading for kept in self._kept.values()]
        samples = [sample for reading in readings for sample in reading.samples]
        return Reading(samples, [event for reading in readings for event in reading.events])

    def _ask(self, tree: Tree, one: Question, name: str, at_s: float) -> None:
        log, drive = one
        kept = self._kept[one]
        kept.asked_s, kept.next_s = at_s, at_s + EVERY_S
        argv = ["nvme", "ocp", log, f"/dev/{drive}", "-o", "json"]
        why = OK
        said: object = None
        try:
            said = json.loads(output(tree, name, argv, SMART_TIMEOUT_S, _ASKED_MAX_BYTES))
        except OSError as error:
            why = reason(error)
            if error.errno in (errno.EIO, errno.ENOENT) and tree.is_live:
                kept.next_s = at_s + (EVERY_S if kept.known else UNSUPPORTED_EVERY_S)
        except (ValueError, RecursionError):
            why = "unreadable"
        if why == OK and not isinstance(said, dict):
            why = "unreadable"
        if why == OK and isinstance(said, dict):
            kept.known = True
            kept.reading = self._told(kept, log, drive, said)
        elif kept.known or not tree.is_live:
            kept.reading = _unread(log, drive, why)

    def _told(self, kept: _Kept, log: str, drive: str, said: Mapping[str, object]) -> Reading:
        if log == _LATENCY:
            return kept.latency.told(drive, said)
        values = _fields(said)
        samples = [_sample(drive, metric, key, values) for metric, key in _FIELDS]
        return Reading(samples, list(_backup(drive, samples)))


def _files(tree: Tree) -> dict[Question, str]:
    """What can be asked -> the name of its recording."""
    if tree.is_live:
        return {(log, drive): f"nvme_ocp_{log}_{drive}.json" for drive in drives(tree) for log in LOGS}
    names = (_FILE.fullmatch(name) for name in tree.list("commands")[:4_096])
    return {(match[1], match[2]): match[0] for match in names if match}


def _fields(said: Mapping[str, object]) -> dict[str, object]:
    """Fields by names without blanks and capitals, as newer tools spell them."""
    return {_plain(name): value for name, value in list(said.items())[:1_024]}


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", name[:128].lower()).strip("_")


def _sample(drive: str, metric: str, key: str, values: Mapping[str, object]) -> Sample:
    value, why = number(values.get(key, values.get(_OLDER.get(key, key))))
    if value is not None and value == _NONE.get(key):
        value, why = None, "not_available"
    elif value is not None and value == _FULL.get(key):
        value, why = None, "saturated"
    elif value is not None and _is_absurd(metric, key, value):
        value, why = None, "out_of_range"
    told = value / 100 if value is not None and metric.endswith("_ratio") else value
    return Sample(f"disk/{drive}", metric, told, why)


def _is_absurd(metric: str, key: str, value: int) -> bool:
    if metric == "thermal_throttling_level_count":
        return value > _LEVELS
    return metric.endswith("_ratio") and value > _PERCENT_MAX.get(key, 0xFFFF)


def _backup(drive: str, samples: list[Sample]) -> Iterator[SourceEvent]:
    """A charge of 1 % is the least that lets the drive save what it holds when its power is lost."""
    for sample in samples:
        if sample.metric == "capacitor_health_ratio" and sample.value is not None and sample.value < 0.01:
            text = f"{drive} may lose what it holds when its power is lost: its backup power is used up"
            yield SourceEvent(sample.entity, "nvme_plp_failed", text, "critical", standing=True)


def _unread(log: str, drive: str, why: str) -> Reading:
    """The values that this log would have told."""
    names = [metric for metric, _ in _FIELDS] if log == _SMART else ["latency_monitor_count"]
    return Reading([Sample(f"disk/{drive}", name, None, why) for name in names])
