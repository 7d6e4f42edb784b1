"""GPUs as the driver itself tells them, through nvidia-smi.

In: commands/nvidia-smi_query-gpu.csv; live: the tool with a deadline, in a process of its own, since a driver
that hangs takes its caller with it. Out: samples of ``gpu/<uuid>``, ``gpu_read_hung`` where the driver gave
no answer in time. Each cell stands for itself: ``[N/A]`` costs its own value, never the row.
Source: nvidia-smi(1), ``--help-query-gpu``.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from typing import Final

from collectors.minute import MetricSpec
from collectors.sources.base import HOST, Reading, SourceEvent
from collectors.sources.gpu_identity import UUID, lost_uuids, normal_bdf, smi_rows
from collectors.sources.gpu_metrics import SMI
from collectors.sources.gpu_table import LOST, GpuTable, Row
from collectors.sources.tools import output
from collectors.sources.tree import Tree

RECORDING: Final = "nvidia-smi_query-gpu.csv"
TIMEOUT_S: Final = 8.0
_ASKED: Final = (
    "index,uuid,pci.bus_id,temperature.gpu,temperature.memory,power.draw,clocks.sm,clocks.mem,utilization.gpu,"
    "utilization.memory,memory.used,memory.free,clocks_throttle_reasons.active,pcie.link.gen.current,"
    "pcie.link.width.current,ecc.errors.corrected.volatile.total,ecc.errors.uncorrected.volatile.total,"
    "remapped_rows.correctable,remapped_rows.uncorrectable,remapped_rows.pending,remapped_rows.failure"
)
_NUMBER: Final = re.compile(r"(-?\d{1,20}(?:\.\d{1,9})?)(?: ?(?:W|mW|C|MHz|%|MiB))?")
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
    period_s = 15.0
    deadline_s = 10.0
    metrics: tuple[MetricSpec, ...] = ()

    def __init__(self) -> None:
        self._table = GpuTable()

    def read(self, tree: Tree, at_s: float) -> Reading:
        argv = ["nvidia-smi", f"--query-gpu={_ASKED}", "--format=csv"]
        try:
            data = output(tree, RECORDING, argv, TIMEOUT_S)
        except OSError as error:
            return Reading((), list(_hung(error)))
        rows = list(parse(data.decode("utf-8", "replace")))
        return self._table.reading(rows, lost_uuids(tree) if rows else frozenset(), at_s)


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
        return number, "ok"
    if _HEX.fullmatch(text):
        return int(text, 16), "ok"
    if (word := _WORDS.get(text.lower())) is not None:
        return word, "ok"
    lower = text.lower()
    return None, next(
        (quality for part, quality in _REASONS if part in lower), "unreadable" if text else "empty"
    )


def _hung(error: OSError) -> Iterator[SourceEvent]:
    """A driver that gives no answer is itself the finding: tools that ask it hang, too."""
    if error.errno == errno.ETIMEDOUT:
        text = f"the GPU driver gave no answer within {TIMEOUT_S:g} s"
        yield SourceEvent(HOST, "gpu_read_hung", text, "critical", standing=True)
