"""A gateway that stores nothing but what it heard, to see what a simulated cluster really says."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from websockets.asyncio.server import ServerConnection, serve

from collectors.wire import codec, records


class FakeGateway:
    """Welcomes everybody, acknowledges what it keeps."""

    def __init__(self) -> None:
        self.hellos: list[records.Hello] = []
        self.frames: dict[str, list[records.HotFrame]] = defaultdict(list)
        self.kept: dict[tuple[str, str, str], dict[int, records.Spooled]] = defaultdict(dict)
        """(node, epoch, lane) -> sequence -> record"""
        self.byes: list[str] = []
        self.closed: list[str] = []
        self.acknowledges = True
        self.connections: dict[str, ServerConnection] = {}
        self.port = 0

    @asynccontextmanager
    async def running(self) -> AsyncIterator[FakeGateway]:
        async with serve(self._talk, "127.0.0.1", self.port, compression=None) as server:
            self.port = server.sockets[0].getsockname()[1]
            yield self

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}"

    def records_of(self, kind: type) -> list[records.Spooled]:
        """Every kept record of a kind, whoever sent it."""
        return [record for lane in self.kept.values() for record in lane.values() if isinstance(record, kind)]

    async def _talk(self, connection: ServerConnection) -> None:
        hello = codec.decode_from_node(await connection.recv(decode=False))
        assert isinstance(hello, records.Hello)
        self.hellos.append(hello)
        self.connections[hello.node] = connection
        acked = records.LaneNext(*(max(self._lane(hello, lane), default=0) for lane in records.LANES))
        credential = f"credential of {hello.node}" if hello.enrolment_token else None
        await connection.send(codec.encode(records.Welcome(codec.VERSION, 1, acked, credential)))
        async for data in connection:
            assert isinstance(data, bytes)
            await self._take(connection, hello, codec.decode_from_node(data))
        self.closed.append(hello.node)

    def _lane(self, hello: records.Hello, lane: str) -> dict[int, records.Spooled]:
        return self.kept[hello.node, hello.epoch, lane]

    async def _take(
        self, connection: ServerConnection, hello: records.Hello, message: records.FromNode
    ) -> None:
        if isinstance(message, records.HotFrame):
            self.frames[hello.node].append(message)
        elif isinstance(message, records.Bye):
            self.byes.append(hello.node)
        elif isinstance(message, records.Put) and self.acknowledges:
            lane = self._lane(hello, message.lane)
            for item in message.items:
                assert item.sequence not in lane, "a record that was acknowledged came again"
                lane[item.sequence] = codec.decode_record(item.payload)
            await connection.send(codec.encode(records.Ack(message.lane, message.items[-1].sequence)))


async def until(reached: object, within_s: float = 20.0) -> None:
    """Waits until ``reached()`` is true."""
    assert callable(reached)
    async with asyncio.timeout(within_s):
        while not reached():
            await asyncio.sleep(0.02)
