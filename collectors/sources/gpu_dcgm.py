"""GPUs as the DCGM exporter tells them, under old and new names.

In: commands/dcgm_metrics.prom, Prometheus' text. Out: samples of ``gpu/<uuid>``. The exporter's types are not
believed (it calls gauges counters), its Xid gauge is no event, and an error page in place of the text is the
exporter's fault, not a lost GPU.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from collectors.minute import MetricSpec
from collectors.sources.base import Reading
from collectors.sources.gpu_identity import UUID, lost_uuids, normal_bdf
from collectors.sources.gpu_metrics import DCGM
from collectors.sources.gpu_table import GpuTable, Labels, Row
from collectors.sources.tree import Tree

TEXT: Final = "commands/dcgm_metrics.prom"
LINES_MAX: Final = 50_000
METRICS: Final = (
    MetricSpec("temperature_c", "c", 1.0),
    MetricSpec("memory_temperature_c", "c", 1.0),
    MetricSpec("power_w", "w", 0.1),
    MetricSpec("sm_clock_mhz", "mhz", 1.0),
    MetricSpec("util_ratio", "ratio", 0.01),
    MetricSpec("gr_engine_active_ratio", "ratio", 0.001),
    MetricSpec("tensor_active_ratio", "ratio", 0.001),
    MetricSpec("throttle_reasons_mask", "mask", 1.0),
    MetricSpec("pcie_width_count", "count", 1.0),
    MetricSpec("nvlink_throughput_bytes_per_s", "bytes_per_s", 1_000.0),
)

_LINE: Final = re.compile(r"DCGM_FI_([A-Z0-9_]{1,64})\{([^\n]{0,4096})\} (\S{1,40})(?: \d+)?\s*$")
_LABEL: Final = re.compile(r'([A-Za-z_][A-Za-z0-9_]{0,63})="((?:[^"\\]|\\.){0,256})"')
_MIG_LABELS: Final = (("GPU_I_ID", "gpu_instance"), ("GPU_I_PROFILE", "profile"))


class GpuDcgmSource:
    """All GPUs that the exporter lists."""

    name = "gpu_dcgm"
    period_s = 1.0
    deadline_s = 3.0
    metrics = METRICS

    def __init__(self) -> None:
        self._table = GpuTable()

    def read(self, tree: Tree, at_s: float) -> Reading:
        try:
            text = tree.read_text(TEXT)
        except OSError:
            return Reading()
        rows = list(parse(text))
        if not rows:
            return Reading()
        return self._table.reading(rows, lost_uuids(tree), at_s)


def parse(text: str) -> Iterator[Row]:
    """Rows of the exporter's text that are of a GPU and that we know. Damaged lines are left out."""
    for line in text.split("\n", LINES_MAX)[:LINES_MAX]:
        match = _LINE.match(line)
        field = DCGM.get(match[1]) if match else None
        if match is None or field is None:
            continue
        labels = dict(_LABEL.findall(match[2]))
        uuid = labels.get("UUID") or labels.get("uuid") or ""
        if UUID.fullmatch(uuid):
            raw = _number(match[3])
            quality = "unreadable" if not match[3].startswith("<<<") else "blank_sentinel"
            yield Row(uuid, normal_bdf(labels.get("pci_bus_id", "")), field, raw, quality, _instance(labels))


def _instance(labels: dict[str, str]) -> Labels:
    return tuple((ours, labels[theirs]) for theirs, ours in _MIG_LABELS if labels.get(theirs))


def _number(text: str) -> float | None:
    """Whole numbers stay exact: the blanks are beyond what a float can tell apart."""
    try:
        return int(text) if text.lstrip("-").isdigit() and text.isascii() else float(text)
    except ValueError:
        return None
