"""One simulated node on the wire: its spool, its hello, and the real agent's sender."""

from __future__ import annotations

import time
from pathlib import Path
from typing import cast

from clusterwatch.simulate import topology
from clusterwatch.simulate.memory_spool import MemorySpool
from collectors import __version__
from collectors.clock import Clock
from collectors.config import AgentConfig
from collectors.sender import Sender
from collectors.spool import Spool
from collectors.wire import codec, records


class Line:
    """Keeps one node connected. ``config.state_dir`` holds its credential."""

    def __init__(self, node: topology.SimulatedNode, config: AgentConfig, clock: Clock) -> None:
        self.node = node
        self.spool = MemorySpool()
        self._config = config
        # The sender asks of a spool what MemorySpool offers, and nothing of the disk.
        spool = cast(Spool, self.spool)
        self._sender = Sender(config, spool, clock, self._hello, self._on_capture)

    @property
    def connected(self) -> bool:
        return self._sender.connected

    async def run(self) -> None:
        """Connects again and again until ``stop``."""
        await self._sender.run()

    async def stop(self) -> None:
        """Says Bye; ``run`` returns soon after."""
        await self._sender.stop()

    def offer(self, frame: records.HotFrame) -> None:
        """Sends the newest hot frame where there is a connection."""
        self._sender.hot(frame)

    def append(self, record: records.Spooled) -> None:
        """Sends a record for certain, unless the line is down for very long."""
        self.spool.append(record)
        self._sender.wake()

    def _hello(self, credential: str | None, enrolment_token: str | None) -> records.Hello:
        self.spool.report_drops(time.time_ns())
        return records.Hello(
            version=codec.VERSION,
            cluster=self._config.cluster,
            node=self.node.name,
            machine_id=self.node.machine_id,
            boot_id=self._config.boot_id,
            epoch=self.spool.epoch,
            agent_version=__version__,
            t_ns=time.time_ns(),
            next=self.spool.next_sequences(),
            credential=credential,
            enrolment_token=enrolment_token,
            gpus=list(self.node.gpus),
            cpu_count=topology.CPU_COUNT,
            memory_bytes=topology.MEMORY_BYTES,
            simulated=True,
            rack=self.node.rack,
            leaf=self.node.leaf,
            nvlink_domain=self.node.name,
        )

    def _on_capture(self, order: records.CaptureOrder) -> None:
        """Simulated processes have no recorder and no stack: says so instead of making one up."""
        silent = {str(rank): "a simulated process keeps no trace" for rank in order.ranks or ()}
        self.append(records.CaptureDone(time.time_ns(), order.capture_id, [], silent))


def credential_folder(root: Path, cluster: str, node: str) -> Path:
    """Where a simulated node keeps its credential, made when missing; 0700.

    Raises ``OSError``.
    """
    folder = root / "simulator" / cluster / node
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder
