"""GPUs as the DCGM exporter tells them, under old and new names.

In: Prometheus' text, recorded as commands/dcgm_metrics.prom or asked of the exporter. Out: samples of
``gpu/<uuid>``. The exporter's types are not believed (it calls gauges counters), its Xid gauge is no event,
and an error page in place of the text is the exporter's fault, not a lost GPU.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterator
from http.client import HTTPException
from typing import Final
from urllib.request import urlopen

from msgspec.structs import replace

from collectors.minute import MetricSpec
from collectors.sources.base import HOST, Reading, Sample
from collectors.sources.gpu_identity import UUID, expected_uuids, lost_uuids, normal_bdf, told_twice
from collectors.sources.gpu_metrics import DCGM
from collectors.sources.gpu_pause import PAUSED, WATCH, Paused
from collectors.sources.gpu_states import lost_event
from collectors.sources.gpu_table import GpuTable, Labels, Row
from collectors.sources.tree import READ_MAX_BYTES, Tree

URL_SETTING: Final = "CLUSTERWATCH_DCGM_URL"
ANSWER_S: Final = 2.0
DRIVER: Final = "proc/driver/nvidia/version"
"""Where the agent sees the driver itself, the driver tells what is lost, and not the exporter."""
TEXT: Final = "commands/dcgm_metrics.prom"
LINES_MAX: Final = 50_000
METRICS: Final = (
    MetricSpec("dcgm_readable_count", "count", 1.0),
    MetricSpec("temperature_c", "c", 1.0),
    MetricSpec("memory_temperature_c", "c", 1.0),
    MetricSpec("power_w", "w", 0.1),
    MetricSpec("sm_clock_mhz", "mhz", 1.0),
    MetricSpec("util_ratio", "ratio", 0.01),
    MetricSpec("gr_engine_active_ratio", "ratio", 0.001),
    MetricSpec("tensor_active_ratio", "ratio", 0.001),
    MetricSpec("throttle_reasons_mask", "mask", 1.0),
    MetricSpec("power_violation_ratio", "ratio", 0.001),
    MetricSpec("thermal_violation_ratio", "ratio", 0.001),
    MetricSpec("pcie_width_count", "count", 1.0),
    MetricSpec("nvlink_throughput_bytes_per_s", "bytes_per_s", 1_000.0),
)

PREFIX: Final = "DCGM_FI_"
LABELS_MAX_CHARS: Final = 4_096
_VALUE: Final = re.compile(r"(\S{1,40})(?: \d{1,20})?\s*")
_LABEL: Final = re.compile(r'([A-Za-z_][A-Za-z0-9_]{0,63})="((?:[^"\\]|\\.){0,256})"')
_MIG_LABELS: Final = (("GPU_I_ID", "gpu_instance"), ("GPU_I_PROFILE", "profile"))


class GpuDcgmSource:
    """All GPUs that the exporter lists."""

    name = "gpu_dcgm"
    period_s = 5.0
    deadline_s = 3.0
    metrics = METRICS

    def __init__(self, url: str | None = None) -> None:
        """``url``: where the exporter of this machine answers; ``CLUSTERWATCH_DCGM_URL`` by default."""
        self._url = url or os.environ.get(URL_SETTING)
        self._table = GpuTable()
        self._told: list[Sample] = []
        """of the look before, to be unknown in a pause"""

    def read(self, tree: Tree, at_s: float) -> Reading:
        try:
            text = self._text(tree)
        except FileNotFoundError:
            return Reading()
        except Paused:
            told = self._told or [Sample(HOST, "dcgm_readable_count", None)]
            return Reading([replace(sample, value=None, quality=PAUSED) for sample in told])
        except (OSError, HTTPException, ValueError) as error:
            quality = "no_answer" if isinstance(error, TimeoutError) else "unreadable"
            return Reading([Sample(HOST, "dcgm_readable_count", None, quality)])
        rows = list(parse(text))
        if not rows:
            return Reading(
                [Sample(HOST, "dcgm_readable_count", None, "unreadable" if text.strip() else "empty")]
            )
        alone = tree.is_live and not tree.exists(DRIVER)
        lost = frozenset(expected_uuids(tree)) - {row.uuid for row in rows} if alone else lost_uuids(tree)
        reading = self._table.reading(rows, lost, at_s, told_twice(tree, "smi"))
        events = [*(map(lost_event, sorted(lost)) if alone else ()), *reading.events]
        self._told = [Sample(HOST, "dcgm_readable_count", 1), *reading.samples]
        return Reading(self._told, events)

    def _text(self, tree: Tree) -> str:
        """The exporter's text.

        Raises:
            Paused: the driver is released.
            OSError, HTTPException: no answer.
            ValueError: a bad address.
        """
        if not tree.is_live or not self._url:
            return tree.read_text(TEXT)
        if WATCH.is_on:  # the exporter would ask the driver for us
            raise Paused
        if not self._url.startswith(("http://", "https://")):
            raise ValueError(f"{URL_SETTING} must be an http address")
        with urlopen(self._url, timeout=ANSWER_S) as answer:  # noqa: S310  an http address, see above
            data: bytes = answer.read(READ_MAX_BYTES)
        return data.decode("utf-8", "replace")


def parse(text: str) -> Iterator[Row]:
    """Rows of the exporter's text that are of a GPU and that we know. Damaged lines are left out."""
    for line in text.split("\n", LINES_MAX)[:LINES_MAX]:
        name, _, rest = line.partition("{")
        field = DCGM.get(name.removeprefix(PREFIX)) if name.startswith(PREFIX) else None
        if field is None:
            continue
        told, _, number = rest.rpartition("} ")
        of = _of(told) if len(told) <= LABELS_MAX_CHARS else None
        match = _VALUE.fullmatch(number)
        if of and match:
            uuid, bdf, labels = of
            quality = "blank_sentinel" if number.startswith("<<<") else "unreadable"
            yield Row(uuid, bdf, field, _number(match[1]), quality, labels)


@functools.lru_cache(maxsize=1_024)
def _of(told: str) -> tuple[str, str | None, Labels] | None:
    """(UUID, PCI address, MIG instance) of a line's labels, which are the same on all lines of a GPU."""
    labels = dict(_LABEL.findall(told))
    uuid = labels.get("UUID") or labels.get("uuid") or ""
    instance = tuple((ours, labels[theirs]) for theirs, ours in _MIG_LABELS if labels.get(theirs))
    return (uuid, normal_bdf(labels.get("pci_bus_id", "")), instance) if UUID.fullmatch(uuid) else None


def _number(text: str) -> float | None:
    """Whole numbers stay exact: the blanks are beyond what a float can tell apart."""
    try:
        return int(text) if text.lstrip("-").isdigit() and text.isascii() else float(text)
    except ValueError:
        return None
