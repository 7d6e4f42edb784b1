"""The lean connection says to a gateway what the agent's own sender says, message by message."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
from websockets.asyncio.server import ServerConnection, serve

from clusterwatch.simulate.memory_spool import MemorySpool
from clusterwatch.simulate.wire import Shared, Wire
from collectors.clock import SystemClock
from collectors.config import AgentConfig
from collectors.sender import Sender
from collectors.spool import Spool
from collectors.wire import codec, records
from tests.simulate.gateway import until


@dataclass
class Server:
    """Answers each hello with what a test wants, and keeps everything it hears."""

    answers: list[Callable[[records.Hello], records.FromGateway]] = field(default_factory=list)
    heard: list[records.FromNode] = field(default_factory=list)
    connections: list[ServerConnection] = field(default_factory=list)
    port: int = 0

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Server]:
        async with serve(self._talk, "127.0.0.1", 0, compression=None) as server:
            self.port = server.sockets[0].getsockname()[1]
            yield self

    async def _talk(self, connection: ServerConnection) -> None:
        hello = codec.decode_from_node(await connection.recv(decode=False))
        assert isinstance(hello, records.Hello)
        self.heard.append(hello)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        await connection.send(codec.encode(answer(hello)))
        self.connections.append(connection)
        with contextlib.suppress(Exception):  # the test may break the line at any moment
            async for data in connection:
                self.heard.append(codec.decode_from_node(cast(bytes, data)))

    async def say(self, message: records.FromGateway) -> None:
        await self.connections[-1].send(codec.encode(message))

    def of(self, kind: type) -> list[Any]:
        return [message for message in self.heard if isinstance(message, kind)]

    def sequences(self, lane: records.Lane = "urgent") -> list[int]:
        """Of all records of a lane in the order in which they came."""
        return [item.sequence for put in self.of(records.Put) if put.lane == lane for item in put.items]


def welcome(urgent: int = 0, bulk: int = 0) -> Callable[[records.Hello], records.FromGateway]:
    def answer(hello: records.Hello) -> records.FromGateway:
        credential = "issued" if hello.enrolment_token else None
        return records.Welcome(codec.VERSION, 1, records.LaneNext(urgent, bulk), credential)

    return answer


@dataclass
class Speaker:
    """A node that speaks by one of the two."""

    spool: MemorySpool
    run: Callable[[], Awaitable[None]]
    stop: Callable[[], Awaitable[None]]
    wake: Callable[[], None]
    connected: Callable[[], bool]
    orders: list[records.CaptureOrder]

    def append(self, *texts: str) -> None:
        for text in texts:
            self.spool.append(records.Event(time.time_ns(), "test", "numbered", "info", text))
        self.wake()


def hello_of(spool: MemorySpool) -> Callable[[str | None, str | None], records.Hello]:
    def hello(credential: str | None, token: str | None) -> records.Hello:
        return records.Hello(
            codec.VERSION,
            "c",
            "n1",
            "m1",
            "b",
            spool.epoch,
            "0",
            1,
            spool.next_sequences(),
            credential,
            token,
        )

    return hello


def real(config: AgentConfig) -> Speaker:
    spool, orders = MemorySpool(), []
    sender = Sender(config, cast(Spool, spool), SystemClock(), hello_of(spool), orders.append)
    return Speaker(spool, sender.run, sender.stop, sender.wake, lambda: sender.connected, orders)


def lean(config: AgentConfig) -> Speaker:
    spool, orders = MemorySpool(), []
    wire = Wire(config, spool, hello_of(spool), orders.append, Shared({}, 1))
    return Speaker(spool, wire.run, wire.stop, wire.tend, lambda: wire.connected, orders)


@pytest.fixture(params=[real, lean], ids=["agent", "simulator"])
def speaks(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Server], Any]:
    @asynccontextmanager
    async def speaking(server: Server) -> AsyncIterator[Speaker]:
        config = AgentConfig(
            state_dir=tmp_path, gateway_url=f"ws://127.0.0.1:{server.port}", hook_socket=tmp_path / "h",
            cluster="c", node="n1", machine_id="m1", boot_id="b", token="enrolment",
        )  # fmt: skip
        speaker = request.param(config)
        task = asyncio.ensure_future(speaker.run())
        try:
            yield speaker
        finally:
            await speaker.stop()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(task, 10)

    return speaking


Speaks = Callable[[Server], Any]


async def test_it_enrols_once_and_then_shows_its_credential(speaks: Speaks):
    async with Server([welcome()]).running() as server, speaks(server):
        await until(lambda: server.connections)
        await server.connections[0].close()
        await until(lambda: len(server.of(records.Hello)) == 2)
        first, again = server.of(records.Hello)
        assert (first.credential, first.enrolment_token) == (None, "enrolment")
        assert (again.credential, again.enrolment_token) == ("issued", None)


async def test_records_come_in_order_and_those_without_an_acknowledgement_come_again(speaks: Speaks):
    async with Server([welcome(), welcome(urgent=2)]).running() as server, speaks(server) as speaker:
        speaker.append("1", "2", "3")
        await until(lambda: server.sequences() == [1, 2, 3])
        await server.say(records.Ack("urgent", 2))
        await until(lambda: speaker.spool.acked("urgent") == 2)
        server.connections[0].transport.abort()
        await until(lambda: len(server.sequences()) == 4)
        speaker.append("4")
        await until(lambda: len(server.sequences()) == 5)
        assert server.sequences() == [1, 2, 3, 3, 4]


async def test_a_slowed_lane_waits_and_the_other_one_does_not(speaks: Speaks):
    async with Server([welcome()]).running() as server, speaks(server) as speaker:
        await until(speaker.connected)
        await server.say(records.Slow("urgent", 1.5))
        await asyncio.sleep(0.2)
        speaker.append("held")
        speaker.spool.append(records.Steps(1, records.RankId("j", 0), [], [], [], [], [], [], []))
        speaker.wake()
        await until(lambda: server.sequences("bulk") == [1])
        assert server.sequences() == []
        begun_s = time.monotonic()
        while not server.sequences():
            assert time.monotonic() - begun_s < 20
            speaker.wake()
            await asyncio.sleep(0.05)
        assert server.sequences() == [1]


async def test_a_rejected_record_is_not_sent_again(speaks: Speaks):
    async with Server([welcome(), welcome()]).running() as server, speaks(server) as speaker:
        speaker.append("good", "bad", "good")
        await until(lambda: server.sequences() == [1, 2, 3])
        await server.say(records.Reject("urgent", 2, "no good"))
        await until(lambda: speaker.spool.dropped_total == 1)
        await server.connections[0].close()
        await until(lambda: len(server.sequences()) >= 5)
        assert server.sequences() == [1, 2, 3, 1, 3]


async def test_a_server_that_is_ahead_makes_it_begin_a_new_epoch(speaks: Speaks):
    async with Server([welcome(urgent=50), welcome()]).running() as server, speaks(server) as speaker:
        speaker.append("1")
        await until(lambda: server.sequences())
        epochs = [hello.epoch for hello in server.of(records.Hello)]
        assert len(set(epochs)) == 2 and server.sequences() == [1]


async def test_a_credential_nobody_knows_makes_it_enrol_again(speaks: Speaks):
    def refuse(_hello: records.Hello) -> records.FromGateway:
        return records.Refuse("bad_credential", "who are you")

    async with Server([welcome(), refuse, welcome()]).running() as server, speaks(server):
        await until(lambda: server.connections)
        await server.connections[0].close()
        await until(lambda: len(server.of(records.Hello)) == 3)
        proofs = [(hello.credential, hello.enrolment_token) for hello in server.of(records.Hello)]
        assert proofs == [(None, "enrolment"), ("issued", None), (None, "enrolment")]


async def test_a_capture_order_reaches_the_node(speaks: Speaks):
    async with Server([welcome()]).running() as server, speaks(server) as speaker:
        await until(speaker.connected)
        order = records.CaptureOrder(7, "job", ["ring"], [3])
        await server.say(order)
        await until(lambda: speaker.orders == [order])


async def test_a_stop_says_bye(speaks: Speaks):
    async with Server([welcome()]).running() as server:
        async with speaks(server) as speaker:
            await until(speaker.connected)
        await until(lambda: server.of(records.Bye))


async def test_an_answer_that_is_no_welcome_ends_the_connection_and_it_tries_again(speaks: Speaks):
    async with Server([lambda _hello: records.Ack("urgent", 1), welcome()]).running() as server:
        async with speaks(server) as speaker:
            await until(speaker.connected)
        assert len(server.of(records.Hello)) == 2


async def test_a_killed_agent_breaks_its_connection_and_stays_away_until_it_is_let_go(tmp_path: Path):
    async with Server([welcome()]).running() as server:
        config = AgentConfig(
            state_dir=tmp_path, gateway_url=f"ws://127.0.0.1:{server.port}", hook_socket=tmp_path / "h",
            cluster="c", node="n1", machine_id="m1", boot_id="b", token="enrolment",
        )  # fmt: skip
        spool = MemorySpool()
        wire = Wire(config, spool, hello_of(spool), lambda _order: None, Shared({}, 1))
        task = asyncio.ensure_future(wire.run())
        await until(lambda: wire.connected)
        wire.drop()
        await until(lambda: server.connections[0].close_code is not None)
        await asyncio.sleep(1.2)
        assert len(server.of(records.Hello)) == 1 and not server.of(records.Bye)
        wire.let_go()
        await until(lambda: wire.connected)
        await wire.stop()
        await asyncio.wait_for(task, 10)
