"""FBOSS switches (Wedge400, Minipack2): what their own command ``fboss2`` prints as JSON.

In: the table ``switch_fboss`` of pollers.toml. Out: ``DeviceReading`` per switch. Either the command is run
for each switch, or its documents are read from files that something of the site writes; an old file is no
answer. What was read in public source and what was not: ``switch_fboss_documents``.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from collectors.pollers.device import ConfigError
from collectors.pollers.switch_facts import SwitchError, SwitchFacts
from collectors.pollers.switch_fboss_documents import COMMANDS, REQUIRED, facts_of, parsed
from collectors.pollers.switch_poller import COMMON_KEYS, Look, SwitchPoller, Target, settings_of
from collectors.pollers.tables import Table

NAME: Final = "switch_fboss"
PERIOD_S: Final = 60.0
PORT: Final = 5909
COMMAND: Final = ("fboss2", "--fmt", "json", "--host", "{address}")
DOCUMENT_MAX_BYTES: Final = 64 * 1024 * 1024
STALE_S: Final = 300.0
ADDRESS: Final = "{address}"
_KEYS: Final = (*COMMON_KEYS, "command", "folder")

Read = Callable[[Target, str], Any]


class FbossAsker:
    """``read``: (switch, document) -> an awaitable of its bytes; raises ``SwitchError``."""

    def __init__(self, read: Read) -> None:
        self._read = read

    async def ask(self, target: Target, look: Look) -> SwitchFacts:
        models = {REQUIRED: parsed(await self._read(target, REQUIRED), target.address)}
        missing: list[str] = []
        for document in COMMANDS:
            if document == REQUIRED:
                continue
            said = await look.optional(self._model(target, document), document, missing)
            if said is not None:
                models[document] = said
        facts = facts_of(models)
        facts.missing = missing
        return facts

    async def _model(self, target: Target, document: str) -> dict[str, Any]:
        return parsed(await self._read(target, document), target.address)

    async def close(self) -> None:
        """Nothing stays open."""


def from_command(command: Sequence[str]) -> Read:
    """Runs a command per document; one that is given up is killed."""

    async def read(target: Target, document: str) -> bytes:
        argv = [target.address if part == ADDRESS else part for part in command]
        try:
            process = await asyncio.create_subprocess_exec(
                *argv,
                *COMMANDS[document],
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
            )
        except OSError:
            raise SwitchError(f"{argv[0]} cannot be run"[:120]) from None
        assert process.stdout is not None
        try:
            said = await _all_of(process.stdout)
            code = await process.wait()
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        if code != 0:
            raise SwitchError(f"{argv[0]} ended with {code}"[:120])
        return said

    return read


async def _all_of(stream: asyncio.StreamReader) -> bytes:
    chunks, size = [], 0
    while chunk := await stream.read(65_536):
        size += len(chunk)
        if size > DOCUMENT_MAX_BYTES:
            raise SwitchError("document too large")
        chunks.append(chunk)
    return b"".join(chunks)


def from_files(folder: Path, wall: Callable[[], float] = time.time) -> Read:
    """``<folder>/<switch>/<document>.json``; ``wall``: seconds since 1970, to tell old files."""

    def whole(path: Path) -> bytes:
        try:
            with path.open("rb") as file:
                if wall() - path.stat().st_mtime > STALE_S:
                    raise SwitchError("stale")
                said = file.read(DOCUMENT_MAX_BYTES + 1)
        except OSError as error:
            raise SwitchError(f"{path.name}: {error.strerror}") from None
        if len(said) > DOCUMENT_MAX_BYTES:
            raise SwitchError("document too large")
        return said

    async def read(target: Target, document: str) -> bytes:
        return await asyncio.to_thread(whole, folder / target.name / f"{document}.json")

    return read


def from_config(config: Mapping[str, object], folder: Path) -> SwitchPoller:
    """Raises ``ConfigError`` that names the key."""
    table = Table(NAME, config, folder)
    table.only(*_KEYS)
    settings = settings_of(table, config, PERIOD_S, PORT)
    if not table.has("folder"):
        return SwitchPoller(NAME, settings, FbossAsker(from_command(_command(config))))
    if table.has("command"):
        raise ConfigError(f"{NAME}: command and folder exclude each other")
    documents = folder / table.text("folder")
    if not documents.is_dir():
        raise ConfigError(f"{NAME}.folder: {table.text('folder')} is no folder")
    return SwitchPoller(NAME, settings, FbossAsker(from_files(documents)))


def _command(config: Mapping[str, object]) -> list[str]:
    said = config.get("command", list(COMMAND))
    if not isinstance(said, list) or not said or not all(isinstance(part, str) and part for part in said):
        raise ConfigError(f"{NAME}.command must be a list of texts, the program first")
    if ADDRESS not in said:
        raise ConfigError(f"{NAME}.command needs {ADDRESS} where the switch's address belongs")
    return list(said)
