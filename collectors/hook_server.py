"""The unix socket training processes and ``clusterwatch-run`` speak to.

In: ``hook/protocol.py`` frames. Out: calls on ``RankTable`` and ``ExitWatch``, answers to
``HookConnection.ask``. Whom we watch is the pid the kernel gives for the peer (SO_PEERCRED), never one the
peer claims: a process can only speak for itself. An agent of a plain user listens to that user and root
only; an agent of root to all. A frame that is none, or beyond a bound, closes the connection with one log
line and touches nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import socket
import stat
import struct
from pathlib import Path
from typing import Any, Final

from collectors import hook_messages as messages
from collectors import processes
from collectors.exits import ExitWatch
from collectors.hook import protocol
from collectors.ranks import RANKS_MAX, RankState, RankTable

log = logging.getLogger(__name__)

_PEER: Final = struct.Struct("3i")
_READ_BYTES: Final = 64 * 1024
_READS_MAX: Final = 16
"""Reads of one hook at one tick: what it has to say beyond waits for the next, as does its own process."""
_BACKLOG_MAX_BYTES: Final = 64 * 1024
"""A hook that does not read its orders is not sent more of them."""


class HookError(Exception):
    """A peer that may not speak, or said what it may not; its connection is closed."""


class HookConnection(asyncio.BufferedProtocol):
    """One peer."""

    def __init__(self, server: HookServer) -> None:
        self._server = server
        self._reader = messages.Reader()
        self._reader.blob_max_bytes = 0  # until a dump was asked for
        self._answers: dict[tuple[str, int], asyncio.Future[Any]] = {}
        self._children: set[int] = set()
        self._transport: asyncio.Transport | None = None
        self._is_heard = True
        self.pid = 0
        self.state: RankState | None = None

    # --- asyncio.BufferedProtocol ------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        try:
            self.pid = self._server.admit(self, transport.get_extra_info("socket"))
        except HookError as error:
            self._refuse(str(error))

    def get_buffer(self, sizehint: int) -> memoryview:
        """One for all peers: what arrives is taken out before the next one is read."""
        return self._server.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._take(bytes(self._server.buffer[:nbytes]))

    def _take(self, data: bytes) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        try:
            for (kind, message), blob in self._reader.feed(data):
                if message is not None:
                    self._handle(kind, message, blob)
        except (protocol.ProtocolError, HookError) as error:
            self._refuse(str(error))
            return
        if self._is_heard and self.state is not None and not self._answers:
            self._is_heard = False
            self._transport.pause_reading()

    def listen(self) -> None:
        """Hears what has come since: a rank that speaks each second is heard at the agent's tick.

        Eight ranks wake the agent once a second so, and not eight times (half of its processor time). The
        loop has no part in it: it would have to watch and unwatch each.
        """
        transport = self._transport
        for _ in range(_READS_MAX):
            if self._is_heard or transport is None or transport.is_closing():
                return
            try:
                count = os.readv(transport.get_extra_info("socket").fileno(), [self._server.buffer])
            except BlockingIOError:
                return
            except OSError:
                count = 0
            if not count:
                self._resume()  # the loop closes it
                return
            self._take(bytes(self._server.buffer[:count]))

    def _resume(self) -> None:
        """The loop hears what comes, as it comes."""
        if not self._is_heard and self._transport is not None and not self._transport.is_closing():
            self._is_heard = True
            self._transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.forget(self)
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(HookError("the hook closed its connection"))
        self._answers.clear()

    # --- orders ----------------------------------------------------------------------------------------

    async def ask(self, what: str, timeout_s: float) -> Any:
        """Orders "window", "ring" or "stacks"; returns (Dump, blob) or StacksTaken.

        Raises:
            TimeoutError: no answer in time.
            HookError: the connection is gone or clogged.
        """
        transport = self._transport
        if transport is None or transport.is_closing():
            raise HookError("the hook closed its connection")
        if transport.get_write_buffer_size() > _BACKLOG_MAX_BYTES:
            raise HookError("the hook does not read its orders")
        number = next(self._server.order_numbers)
        key = ("stacks" if what == "stacks" else "dump", number)
        answer = self._answers[key] = asyncio.get_running_loop().create_future()
        self._allow_blobs()
        self._resume()
        # a ring names its call sites: they tell a call too many from the one that should have come
        transport.write(protocol.pack({"k": "want", "id": number, "what": what, "frames": what == "ring"}))
        try:
            async with asyncio.timeout(timeout_s):
                return await answer
        finally:
            self._answers.pop(key, None)
            self._allow_blobs()

    def say_bye(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(protocol.pack({"k": "bye"}))
            self._transport.close()

    # --- inside ------------------------------------------------------------------------------------------

    def _allow_blobs(self) -> None:
        waiting = any(kind == "dump" for kind, _ in self._answers)
        self._reader.blob_max_bytes = protocol.BLOB_MAX_BYTES if waiting else 0

    def _handle(self, kind: str, message: Any, blob: bytes) -> None:
        if kind == "hello":
            self._hello(message)
        elif kind == "run":
            self._children.add(self._server.check_child(self.pid, message.pid))
        elif kind == "exit":
            if message.pid not in self._children:
                raise HookError(f"exit of pid {message.pid}, which is no child of this peer")
            self._server.exits.report(message.pid, message.code, message.signal)
        elif kind in ("dump", "stacks"):
            answer = self._answers.get((kind, message.id))
            if answer is not None and not answer.done():
                answer.set_result((message, blob) if kind == "dump" else message)
        elif self.state is None:
            raise HookError(f"{kind} before hello")
        else:
            self._tell(self._server.table, self.state, kind, message)

    def _tell(self, table: RankTable, state: RankState, kind: str, message: Any) -> None:
        if kind == "groups":
            table.set_groups(state, message)
        elif kind == "progress":
            table.progress(state, message)
        elif kind == "steps":
            table.add_steps(state, message)
        elif kind == "edges":
            table.add_edges(state, message)
        elif kind == "phase":
            table.phase(state, message)
        elif kind == "allocator":
            table.set_allocator(state, message)
        elif kind == "exception":
            table.exception(state, message)
        elif kind == "finish":
            table.finish(state)

    def _hello(self, message: messages.Hello) -> None:
        if message.v != protocol.VERSION:
            raise HookError(f"hook protocol {message.v}, this agent speaks {protocol.VERSION}")
        known = self._server.table.get(self.pid)
        if known is None and len(self._server.table) >= RANKS_MAX:
            raise HookError(f"more than {RANKS_MAX} ranks on one node")
        self.state = self._server.table.hello(self.pid, message)
        self._server.connected(self)
        log.info("hook_hello job=%s rank=%d pid=%d", message.job, message.rank, self.pid)

    def _refuse(self, reason: str) -> None:
        log.warning("hook_refused pid=%d reason=%s", self.pid, reason[:300])
        if self._transport is not None:
            self._transport.abort()


class HookServer:
    """Listens and keeps the connections."""

    def __init__(self, path: Path, table: RankTable, exits: ExitWatch) -> None:
        self._path = path
        self.table = table
        self.exits = exits
        self.order_numbers = itertools.count(1)
        self.buffer = memoryview(bytearray(_READ_BYTES))
        self._connections: set[HookConnection] = set()
        self._of_pid: dict[int, HookConnection] = {}
        self._server: asyncio.Server | None = None
        exits.on_ended = self._hear_last_words

    async def start(self) -> None:
        """Binds the socket. Raises ``OSError``."""
        prepare_folder(self._path.parent)
        with contextlib.suppress(FileNotFoundError):
            if stat.S_ISSOCK(self._path.lstat().st_mode):
                self._path.unlink()  # the state folder's lock says that no agent listens there
        before = os.umask(0o177)
        try:
            loop = asyncio.get_running_loop()
            self._server = await loop.create_unix_server(lambda: HookConnection(self), str(self._path))
        finally:
            os.umask(before)
        if os.geteuid() == 0:
            # Jobs of every user must get in; the kernel says who they are, and the folder's rights hold.
            self._path.chmod(0o666)

    async def stop(self) -> None:
        """Tells the hooks to come back later, and removes the socket."""
        for connection in list(self._connections):
            connection.say_bye()
        if self._server is not None:
            self._server.close()
            await asyncio.sleep(0)  # let the goodbyes leave
        self._path.unlink(missing_ok=True)

    def hear_all(self) -> None:
        """Takes in what the ranks have said since they were last heard."""
        for connection in list(self._connections):
            connection.listen()

    def connection_of(self, pid: int) -> HookConnection | None:
        return self._of_pid.get(pid)

    def admit(self, connection: HookConnection, peer: socket.socket) -> int:
        """The peer's pid. Raises ``HookError`` when it may not speak here."""
        raw = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
        pid: int
        uid: int
        pid, uid, _gid = _PEER.unpack(raw)
        if pid <= 0:
            raise HookError("a peer of another PID namespace, which this agent cannot see")
        if os.geteuid() not in (0, uid) and uid != 0:
            raise HookError(f"user id {uid} may not speak to the agent of user id {os.geteuid()}")
        if len(self._connections) >= 2 * RANKS_MAX:
            raise HookError("too many connections")
        self._connections.add(connection)
        return pid

    def connected(self, connection: HookConnection) -> None:
        self._of_pid[connection.pid] = connection
        self.exits.watch(connection.pid)

    def forget(self, connection: HookConnection) -> None:
        self._connections.discard(connection)
        if self._of_pid.get(connection.pid) is connection:
            del self._of_pid[connection.pid]

    def _hear_last_words(self, pid: int) -> None:
        connection = self._of_pid.get(pid)
        if connection is not None:
            connection.listen()

    def check_child(self, parent_pid: int, pid: int) -> int:
        """Raises ``HookError`` unless the process is a living child of the peer."""
        if processes.parent(pid) not in (parent_pid, None):
            raise HookError(f"pid {pid} is no child of pid {parent_pid}")
        return pid


def prepare_folder(folder: Path) -> None:
    """Makes the socket's folder (0700) and refuses one that belongs to somebody else. Raises ``OSError``."""
    if folder == Path("/run/clusterwatch"):
        folder.mkdir(mode=0o755, exist_ok=True)
    else:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid not in (0, os.geteuid()):
        raise PermissionError(f"the socket folder {folder} belongs to another user")
