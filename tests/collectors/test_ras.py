"""NCCL's RAS is asked by its own protocol, whatever listens there; without an answer the reason is kept."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from collectors import ras, ras_event
from collectors.ras import RasError, own_address, query, variables
from collectors.wire import limits
from tests.collectors.formats.test_ras_status import LACKING, SOUND

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def peer(talk: Talk) -> AsyncIterator[int]:
    """A server on a port of loopback; gives the port."""

    async def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await talk(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(served, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


class Ras:
    """RAS of NCCL as its source has it: commands by the line, the status and then the end."""

    def __init__(self, answer: str, knows_json: bool = True) -> None:
        self.answer = answer
        self.knows_json = knows_json
        self.heard: list[str] = []

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := (await reader.readline()).decode().strip():
            self.heard.append(line)
            if line.startswith("CLIENT PROTOCOL"):
                writer.write(b"SERVER PROTOCOL 2\n")
            elif line.startswith("TIMEOUT ") or (self.knows_json and line.startswith("SET FORMAT ")):
                writer.write(b"OK\n")
            elif line == "VERBOSE STATUS":
                writer.write(self.answer.encode())
                await writer.drain()
                return
            else:
                writer.write(f"ERROR: Unknown command {line}\n".encode())


async def answer_of(talk: Talk, wants_json: bool = True, within_s: float = 3.0) -> ras.RasAnswer:
    async with peer(talk) as port:
        return await query("127.0.0.1", port, wants_json, within_s)


async def test_a_new_ras_is_asked_for_json() -> None:
    server = Ras('{"nccl_version": "2.29.1"}')
    found = await answer_of(server, within_s=8.0)
    assert (found.form, found.data, found.error) == ("json", b'{"nccl_version": "2.29.1"}', "")
    assert server.heard == ["CLIENT PROTOCOL 2", "TIMEOUT 7", "SET FORMAT json", "VERBOSE STATUS"]


async def test_an_older_one_that_knows_no_format_answers_in_text() -> None:
    found = await answer_of(Ras(LACKING, knows_json=False))
    assert (found.form, found.data.decode(), found.error) == ("text", LACKING, "")


async def test_of_a_large_job_text_is_asked_for() -> None:
    server = Ras(SOUND)
    await answer_of(server, wants_json=False)
    assert not any(line.startswith("SET FORMAT") for line in server.heard)


async def test_one_that_hangs_costs_its_time_and_what_came_is_kept() -> None:
    async def hangs(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server = Ras(SOUND[:300])
        await server(reader, writer)
        await reader.read()

    found = await answer_of(hangs, within_s=0.2)
    assert (found.data.decode(), found.error) == (SOUND[:300], "no whole answer within 0.2 s")


async def test_one_that_never_speaks_costs_its_time() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(100):
            pass

    assert (await answer_of(silent, within_s=0.2)).error == "no whole answer within 0.2 s"


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "what listens there does not speak RAS"),
        (b"\xff\x00" * 40_000, None),
        (b"SERVER PROT", "it hung up while we greeted it"),
        (b"", "it hung up while we greeted it"),
    ],
)
async def test_what_is_no_ras_is_left_at_once(words: bytes, error: str | None) -> None:
    async def other(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(words)
        await writer.drain()

    found = await answer_of(other)
    assert found.data == b""
    assert found.error == error if error else found.error


async def test_an_answer_without_end_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ras, "BYTES_MAX", 100_000)
    found = await answer_of(Ras("x" * 400_000))
    assert (len(found.data), found.error) == (100_000, "more than 100000 bytes")


async def test_where_nothing_listens_the_reason_is_told() -> None:
    async with peer(Ras(SOUND)) as port:
        pass
    found = await query("127.0.0.1", port, True, 2.0)
    assert found.data == b"" and "Connect call failed" in found.error


def test_only_two_variables_of_an_environment_are_decoded() -> None:
    environ = (
        b"SECRET=x\0NCCL_RAS_ADDR=localhost:1\0NCCL_RAS_ADDR=later:2\0NCCL_RAS_ENABLE=0\0NCCL_RAS_ADDRESS=no"
    )
    assert variables(environ) == {"address": "localhost:1", "enable": "0"}


def test_only_addresses_of_this_machine_are_asked() -> None:
    assert own_address("") == ("localhost", 28_028)
    assert own_address("LocalHost:77") == ("LocalHost", 77)
    assert own_address("127.0.0.2:77") == ("127.0.0.2", 77)
    for foreign in ("192.0.2.7:28028", "example.org:28028", "0.0.0.0:1", "nothing", ":1", "localhost:0",
                    "localhost:99999", "127.0.0.1:" + "9" * 5_000):  # fmt: skip
        with pytest.raises(RasError):
            own_address(foreign)


async def test_a_rank_that_switched_it_off_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ras, "variables", lambda environ: {"enable": "0"})
    found = await ras.ask(os.getpid(), 8, 1.0)
    assert found.error == "switched off: NCCL_RAS_ENABLE=0"


async def test_the_event_of_an_answer_says_what_it_says_and_fits_the_wire() -> None:
    text = "\x1b[31m" + LACKING + "y" * 200_000
    told = ras_event.fields(ras.RasAnswer("localhost:28028", "text", text.encode()), 5)
    assert all(len(value) <= limits.TEXT_MAX_CHARS for value in told.values())
    found = ras_event.read(told)
    assert found.status.communicators[0].missing == [1, 21]
    assert "\x1b" not in found.answer and len(found.answer) == ras_event.PARTS_MAX * ras_event.PART_MAX_CHARS
    assert ras_event.sentence(told).startswith("NCCL RAS: 2 ranks missing")


def test_an_event_without_an_answer_says_why() -> None:
    told = ras_event.fields(ras.RasAnswer("", "text", error="switched off: NCCL_RAS_ENABLE=0"), 5)
    assert ras_event.sentence(told) == "NCCL RAS gave no answer: switched off: NCCL_RAS_ENABLE=0"


@pytest.mark.parametrize("word", ["", "[]", "{", '{"communicator_count": -1}', "[" * 10_000])
def test_what_a_node_says_of_an_answer_is_checked_again(word: str) -> None:
    told: dict[str, Any] = {"status": word, "answer_0": "text"}
    assert ras_event.read(told).status.damaged
