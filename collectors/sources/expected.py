"""What the node should have against what is there: lost GPUs, RDMA ports that are missing or too slow.

In: etc/clusterwatch/agent.toml, sys/class/infiniband, what lists GPUs. Out: standing events ``gpu_lost``,
``port_missing`` and ``rate_degraded``. Missing mounts are told by their own source.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from collectors.sources.base import Attribute, Reading, SourceEvent
from collectors.sources.gpu_identity import lost_uuids
from collectors.sources.gpu_states import lost_event
from collectors.sources.infiniband import ROOT, expected_ports, rate_of
from collectors.sources.tree import Tree

_RATE_SHARE_MIN: Final = 0.99


class ExpectedSource:
    """The inventory of the node's class, looked through rarely: parts go missing, they do not flicker."""

    name = "expected"
    period_s = 15.0
    deadline_s = 5.0
    metrics = ()

    def read(self, tree: Tree, at_s: float) -> Reading:
        events = [lost_event(uuid) for uuid in sorted(lost_uuids(tree))]
        for (device, number), wanted_gbps in expected_ports(tree).items():
            entity = f"port/{device}/{number}"
            events += _faults(tree, entity, device, number, wanted_gbps)
        return Reading((), events)


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
