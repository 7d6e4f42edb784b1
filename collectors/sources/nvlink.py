"""NVLink error counters of each link, from ``nvidia-smi nvlink -e``: they list growth that DCGM does not.

In: commands/nvidia-smi_nvlink_-e.txt; live: the tool, rarely. Out: samples of ``nvlink/<uuid>/<link>``, an
event ``link_down`` where the tool says that links of a GPU are inactive: then it prints no counters, and what
they were before is unknown, not gone. A GPU goes by the UUID of its heading. Source: nvidia-smi(1).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from collectors.minute import MetricSpec
from collectors.sources.base import Attribute, Reading, Sample, SourceEvent
from collectors.sources.counters import NOT_AVAILABLE, Count, CounterGroup, parsed, samples
from collectors.sources.gpu_identity import UUID
from collectors.sources.gpu_pause import PAUSED, Paused
from collectors.sources.gpu_table import DUPLICATE_UUID
from collectors.sources.tools import output
from collectors.sources.tree import Tree

RECORDING: Final = "nvidia-smi_nvlink_-e.txt"
TIMEOUT_S: Final = 8.0
LINKS_MAX: Final = 64
LINES_MAX: Final = 100_000
_GPU: Final = re.compile(r"GPU \d{1,3}: .{0,128}\(UUID: (\S{1,64})\)")
_COUNTER: Final = re.compile(r"\s*Link (\d{1,2}): ([A-Za-z ]{1,40}) Errors?: (.{0,40})$")
_NO_COUNTER: Final = re.compile(r"\s*Link (\d{1,2}): (N/A|<?in-?active>?)\s*$", re.IGNORECASE)
_INACTIVE: Final = re.compile(r"all links are in-?active", re.IGNORECASE)
LINK_DOWN: Final = "link_down"
COUNTERS: Final = ("replay_errors", "recovery_errors", "crc_errors")

Counts = dict[str, Count]


@dataclass(slots=True)
class Links:
    """What the tool says of one GPU.

    Attributes:
        counts: link -> its counters.
        inactive: the tool says that all links are.
        headings: how often the GPU is listed; one that is listed twice is two GPUs with one UUID.
    """

    counts: dict[int, Counts] = field(default_factory=dict)
    inactive: bool = False
    headings: int = 1

    @property
    def down(self) -> list[int]:
        """Links that the tool itself calls inactive."""
        return [
            link
            for link, counts in sorted(self.counts.items())
            if any(count.quality == LINK_DOWN for count in counts.values())
        ]


class NvlinkSource:
    """Every link of every GPU."""

    name = "nvlink"
    period_s = 60.0
    deadline_s = 10.0
    metrics: tuple[MetricSpec, ...] = ()

    def __init__(self) -> None:
        self._groups: dict[tuple[str, int], CounterGroup] = {}

    def read(self, tree: Tree, at_s: float) -> Reading:
        try:
            data = output(tree, RECORDING, ["nvidia-smi", "nvlink", "-e"], TIMEOUT_S)
        except Paused:
            return Reading(list(self._paused(at_s)))
        except OSError:
            return Reading()
        gpus = parse(data.decode("utf-8", "replace"))
        usual = {link for links in gpus.values() for link in links.counts}
        found: list[Sample] = []
        events: list[SourceEvent] = []
        groups: dict[tuple[str, int], CounterGroup] = {}
        for uuid, links in gpus.items():
            by_link = links.counts
            if links.inactive and not by_link:
                known = {link for owner, link in self._groups if owner == uuid}
                by_link = dict.fromkeys(sorted(known or usual), _unknown(LINK_DOWN))
            if links.headings > 1:
                by_link = dict.fromkeys(by_link, _unknown(DUPLICATE_UUID))
            for link, counts in by_link.items():
                group = groups[uuid, link] = self._groups.get((uuid, link)) or CounterGroup({})
                found += samples(f"nvlink/{uuid}/{link}", group, counts, group.update(counts, at_s))
            events += _down(uuid, links)
        self._groups = groups
        return Reading(found, events)

    def _paused(self, at_s: float) -> Iterator[Sample]:
        """Every counter that is known, unknown while the driver is released."""
        counts = _unknown(PAUSED)
        for (uuid, link), group in self._groups.items():
            yield from samples(f"nvlink/{uuid}/{link}", group, counts, group.update(counts, at_s))


def parse(text: str) -> dict[str, Links]:
    """UUID -> links. Lines that say nothing of a link are passed over."""
    found: dict[str, Links] = {}
    links: Links | None = None
    for line in text.splitlines()[:LINES_MAX]:
        if match := _GPU.match(line):
            links = None
            if UUID.fullmatch(uuid := match[1]):
                links = found.setdefault(uuid, Links(headings=0))
                links.headings += 1
        elif links is None:
            continue
        elif (match := _COUNTER.match(line)) and int(match[1]) < LINKS_MAX:
            name = "_".join(match[2].lower().split()) + "_errors"
            links.counts.setdefault(int(match[1]), {})[name] = parsed(match[3])
        elif (match := _NO_COUNTER.match(line)) and int(match[1]) < LINKS_MAX:
            reason = NOT_AVAILABLE if match[2].upper() == "N/A" else LINK_DOWN
            links.counts.setdefault(int(match[1]), _unknown(reason))
        elif _INACTIVE.search(line):
            links.inactive = True
    return found


def _unknown(reason: str) -> Counts:
    return dict.fromkeys(COUNTERS, Count(None, reason))


def _down(uuid: str, links: Links) -> Iterator[SourceEvent]:
    """Links that are down: a fault, not an empty answer."""
    if links.inactive:
        text = "all NVLinks of the GPU are inactive"
        yield SourceEvent(f"gpu/{uuid}", LINK_DOWN, text, "critical", standing=True)
    for link in links.down:
        attributes: dict[str, Attribute] = {"link": link}
        text = f"NVLink {link} is inactive"
        entity = f"nvlink/{uuid}/{link}"
        yield SourceEvent(entity, LINK_DOWN, text, attributes=attributes, standing=True)
