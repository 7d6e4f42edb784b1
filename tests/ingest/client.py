"""A node as the tests play it: the real wire over a real socket, without an agent behind it."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

from collectors.wire import codec, records

TIMEOUT_S = 20.0


def hello(**changes: Any) -> records.Hello:
    """A valid hello of node n1 without any proof."""
    values: dict[str, Any] = {
        "version": codec.VERSION,
        "cluster": "alpha",
        "node": "n1",
        "machine_id": "machine-n1",
        "boot_id": "boot",
        "epoch": "epoch-1",
        "agent_version": "0.1.0",
        "t_ns": time.time_ns(),
        "next": records.LaneNext(1, 1),
    }
    return records.Hello(**(values | changes))


def event(number: int, **changes: Any) -> records.Event:
    """A numbered event: its text is its number."""
    values: dict[str, Any] = {
        "t_ns": time.time_ns(),
        "source": "test",
        "kind": "numbered",
        "severity": "info",
        "text": str(number),
    }
    return records.Event(**(values | changes))


def items(first: int, messages: list[Any]) -> list[records.PutItem]:
    """Consecutive items from sequence ``first``."""
    return [records.PutItem(first + place, codec.encode(message)) for place, message in enumerate(messages)]


@dataclass
class Node:
    """One connection after its welcome."""

    websocket: ClientConnection
    welcome: records.Welcome
    rejects: list[records.Reject] = field(default_factory=list)
    slows: list[records.Slow] = field(default_factory=list)
    orders: list[records.CaptureOrder] = field(default_factory=list)

    @classmethod
    async def connect(cls, url: str, message: records.Hello) -> Node:
        """Raises AssertionError with the refusal when it is refused."""
        websocket = await connect(url, compression=None, max_size=None)
        await websocket.send(codec.encode(message))
        answer = codec.decode_from_gateway(await asyncio.wait_for(websocket.recv(decode=False), TIMEOUT_S))
        assert isinstance(answer, records.Welcome), answer
        return cls(websocket, answer)

    async def send(self, message: Any) -> None:
        await self.websocket.send(codec.encode(message))

    async def put(self, lane: records.Lane, first: int, messages: list[Any]) -> None:
        await self.send(records.Put(lane, items(first, messages)))

    async def next(self, timeout_s: float = TIMEOUT_S) -> Any:
        """The next message; rejects, slows and orders are noted too."""
        raw = await asyncio.wait_for(self.websocket.recv(decode=False), timeout_s)
        message = codec.decode_from_gateway(raw)
        if isinstance(message, records.Reject):
            self.rejects.append(message)
        elif isinstance(message, records.Slow):
            self.slows.append(message)
        elif isinstance(message, records.CaptureOrder):
            self.orders.append(message)
        return message

    async def acked(self, lane: records.Lane, sequence: int, timeout_s: float = TIMEOUT_S) -> None:
        """Waits until the lane is acknowledged up to ``sequence``."""
        async with asyncio.timeout(timeout_s):
            while True:
                message = await self.next(timeout_s)
                if isinstance(message, records.Ack) and message.lane == lane and message.sequence >= sequence:
                    return

    async def close(self) -> None:
        if self.websocket.close_code is None:
            await self.websocket.close()


async def refusal(url: str, message: Any) -> records.Refuse:
    """The refusal that a first message earns."""
    async with connect(url, compression=None, max_size=None) as websocket:
        await websocket.send(message if isinstance(message, bytes) else codec.encode(message))
        answer = codec.decode_from_gateway(await asyncio.wait_for(websocket.recv(decode=False), TIMEOUT_S))
        assert isinstance(answer, records.Refuse), answer
        return answer
