"""What the node should have against what is there: lost GPUs, RDMA ports that are missing or too slow.

In: etc/clusterwatch/agent.toml, sys/class/infiniband, what lists GPUs; the node's class, where it has one.
Out: standing events ``gpu_lost``, ``port_missing``, ``rate_degraded``, ``node_class_invalid`` and those of
``expected_parts``; the fact ``node_class``, by which nodes find their peers. Missing mounts are told by their
own source.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from collectors.sources import node_class
from collectors.sources.base import HOST, Attribute, Reading, Sample, SourceEvent
from collectors.sources.expected_parts import KINDS, ClassJudge
from collectors.sources.gpu_identity import inventory, lost_uuids, normal_bdf
from collectors.sources.gpu_states import lost_event
from collectors.sources.infiniband import ROOT, expected_ports, rate_of
from collectors.sources.tree import Tree
from collectors.sources.versions_facts import Facts

CLASS_EVERY_S: Final = 120.0
_RATE_SHARE_MIN: Final = 0.99
_SEEN: Final = "parts-seen.json"
_SEEN_MAX: Final = 1_024


class ExpectedSource:
    """The inventory of the node's class, looked through rarely: parts go missing, they do not flicker."""

    name = "expected"
    period_s = 15.0
    deadline_s = 5.0
    metrics = ()

    def __init__(self) -> None:
        self._judge = ClassJudge()
        self._class_events: list[SourceEvent] = []
        self._judged_at_s: float | None = None
        self._seen_file: Path | None = None

    def keep_in(self, folder: Path) -> None:
        """Where parts sat is kept, so that one that is missing after a boot has a name."""
        self._seen_file = folder / _SEEN
        try:
            kept = json.loads(self._seen_file.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return
        for kind in KINDS:
            places = kept.get(kind) if isinstance(kept, dict) else None
            if isinstance(places, list):
                self._judge.seen[kind] = [one for one in places[:_SEEN_MAX] if one == normal_bdf(str(one))]

    def read(self, tree: Tree, at_s: float) -> Reading:
        events = [lost_event(uuid) for uuid in sorted(lost_uuids(tree))]
        for (device, number), wanted_gbps in expected_ports(tree).items():
            entity = f"port/{device}/{number}"
            events += _faults(tree, entity, device, number, wanted_gbps)
        if tree.is_due(self._judged_at_s, at_s, CLASS_EVERY_S):
            self._class_events, self._judged_at_s = self._by_class(tree, at_s), at_s
        return Reading(_class_fact(tree), events + self._class_events)

    def _by_class(self, tree: Tree, at_s: float) -> list[SourceEvent]:
        told = inventory(tree)
        name = node_class.chosen(tree, told.get("node_class"))
        if not name:
            return []
        try:
            wanted = node_class.load(tree, name)
        except node_class.ClassError as error:
            return [SourceEvent(HOST, "node_class_invalid", str(error), "warning", standing=True)]
        before = json.dumps(self._judge.seen)
        events = self._judge.events(tree, wanted, told, at_s)
        if self._seen_file is not None and (now := json.dumps(self._judge.seen)) != before:
            self._keep(self._seen_file, now)
        return events

    def _keep(self, file: Path, text: str) -> None:
        new = file.with_suffix(".new")
        try:
            new.write_text(text, encoding="utf-8")
            new.replace(file)
        except OSError:
            # A full disk costs the names of parts that go missing later, nothing else.
            self._seen_file = None


def _class_fact(tree: Tree) -> list[Sample]:
    """Nothing is told of a node that no class was named for."""
    facts = Facts()
    facts.tell("node_class", node_class.chosen(tree, inventory(tree).get("node_class")))
    return facts.samples


def _faults(
    tree: Tree, entity: str, device: str, number: int, wanted_gbps: float | None
) -> Iterator[SourceEvent]:
    folder = f"{ROOT}/{device}/ports/{number}"
    told = {"rdma_device": device}
    if not tree.exists(folder):
        text = f"{device} port {number} is missing: the inventory has it, the kernel does not"
        yield SourceEvent(entity, "port_missing", text, "critical", attributes=told, standing=True)
        return
    try:
        state, rate = tree.read_text(f"{folder}/state", 256), tree.read_text(f"{folder}/rate", 256)
    except OSError:
        return
    gbps, _ = rate_of(rate)
    if "ACTIVE" in state and gbps is not None and wanted_gbps and gbps < wanted_gbps * _RATE_SHARE_MIN:
        text = f"{device} port {number} runs at {gbps:g} Gb/s instead of {wanted_gbps:g}"
        attributes: dict[str, Attribute] = {**told, "rate_gbps": gbps, "expected_rate_gbps": wanted_gbps}
        yield SourceEvent(entity, "rate_degraded", text, "warning", attributes=attributes, standing=True)
