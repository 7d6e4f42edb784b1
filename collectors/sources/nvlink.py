"""NVLink error counters of each link, from ``nvidia-smi nvlink -e``: they list growth that DCGM does not.

In: commands/nvidia-smi_nvlink_-e.txt; live: the tool, rarely. Out: samples of ``nvlink/<uuid>/<link>``, an
event ``nvlink_inactive`` where the tool says that all links of a GPU are down. Source: nvidia-smi(1).
"""

from __future__ import annotations

import re
from typing import Final

from collectors.minute import MetricSpec
from collectors.sources.base import Reading, Sample, SourceEvent
from collectors.sources.counters import Count, CounterGroup, parsed, samples
from collectors.sources.gpu_identity import UUID
from collectors.sources.tools import output
from collectors.sources.tree import Tree

RECORDING: Final = "nvidia-smi_nvlink_-e.txt"
TIMEOUT_S: Final = 8.0
LINKS_MAX: Final = 64
_GPU: Final = re.compile(r"GPU \d{1,3}: .{0,128}\(UUID: (\S{1,64})\)")
_COUNTER: Final = re.compile(r"\s*Link (\d{1,2}): ([A-Za-z ]{1,40}) Errors?: (.{0,40})$")
_INACTIVE: Final = re.compile(r"all links are in-?active", re.IGNORECASE)

Found = dict[str, dict[int, dict[str, Count]]]
"""UUID -> link -> counter -> count"""


class NvlinkSource:
    """Every link of every GPU."""

    name = "nvlink"
    period_s = 15.0
    deadline_s = 10.0
    metrics: tuple[MetricSpec, ...] = ()

    def __init__(self) -> None:
        self._groups: dict[tuple[str, int], CounterGroup] = {}

    def read(self, tree: Tree, at_s: float) -> Reading:
        try:
            data = output(tree, RECORDING, ["nvidia-smi", "nvlink", "-e"], TIMEOUT_S)
        except OSError:
            return Reading()
        links, inactive = parse(data.decode("utf-8", "replace"))
        found: list[Sample] = []
        groups: dict[tuple[str, int], CounterGroup] = {}
        for uuid, by_link in links.items():
            for link, counts in by_link.items():
                group = groups[uuid, link] = self._groups.get((uuid, link)) or CounterGroup({})
                found += samples(f"nvlink/{uuid}/{link}", group, counts, group.update(counts, at_s))
        self._groups = groups
        return Reading(found, [_down(uuid) for uuid in inactive])


def parse(text: str) -> tuple[Found, list[str]]:
    """(counters of each link, GPUs whose links are all down). Lines that are neither are passed over."""
    found: Found = {}
    inactive: list[str] = []
    uuid = ""
    for line in text.splitlines():
        if match := _GPU.match(line):
            uuid = match[1] if UUID.fullmatch(match[1]) else ""
        elif uuid and (match := _COUNTER.match(line)) and int(match[1]) < LINKS_MAX:
            name = "_".join(match[2].lower().split()) + "_errors"
            found.setdefault(uuid, {}).setdefault(int(match[1]), {})[name] = parsed(match[3])
        elif uuid and _INACTIVE.search(line) and uuid not in inactive:
            inactive.append(uuid)
    return found, inactive


def _down(uuid: str) -> SourceEvent:
    text = "all NVLinks of the GPU are inactive"
    return SourceEvent(f"gpu/{uuid}", "nvlink_inactive", text, "critical", standing=True)
