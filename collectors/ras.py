"""Asks NCCL's RAS once for what it knows of a rank's whole job, at a stall.

In: a rank's pid and backend. Out: ``RasAnswer``, also when there is none: why there is none is evidence, too.
Every rank with NCCL 2.24 or newer has a RAS thread, and the first of a node listens; one query gathers from
the whole job. Only this machine's own addresses are asked, and never for longer or more than the bounds here.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PORT: Final = 28_028
BYTES_MAX: Final = 2 * 1024 * 1024
"""Of an answer; the rest is left unread."""
LINE_MAX_BYTES: Final = 512
CONNECT_S: Final = 1.0
TIMEOUT_MAX_S: Final = 10
"""What RAS itself may wait for ranks."""
JSON_RANKS_MAX: Final = 256
"""JSON tells every rank of every communicator; of larger jobs text is asked for, which names outliers."""
_ENVIRON_MAX_BYTES: Final = 2 * 1024 * 1024
_VARIABLES: Final = {b"NCCL_RAS_ADDR": "address", b"NCCL_RAS_ENABLE": "enable"}
"""All that is decoded of a rank's environment."""


class RasError(Exception):
    """RAS cannot be asked or did not answer; the words are for people."""


@dataclass(frozen=True, slots=True)
class RasAnswer:
    """What came. ``error``: why it is not all, empty when it is."""

    address: str
    form: str
    """``text`` or ``json``"""
    data: bytes = b""
    error: str = ""


async def ask(pid: int, world_size: int, within_s: float) -> RasAnswer:
    """One query; never raises for what RAS or the rank's environment does. Ends ``within_s``."""
    try:
        host, port = await asyncio.to_thread(address_of, pid)
    except RasError as error:
        return RasAnswer("", "text", error=str(error))
    return await query(host, port, world_size <= JSON_RANKS_MAX, within_s)


async def query(host: str, port: int, wants_json: bool, within_s: float) -> RasAnswer:
    """Speaks the client's protocol with what listens at an address."""
    talk = _Talk(f"{host}:{port}")
    try:
        async with asyncio.timeout(within_s):
            await talk.hold(host, port, wants_json, within_s)
    except TimeoutError:
        talk.error = talk.error or f"no whole answer within {within_s:.1f} s"
    except (OSError, ValueError, RasError) as error:
        talk.error = str(error) or type(error).__name__
    finally:
        talk.close()
    return RasAnswer(talk.address, talk.form, bytes(talk.data), talk.error)


class _Talk:
    """One connection and what has come of it, also when it breaks off."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.form = "text"
        self.data = bytearray()
        self.error = ""
        self._writer: asyncio.StreamWriter | None = None

    async def hold(self, host: str, port: int, wants_json: bool, within_s: float) -> None:
        try:
            async with asyncio.timeout(CONNECT_S):
                reader, self._writer = await asyncio.open_connection(host, port, limit=65_536)
        except TimeoutError:
            raise RasError(f"{self.address} takes no connection") from None
        hello = await self._command(reader, "CLIENT PROTOCOL 2")
        if not hello.startswith("SERVER PROTOCOL "):
            raise RasError("what listens there does not speak RAS")
        patience_s = max(1, min(TIMEOUT_MAX_S, int(within_s) - 1))
        await self._command(reader, f"TIMEOUT {patience_s}")  # one that does not know it has its own
        if wants_json and await self._command(reader, "SET FORMAT json") == "OK":
            self.form = "json"
        self._writer.write(b"VERBOSE STATUS\n")
        while chunk := await reader.read(65_536):
            self.data += chunk[: BYTES_MAX - len(self.data)]
            if len(self.data) >= BYTES_MAX:
                raise RasError(f"more than {BYTES_MAX} bytes")
        if not self.data:
            raise RasError("it hung up without an answer")

    async def _command(self, reader: asyncio.StreamReader, command: str) -> str:
        assert self._writer is not None
        self._writer.write(f"{command}\n".encode())
        line = await reader.readline()
        if not line.endswith(b"\n"):
            raise RasError("it hung up while we greeted it")
        return line[:LINE_MAX_BYTES].decode("ascii", "replace").strip()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.transport.abort()


# --- where it listens ------------------------------------------------------------------------------------


def address_of(pid: int) -> tuple[str, int]:
    """Where the RAS of a process listens. Runs in a thread. Raises ``RasError``."""
    if _network_of(pid) != _network_of(os.getpid()):
        raise RasError("the rank has a network of its own, which we cannot reach (container)")
    try:
        with Path(f"/proc/{pid}/environ").open("rb") as file:
            told = variables(file.read(_ENVIRON_MAX_BYTES))
    except OSError:
        told = {}
    if told.get("enable", "1").strip() == "0":
        raise RasError("switched off: NCCL_RAS_ENABLE=0")
    return own_address(told.get("address", ""))


def variables(environ: bytes) -> dict[str, str]:
    """The two variables of RAS in an environment; of one that is there twice the first."""
    found: dict[str, str] = {}
    for entry in environ.split(b"\0"):
        name, equals, value = entry.partition(b"=")
        if equals and (key := _VARIABLES.get(name)) is not None:
            found.setdefault(key, value[:256].decode("utf-8", "replace"))
    return found


def own_address(text: str) -> tuple[str, int]:
    """Host and port of ``NCCL_RAS_ADDR``, which must be this machine's. Raises ``RasError``."""
    if not text:
        return "localhost", PORT
    host, colon, number = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not (number.isascii() and number.isdigit() and 0 < int(number[:6]) < 65_536):
        raise RasError("NCCL_RAS_ADDR is no address with a port")
    if host.lower() == "localhost" or _is_own(host):
        return host, int(number)
    raise RasError("NCCL_RAS_ADDR is no address of this machine")


def _is_own(host: str) -> bool:
    """Whether a number is an address of this machine: only such a one can be bound to."""
    try:
        number = ipaddress.ip_address(host)
    except ValueError:
        return False  # a name is not looked up: that may take long, and lead away from here
    if number.is_unspecified or number.is_multicast:
        return False
    family = socket.AF_INET6 if number.version == 6 else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((host, 0))
        except OSError:
            return False
    return True


def _network_of(pid: int) -> str:
    """The network namespace of a process; empty where it is not told."""
    try:
        return os.readlink(f"/proc/{pid}/ns/net")  # noqa: PTH115
    except OSError:
        return ""
