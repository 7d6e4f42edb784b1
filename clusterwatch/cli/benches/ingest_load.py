"""The load of ``bench ingest``: one process that speaks the wire as thousands of nodes, as cheaply as it can.

In: a JSON object on the command line (``Plan``). Out: JSON lines on standard output: ``admitted``,
``announced``, ``running``, and at the end ``done`` with what the nodes saw. Frames are made once and patched
by numpy each second; the step of a rank is the time its frame was made, in ms, so that a reader can tell how
old it is.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, cast

import msgspec
import numpy as np
import uvloop
from websockets.client import ClientProtocol
from websockets.frames import Frame
from websockets.uri import parse_uri

from clusterwatch.cli.benches import ingest_records as made
from clusterwatch.cli.benches.ingest_records import Plan
from collectors.wire import codec, records

SLICES: Final = 100
"""Groups of nodes whose seconds begin at different times, as a fleet's do."""
GREETING_AT_ONCE: Final = 256
ANNOUNCING_AT_ONCE: Final = 32
PATIENCE_S: Final = 120.0
"""A node that is not admitted, or whose ranks are not stored, within this ends the run."""


@dataclass(slots=True)
class Seen:
    """What all nodes saw."""

    hello_s: list[float] = field(default_factory=list)
    block_ack_s: list[float] = field(default_factory=list)
    blocks_sent: int = 0
    frames_sent: int = 0
    rejects: list[str] = field(default_factory=list)
    lost: int = 0


class Node(asyncio.Protocol):
    """One connection."""

    def __init__(self, plan: Plan, number: int, seen: Seen) -> None:
        self._plan, self._number, self._seen = plan, number, seen
        self._protocol = ClientProtocol(parse_uri(plan.url))
        self._block_sent_s = 0.0
        loop = asyncio.get_running_loop()
        self.open: asyncio.Future[None] = loop.create_future()
        self.welcome: asyncio.Future[records.Welcome] = loop.create_future()
        self.announced: asyncio.Future[None] = loop.create_future()
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's own kind
        self._protocol.send_request(self._protocol.connect())
        self._flush()

    def data_received(self, data: bytes) -> None:
        self._protocol.receive_data(data)
        for event in self._protocol.events_received():
            if not isinstance(event, Frame):
                self.open.set_result(None)
            elif event.opcode == 2:  # binary; pings are answered by the protocol itself
                self._take(codec.decode_from_gateway(bytes(event.data)))
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self._seen.lost += 1
        for waiting in (self.open, self.welcome, self.announced):
            if not waiting.done():
                waiting.set_exception(ConnectionError("the gateway closed the connection"))

    def _take(self, message: records.FromGateway) -> None:
        if isinstance(message, records.Welcome):
            self.welcome.set_result(message)
        elif isinstance(message, records.Refuse) and not self.welcome.done():
            self.welcome.set_exception(ConnectionError(message.reason))
        elif isinstance(message, records.Ack) and message.lane == "urgent":
            if not self.announced.done():
                self.announced.set_result(None)
        elif isinstance(message, records.Ack):
            self._seen.block_ack_s.append(time.monotonic() - self._block_sent_s)
        elif isinstance(message, records.Reject):
            self._seen.rejects.append(message.reason)

    def _flush(self) -> None:
        for data in self._protocol.data_to_send():
            if data and not self.transport.is_closing():
                self.transport.write(data)

    def send(self, message: records.Record) -> None:
        self._protocol.send_binary(codec.encode(message))
        self._flush()

    def send_block(self, payload: bytes, sequence: int) -> None:
        self._block_sent_s = time.monotonic()
        self._seen.blocks_sent += 1
        self.send(records.Put("bulk", [records.PutItem(sequence, payload)]))

    async def greet(self, gate: asyncio.Semaphore) -> None:
        """Connects and is admitted. Raises ``TimeoutError``."""
        async with gate, asyncio.timeout(PATIENCE_S):
            begun_s = time.monotonic()
            await asyncio.get_running_loop().create_connection(lambda: self, *self._plan.address)
            await self.open
            self.send(made.hello(self._plan, self._number))
            await self.welcome
            self._seen.hello_s.append(time.monotonic() - begun_s)

    async def announce(self, gate: asyncio.Semaphore) -> None:
        """Says which training processes it runs, and waits until that is stored. Raises ``TimeoutError``."""
        items = [
            records.PutItem(place + 1, codec.encode(record))
            for place, record in enumerate(made.inventories(self._plan, self._number))
        ]
        if not items:  # an idle node
            return
        async with gate, asyncio.timeout(PATIENCE_S):
            self.send(records.Put("urgent", items))
            await self.announced


class Load:
    """All nodes."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._seen = Seen()
        self._nodes = [Node(plan, number, self._seen) for number in range(plan.nodes)]
        self._frames = made.Frames(plan.nodes)
        self._blocks = made.Blocks()

    async def run(self) -> None:
        """Connects, announces, sends for the plan's seconds, says what was seen."""
        begun_s = time.monotonic()
        gate = asyncio.Semaphore(GREETING_AT_ONCE)
        await asyncio.gather(*(node.greet(gate) for node in self._nodes))
        admitted_s = time.monotonic() - begun_s
        _say("admitted", seconds=admitted_s, hello_p99_s=_percentile(self._seen.hello_s, 99))
        begun_s, gate = time.monotonic(), asyncio.Semaphore(ANNOUNCING_AT_ONCE)
        await asyncio.gather(*(node.announce(gate) for node in self._nodes))
        _say("announced", seconds=time.monotonic() - begun_s)
        _say("running")
        late_s = await self._send_for(self._plan.seconds)
        _say(
            "done",
            frames_sent=self._seen.frames_sent,
            blocks_sent=self._seen.blocks_sent,
            ack_p50_s=_percentile(self._seen.block_ack_s, 50),
            ack_p99_s=_percentile(self._seen.block_ack_s, 99),
            acks=len(self._seen.block_ack_s),
            rejects=self._seen.rejects[:3],
            lost=self._seen.lost,
            late_max_s=late_s,
        )

    async def _send_for(self, seconds: int) -> float:
        """Returns by how much the sender itself was late at most."""
        loop = asyncio.get_running_loop()
        begun_s, late_s = loop.time(), 0.0
        blocks = True
        for turn in range(seconds * SLICES):
            if (now := self._plan.has_blocks(turn / SLICES)) != blocks:
                blocks = now
                _say("blocks_on" if blocks else "blocks_off")
            self._send_slice(turn, blocks=blocks)
            wait_s = begun_s + (turn + 1) / SLICES - loop.time()
            late_s = max(late_s, -wait_s)
            await asyncio.sleep(max(0.0, wait_s))
        await asyncio.sleep(1.0)  # the last acknowledgements
        return late_s

    def _send_slice(self, turn: int, *, blocks: bool) -> None:
        numbers = range(turn % SLICES, len(self._nodes), SLICES)
        self._frames.renew(slice(numbers.start, numbers.stop, SLICES), time.time_ns())
        for number in numbers:
            self._nodes[number].transport.write(self._frames.of(number))
        self._seen.frames_sent += len(numbers)
        for number in self._blocks_due(turn) if blocks else ():
            self._nodes[number].send_block(*self._blocks.next(number))

    def _blocks_due(self, turn: int) -> Iterator[int]:
        """Each node has its own moment in the minute."""
        turns, count = 60 * SLICES, len(self._nodes)
        turn %= turns
        return iter(range(turn * count // turns, (turn + 1) * count // turns))


def _percentile(values: list[float], percent: float) -> float | None:
    return float(np.percentile(values, percent)) if values else None


def _say(event: str, **figures: Any) -> None:
    print(json.dumps({"event": event, **figures}), flush=True)


def main() -> int:
    """Runs the plan given as JSON."""
    plan = msgspec.json.decode(sys.argv[1], type=Plan)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    uvloop.run(_run(plan))
    return 0


async def _run(plan: Plan) -> None:
    await Load(plan).run()


if __name__ == "__main__":
    sys.exit(main())
