"""A node that never gives up: sends numbered records, reconnects, and remembers what it was promised."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field

from websockets.exceptions import WebSocketException

from collectors.wire import records
from tests.ingest.client import Node, event, hello

PUT_RECORDS = 20
IN_FLIGHT_RECORDS = 200


@dataclass
class LoadNode:
    """Sends events 1..total of one epoch in the urgent lane."""

    name: str
    total: int
    url: Callable[[], str]
    enrolment: str
    credential: str | None = None
    acked: int = 0
    connections: int = 0
    slowed_count: int = 0
    cut: bool = False
    """set by a test: leave this connection without a word and make another"""
    broken_promises: list[str] = field(default_factory=list)

    async def run(self) -> None:
        """Until everything is acknowledged."""
        while self.acked < self.total:
            try:
                await self._one_connection()
            except (OSError, WebSocketException, AssertionError, TimeoutError):
                await asyncio.sleep(0.05)

    async def _one_connection(self) -> None:
        proof = {"credential": self.credential} if self.credential else {"enrolment_token": self.enrolment}
        node = await Node.connect(
            self.url(), hello(node=self.name, machine_id=f"machine-{self.name}", **proof)
        )
        self.credential = node.welcome.credential or self.credential
        self.connections += 1
        if node.welcome.acked.urgent < self.acked:
            self.broken_promises.append(f"acked {self.acked}, welcomed with {node.welcome.acked.urgent}")
        self.acked = max(self.acked, node.welcome.acked.urgent)
        reader = asyncio.create_task(self._read(node))
        try:
            await self._write(node, reader)
        finally:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)
            with contextlib.suppress(OSError, WebSocketException):
                await node.close()

    async def _write(self, node: Node, reader: asyncio.Task[None]) -> None:
        sent = self.acked
        while self.acked < self.total:
            if reader.done():
                reader.result()
            if self.cut:
                self.cut = False
                node.websocket.transport.abort()
                return
            if sent < self.total and sent - self.acked < IN_FLIGHT_RECORDS:
                last = min(sent + PUT_RECORDS, self.total)
                await node.put("urgent", sent + 1, [event(n) for n in range(sent + 1, last + 1)])
                sent = last
            await asyncio.sleep(0.002)

    async def _read(self, node: Node) -> None:
        while True:
            message = await node.next(60)
            if isinstance(message, records.Ack):
                self.acked = max(self.acked, message.sequence)
            elif isinstance(message, records.Slow):
                self.slowed_count += 1


async def run_all(nodes: list[LoadNode], timeout_s: float) -> None:
    """Runs nodes together. Raises TimeoutError when they do not finish."""
    async with asyncio.timeout(timeout_s):
        await asyncio.gather(*(node.run() for node in nodes))
