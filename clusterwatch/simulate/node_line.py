"""One simulated node: its spool, its hello, its connection, and what its agent suffers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from clusterwatch.simulate import topology
from clusterwatch.simulate.memory_spool import MemorySpool
from clusterwatch.simulate.wire import Shared, Wire
from collectors import __version__
from collectors.clock import Clock
from collectors.config import AgentConfig
from collectors.wire import codec, records


class NodeLine:
    """Speaks for one node."""

    def __init__(
        self,
        node: topology.SimulatedNode,
        config: AgentConfig,
        clock: Clock,
        shared: Shared,
        on_capture: Callable[[topology.SimulatedNode, records.CaptureOrder], None],
        facts: dict[str, str],
        spool_bytes: int,
    ) -> None:
        """``spool_bytes``: what each lane may hold."""
        self.node = node
        self.spool = MemorySpool(spool_bytes)
        self.facts = facts
        self._config = replace(config, node=node.name, machine_id=node.machine_id)
        self._clock = clock
        self.introduced = False
        """it has said what it is, and its ranks have"""
        self.wire = Wire(
            self._config, self.spool, self._hello, lambda order: on_capture(node, order), shared, self._forget
        )

    def _forget(self) -> None:
        self.introduced = False

    def append(self, record: records.Spooled) -> None:
        """Sends a record for certain, unless the line is down for very long."""
        self.spool.append(record)

    def inventory(self, t_ns: int) -> records.Inventory:
        """What the node is."""
        return records.Inventory(
            t_ns=t_ns, hostname=self.node.name, kernel="6.8.0", os="simulated", cpu_model="simulated",
            cpu_count=topology.CPU_COUNT, memory_bytes=topology.MEMORY_BYTES, gpus=list(self.node.gpus),
            facts=self.facts,
        )  # fmt: skip

    def _hello(self, credential: str | None, enrolment_token: str | None) -> records.Hello:
        self.spool.report_drops(self._clock.now_ns())
        node = self.node
        return records.Hello(
            version=codec.VERSION,
            cluster=self._config.cluster,
            node=node.name,
            machine_id=node.machine_id,
            boot_id=self._config.boot_id,
            epoch=self.spool.epoch,
            agent_version=__version__,
            t_ns=self._clock.now_ns(),
            next=self.spool.next_sequences(),
            credential=credential,
            enrolment_token=enrolment_token,
            gpus=list(node.gpus),
            cpu_count=topology.CPU_COUNT,
            memory_bytes=topology.MEMORY_BYTES,
            simulated=True,
            rack=node.rack,
            leaf=node.leaf,
            nvlink_domain=node.nvlink_domain,
        )


def facts_of(node: topology.SimulatedNode, shape: topology.Shape) -> dict[str, str]:
    """What inventories say of a node's place: the switches of its ports, its pod, its storage."""
    leaves = {f"port_{index}_leaf": leaf for index, leaf in enumerate(node.leaves)}
    return {
        "simulated": "yes",
        "fabric": shape.fabric,
        "pod": node.pod,
        "spines": " ".join(node.spines),
        "storage": " ".join(topology.STORAGE_SERVICES),
        **(leaves if node.leaf is None else {}),
    }
