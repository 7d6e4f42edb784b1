"""GPUs as the driver itself tells them, through nvidia-smi's table or NVML.

In: commands/nvidia-smi_query-gpu.csv; live: NVML, in a worker process with a deadline for each call, since a
driver that hangs takes its caller with it. Out: samples of ``gpu/<uuid>``; ``gpu_read_hung`` for a GPU or a
driver that gave no answer in time, ``gpu_lost`` for a GPU of the inventory that is not listed, ``gpu_paused``
while the driver is released: then all that was told is unknown. Each value stands for itself: ``[N/A]`` costs
its own, never the row. Source: nvidia-smi(1), ``--help-query-gpu``; nvml.h.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from msgspec.structs import replace

from collectors.minute import MetricSpec
from collectors.sources.base import HOST, Attribute, Reading, Sample, SourceEvent
from collectors.sources.gpu_holders import BOARD
from collectors.sources.gpu_identity import (
    GPUS_MAX,
    UUID,
    expected_uuids,
    lost_uuids,
    normal_bdf,
    smi_rows,
    told_twice,
)
from collectors.sources.gpu_metrics import NVML, SMI
from collectors.sources.gpu_pause import PAUSED, WATCH, Pause
from collectors.sources.gpu_states import lost_event
from collectors.sources.gpu_table import LOST, LOST_METRICS, GpuTable, Row
from collectors.sources.nvml_client import NvmlClient
from collectors.sources.tree import Tree

RECORDING: Final = "commands/nvidia-smi_query-gpu.csv"
DRIVER: Final = ("proc/driver/nvidia/version", "dev/nvidiactl")
"""One of them is there where the driver is loaded, and no worker is started where none is."""
LOOK_S: Final = 8.0
LIST_S: Final = 4.0
GPU_S: Final = 2.0
HUNG_PAUSE_S: Final = 60.0
"""How long a GPU that hung is not asked again."""
TICK_S: Final = 1.0
FULL_EVERY_S: Final = 15.0
"""How often all is asked; clock, power, temperature and throttling each second."""
QUICK_S: Final = 2.0
PROCESSES_EVERY_S: Final = 30.0
"""The driver lists processes under its lock."""
NO_ANSWER: Final = "no_answer"
READABLE: Final = "nvml_readable_count"
_REASON: Final = re.compile(r"[a-z][a-z_]{0,63}")
_NUMBER: Final = re.compile(r"(-?\d{1,20}(?:\.\d{1,9})?)(?: ?(W|mW|C|MHz|%|MiB))?")
_HEX: Final = re.compile(r"0x[0-9a-fA-F]{1,16}")
_WORDS: Final = {"yes": 1.0, "no": 0.0, "active": 1.0, "not active": 0.0}
_REASONS: Final = (
    ("n/a", "not_available"),
    ("not supported", "not_supported"),
    ("unknown error", "unknown_error"),
    ("lost", LOST),
    ("insufficient permissions", "eperm"),
    ("err!", "unknown_error"),
)


class GpuNvmlSource:
    """All GPUs that the driver lists."""

    name = "gpu_nvml"
    period_s = 1.0
    deadline_s = 15.0
    metrics = (MetricSpec(READABLE, "count", 1.0), MetricSpec("processes_count", "count", 1.0))

    def __init__(self, client: NvmlClient | None = None) -> None:
        self._table = GpuTable()
        self._client = client or NvmlClient()
        self._live = _Live(self._client)
        self._full = Reading()
        self._full_due_s: float | None = None
        """when all is asked again; None: at once"""
        WATCH.watch(self._client.holders, self._client.release)

    def read(self, tree: Tree, at_s: float) -> Reading:
        if tree.is_live:
            return self._asked(tree, at_s)
        try:
            text = tree.read_text(RECORDING)
        except OSError:
            return Reading()
        rows = list(parse(text))
        lost = lost_uuids(tree) if rows else frozenset()
        return self._table.reading(rows, lost, at_s, told_twice(tree, "dcgm"))

    def _asked(self, tree: Tree, at_s: float) -> Reading:
        if not any(map(tree.exists, DRIVER)):
            return Reading()
        if (pause := WATCH.pause) is not None:
            self._client.close()
            self._full_due_s = None
            return self._paused(pause)
        if self._full_due_s is None or at_s > self._full_due_s:
            return self._asked_all(tree, at_s)
        if not self._table.known:
            return self._full
        return self._quick(at_s) or self._asked_all(tree, at_s)

    def _quick(self, at_s: float) -> Reading | None:
        """The look before with what is asked each second; None where the worker does not answer."""
        rows = self._live.quick(self._table.known)
        if not rows:
            return None
        reading = self._table.quick(rows, at_s)
        fresh = {(sample.entity, sample.metric): sample for sample in reading.samples}
        told = [fresh.get((one.entity, one.metric), one) for one in self._full.samples]
        standing = [event for event in self._full.events if event.standing and event.kind != "throttle"]
        return Reading(told, [*standing, *reading.events])

    def _asked_all(self, tree: Tree, at_s: float) -> Reading:
        look = self._live.look(at_s)
        if (
            pause := WATCH.pause
        ) is not None:  # it began meanwhile and took the worker away: that is no fault
            return self._paused(pause)
        lost = frozenset(expected_uuids(tree)) - look.listed if look.listed else frozenset()
        lost |= look.lost
        reading = self._table.reading(look.rows, lost, at_s, look.twice)
        events = [*map(lost_event, sorted(lost)), *look.events, *reading.events]
        self._full = Reading([*look.samples, *reading.samples], events)
        self._full_due_s = at_s + FULL_EVERY_S - TICK_S
        return self._full

    def _paused(self, pause: Pause) -> Reading:
        told = self._full.samples or [Sample(HOST, READABLE, None)]
        samples = [replace(sample, value=None, quality=PAUSED) for sample in told]
        for_s = round(pause.until_s - pause.since_s)
        text = f"the GPU driver is released for {for_s} s, asked by: {pause.by}"
        attributes: dict[str, Attribute] = {"by": pause.by, "for_s": for_s}
        event = SourceEvent(HOST, "gpu_paused", text, "info", attributes=attributes, standing=True)
        return Reading(samples, [event])


@dataclass(slots=True)
class _Look:
    """What one look at the live driver gave."""

    rows: list[Row]
    samples: list[Sample]
    events: list[SourceEvent]
    listed: frozenset[str] = frozenset()
    lost: frozenset[str] = frozenset()
    twice: frozenset[str] = frozenset()


class _Live:
    """Asks the worker for the list of GPUs, then for each, within one budget of time."""

    def __init__(self, client: NvmlClient, now_s: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._now_s = now_s
        self._pause_ends_s: dict[str, float] = {}
        """a GPU that hung -> when it is asked again"""
        self._processes: dict[str, int] = {}
        self._processes_due_s = 0.0

    def look(self, at_s: float) -> _Look:
        ends_s = self._now_s() + LOOK_S
        look = _Look([], [], [])
        try:
            answer = self._client.ask({"ask": "gpus"}, LIST_S)
        except OSError as error:
            hung = isinstance(error, TimeoutError)
            look.samples.append(Sample(HOST, READABLE, None, NO_ANSWER if hung else "unreadable"))
            look.events += [_hung(HOST, None, LIST_S)] if hung else []
            return look
        if "error" in answer:
            self._client.close()  # a driver that is loaded later is found by a new worker
            look.samples.append(Sample(HOST, READABLE, None, _word(answer["error"])))
            return look
        look.samples.append(Sample(HOST, READABLE, 1))
        listed = list(_places(answer.get("gpus")))
        places = dict(listed)
        look.listed = frozenset(places)
        look.twice = frozenset(uuid for uuid, bdf in listed if bdf != places[uuid])
        for uuid, bdf in places.items():
            self._gpu(uuid, bdf, at_s, ends_s, look)
        self._count_processes(at_s, ends_s)
        look.samples += [
            Sample(f"gpu/{uuid}", "processes_count", self._processes[uuid])
            for uuid in places
            if uuid in self._processes
        ]
        return look

    def quick(self, uuids: Sequence[str]) -> list[Row]:
        """Some values of these GPUs; none where the worker does not answer in time."""
        if not self._client.is_running:
            return []
        try:
            answer = self._client.ask({"ask": "quick", "uuids": list(uuids)}, QUICK_S).get("quick")
        except OSError:
            return []
        of_gpus = answer if isinstance(answer, dict) else {}
        return [
            row
            for uuid in uuids
            if isinstance(values := of_gpus.get(uuid), dict)
            for row in value_rows(uuid, None, values)
        ]

    def _gpu(self, uuid: str, bdf: str | None, at_s: float, ends_s: float, look: _Look) -> None:
        """Asks one GPU; one that hung lately, or for which no time is left, has no values."""
        unknown = [Sample(f"gpu/{uuid}", metric, None, NO_ANSWER) for metric in LOST_METRICS]
        if at_s < self._pause_ends_s.get(uuid, at_s):
            look.samples += unknown
            look.events.append(_hung(f"gpu/{uuid}", bdf, GPU_S))
            return
        left_s = 0.0
        try:
            if not self._client.is_running:  # the one before it hung; a new worker takes time to begin
                self._client.ask({"ask": "gpus"}, max(0.0, min(LIST_S, ends_s - self._now_s())))
            left_s = max(0.0, min(GPU_S, ends_s - self._now_s()))
            if not left_s:
                look.samples += unknown
                return
            answer = self._client.ask({"ask": "values", "uuid": uuid}, left_s)
        except OSError as error:
            look.samples += unknown
            if isinstance(error, TimeoutError) and left_s == GPU_S:
                self._pause_ends_s[uuid] = at_s + HUNG_PAUSE_S
                look.events.append(_hung(f"gpu/{uuid}", bdf, GPU_S))
            return
        self._pause_ends_s.pop(uuid, None)
        values = answer.get("values")
        if not isinstance(values, dict):
            values = dict.fromkeys(NVML, answer.get("error"))
        rows = list(value_rows(uuid, bdf, values))
        if all(row.raw is None for row in rows) and any(row.quality == LOST for row in rows):
            look.lost |= {uuid}
        look.rows += rows

    def _count_processes(self, at_s: float, ends_s: float) -> None:
        if at_s < self._processes_due_s or ends_s - self._now_s() <= 0:
            return
        self._processes_due_s = at_s + PROCESSES_EVERY_S
        self._processes = {}
        try:
            answer = self._client.ask({"ask": "processes"}, LIST_S)
        except OSError:
            return
        BOARD.tell(answer)
        by_uuid = answer.get("by_uuid")
        for uuid, pids in (by_uuid if isinstance(by_uuid, dict) else {}).items():
            if isinstance(pids, list):
                self._processes[uuid] = len(pids)


def _places(gpus: Any) -> Iterator[tuple[str, str | None]]:
    """(UUID, PCI address) of each GPU that answered the worker."""
    for gpu in gpus[:GPUS_MAX] if isinstance(gpus, list) else ():
        uuid = gpu.get("uuid") if isinstance(gpu, dict) else None
        if isinstance(uuid, str) and UUID.fullmatch(uuid):
            yield uuid, normal_bdf(str(gpu.get("bdf", "")))


def value_rows(uuid: str, bdf: str | None, values: Mapping[str, Any]) -> Iterator[Row]:
    """Rows of what the worker said of one GPU: numbers, and reasons where there is none."""
    for column, value in values.items():
        field = NVML.get(column)
        if field is None:
            continue
        known = isinstance(value, int | float) and not isinstance(value, bool)
        yield Row(uuid, bdf, field, value if known else None, "ok" if known else _word(value))


def _word(reason: Any) -> str:
    return reason if isinstance(reason, str) and _REASON.fullmatch(reason) else "unreadable"


def parse(text: str) -> Iterator[Row]:
    """Rows of the table's cells. A row without a UUID (a GPU that does not answer) is left out."""
    for cells in smi_rows(text):
        uuid = cells.get("uuid", cells.get("gpu_uuid", ""))
        if not UUID.fullmatch(uuid):
            continue
        bdf = normal_bdf(cells.get("pci.bus_id", ""))
        for column, cell in cells.items():
            if field := SMI.get(column):
                raw, quality = cell_value(cell)
                yield Row(uuid, bdf, field, raw, quality)


def cell_value(cell: str) -> tuple[float | None, str]:
    """(number, quality) of a cell: a number with or without unit, a mask, a word, or why there is none."""
    text = cell.strip()
    if match := _NUMBER.fullmatch(text):
        number = float(match[1]) if "." in match[1] else int(match[1])
        return number / 1_000 if match[2] == "mW" else number, "ok"
    if _HEX.fullmatch(text):
        return int(text, 16), "ok"
    if (word := _WORDS.get(text.lower())) is not None:
        return word, "ok"
    lower = text.lower()
    return None, next(
        (quality for part, quality in _REASONS if part in lower), "unreadable" if text else "empty"
    )


def _hung(entity: str, bdf: str | None, within_s: float) -> SourceEvent:
    """A driver that gives no answer is itself the finding: tools that ask it hang, too."""
    who = "the GPU driver" if entity == HOST else "the GPU"
    text = f"{who} gave no answer within {within_s:g} s"
    attributes = {"bdf": bdf} if bdf else {}
    return SourceEvent(entity, "gpu_read_hung", text, "critical", attributes=attributes, standing=True)
