"""One connection of a node: hello, hot frames, puts in; acknowledgements, rejects, orders out.

Everything is bounded: frame size (by the server), hot frames a second, unacknowledged bytes, answers waiting.
A peer that breaks a rule is told why and closed; nothing it sends raises out of here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from typing import Final, Protocol

from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed

from clusterwatch.ingest.admission import Admission, Refused, check_hello, refuse
from clusterwatch.ingest.board import MalformedFrame
from clusterwatch.ingest.commit import LaneResult
from clusterwatch.ingest.writer import PendingPut
from collectors.wire import codec, limits, records

logger = logging.getLogger(__name__)

HELLO_TIMEOUT_S: Final = 10.0
SEND_TIMEOUT_S: Final = 30.0
"""A peer that reads nothing for so long is cut off."""
HOT_FRAMES_PER_S: Final = 5
UNACKED_MAX_BYTES: Final = 64 * 1024 * 1024
"""Of one connection. An agent keeps 1,024 records in flight; one that does not is closed and starts again
behind the last commit: dropping a put instead would let the cursor pass it."""
SEQUENCE_MAX: Final = 2**63 - 1

GOING_AWAY, POLICY, TRY_LATER, REPLACED = 1001, 1008, 1013, 4000


class Hub(Protocol):
    """What a link needs of its gateway."""

    async def admit(self, hello: records.Hello) -> Admission: ...
    def turned_away(self, hello: records.Hello, refusal: Refused, peer: str) -> None: ...
    def doubt(self, hello: records.Hello, peer: str) -> None: ...
    def joined(self, link: Link) -> None: ...
    def left(self, link: Link, clean: bool, silent: bool) -> None: ...
    def take_hot(self, link: Link, frame: records.HotFrame) -> None: ...
    def submit(self, put: PendingPut) -> None: ...


class Broken(Exception):
    """The peer broke a rule: close with ``code`` and these words."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class Link:
    """One websocket; lives from its accept to its close."""

    def __init__(self, websocket: ServerConnection, hub: Hub) -> None:
        self.admission: Admission
        self.orders_sent: set[int] = set()
        self._websocket = websocket
        self._hub = hub
        self._acks: dict[records.Lane, int] = {}
        self._messages: deque[bytes] = deque()
        self._work = asyncio.Event()
        self._last: dict[records.Lane, int] = {"urgent": 0, "bulk": 0}
        self._unacked_bytes = 0
        self._hot_window = (0, 0)
        self._hot_dropped = 0
        self._clean = False

    @property
    def node(self) -> str:
        return f"{self.admission.origin.cluster}/{self.admission.origin.node}"

    @property
    def peer(self) -> str:
        """The other side's address, for people."""
        return str((self._websocket.remote_address or ("unknown",))[0])

    async def run(self) -> None:
        """Serves the connection until it ends."""
        hello: records.Hello | None = None
        try:
            hello = await self._first_message()
            check_hello(hello)
            self.admission = await self._hub.admit(hello)
            self._hub.doubt(hello, self.peer)
        except Refused as refusal:
            if hello is not None:
                self._hub.turned_away(hello, refusal, self.peer)
            await self._turn_away(refusal)
            return
        except Broken as broken:
            await self._close(broken.code, str(broken))
            return
        except ConnectionClosed:
            return
        await self._serve()

    def close_soon(self, code: int, reason: str) -> None:
        """Starts a close without waiting for it."""
        task = asyncio.ensure_future(self._close(code, reason))
        task.add_done_callback(lambda done: done.exception())

    def send(self, message: records.FromGateway) -> None:
        """Queues a message; acknowledgements wait in ``acknowledge`` instead."""
        self._messages.append(codec.encode(message))
        self._work.set()

    def acknowledge(self, put: PendingPut, result: LaneResult) -> None:
        """A put is committed: tells which records were refused, then how far the lane is."""
        self._unacked_bytes -= put.size_bytes
        for sequence, reason in result.rejects:
            logger.warning(
                "record_rejected node=%s lane=%s sequence=%d reason=%r", self.node, put.lane, sequence, reason
            )
            self._messages.append(
                codec.encode(records.Reject(lane=put.lane, sequence=sequence, reason=reason))
            )
        self._acks[put.lane] = max(self._acks.get(put.lane, 0), result.committed)
        self._work.set()

    # --- the start --------------------------------------------------------------------------------

    async def _first_message(self) -> records.Hello:
        try:
            async with asyncio.timeout(HELLO_TIMEOUT_S):
                raw = await self._websocket.recv(decode=False)
        except TimeoutError:
            raise Refused("bad_hello", f"no hello within {HELLO_TIMEOUT_S:.0f} s") from None
        try:
            message = codec.decode_from_node(raw)
        except codec.WireError as error:
            raise Refused("bad_hello", str(error)) from error
        if not isinstance(message, records.Hello):
            raise Refused("bad_hello", "the first message must be a hello")
        return message

    async def _turn_away(self, refusal: Refused) -> None:
        logger.warning(
            "hello_refused peer=%s code=%s reason=%r",
            self._websocket.remote_address,
            refusal.code,
            refusal.reason,
        )
        with contextlib.suppress(ConnectionClosed, TimeoutError):
            async with asyncio.timeout(SEND_TIMEOUT_S):
                await self._websocket.send(refuse(refusal))
        await self._close(POLICY, refusal.code)

    async def _serve(self) -> None:
        admission = self.admission
        self._last = {"urgent": admission.acked.urgent, "bulk": admission.acked.bulk}
        self.send(
            records.Welcome(
                version=codec.VERSION,
                t_ns=time.time_ns(),
                acked=admission.acked,
                credential=admission.credential,
            )
        )
        self._hub.joined(self)
        sender = asyncio.create_task(self._send_all())
        silent = False
        try:
            silent = await self._receive_all()
        finally:
            sender.cancel()
            self._hub.left(self, self._clean, silent)
            await asyncio.gather(sender, return_exceptions=True)

    # --- in -----------------------------------------------------------------------------------------

    async def _receive_all(self) -> bool:
        """Reads until the end; True when the peer only fell silent (its keepalive failed, no close came)."""
        try:
            while not self._clean:
                self._take(await self._websocket.recv(decode=False))
            await self._close(1000, "bye")
        except ConnectionClosed as closed:
            return _fell_silent(closed)
        except Broken as broken:
            logger.warning("peer_broke_a_rule node=%s reason=%r", self.node, str(broken))
            await self._close(broken.code, str(broken))
        return False

    def _take(self, raw: bytes) -> None:
        try:
            message = codec.decode_from_node(raw)
        except codec.WireError as error:
            raise Broken(POLICY, str(error)) from error
        if isinstance(message, records.HotFrame):
            self._take_hot(message)
        elif isinstance(message, records.Put):
            self._take_put(message)
        elif isinstance(message, records.Bye):
            self._clean = True
        else:
            raise Broken(POLICY, "a second hello")

    def _take_hot(self, frame: records.HotFrame) -> None:
        second, count = self._hot_window
        now_s = int(time.monotonic())
        if now_s != second:
            if self._hot_dropped:
                logger.warning("hot_frames_dropped node=%s count=%d", self.node, self._hot_dropped)
                self._hot_dropped = 0
            second, count = now_s, 0
        self._hot_window = (second, count + 1)
        if count >= HOT_FRAMES_PER_S:
            self._hot_dropped += 1
            return
        try:
            self._hub.take_hot(self, frame)
        except MalformedFrame as error:
            raise Broken(POLICY, f"malformed hot frame: {error}") from error

    def _take_put(self, put: records.Put) -> None:
        if not put.items:
            return
        if len(put.items) > limits.RECORDS_PER_PUT_MAX:
            raise Broken(
                POLICY, f"{len(put.items)} records in a put, the limit is {limits.RECORDS_PER_PUT_MAX}"
            )
        last = self._last[put.lane]
        for item in put.items:
            if not last < item.sequence <= SEQUENCE_MAX:
                raise Broken(POLICY, f"lane {put.lane}: {item.sequence} does not follow {last}")
            last = item.sequence
        self._last[put.lane] = last
        size = sum(len(item.payload) for item in put.items) + 64 * len(put.items)
        self._unacked_bytes += size
        if self._unacked_bytes > UNACKED_MAX_BYTES:
            raise Broken(TRY_LATER, "too many records unacknowledged")
        self._hub.submit(PendingPut(self, self.admission.origin, put.lane, put.items, size))

    # --- out ----------------------------------------------------------------------------------------

    async def _send_all(self) -> None:
        try:
            while True:
                await self._work.wait()
                self._work.clear()
                while message := self._next():
                    # Not wait_for: before Python 3.12 it can swallow the cancellation that ends this task.
                    async with asyncio.timeout(SEND_TIMEOUT_S):
                        await self._websocket.send(message)
        except TimeoutError:
            logger.warning("slow_reader_closed node=%s", self.node)
            self._websocket.transport.abort()
        except ConnectionClosed:
            return

    def _next(self) -> bytes | None:
        if self._messages:
            return self._messages.popleft()
        if self._acks:
            lane, sequence = self._acks.popitem()
            return codec.encode(records.Ack(lane=lane, sequence=sequence))
        return None

    async def say_goodbye(self) -> None:
        """Hands everything queued to the socket, briefly, and closes: the gateway stops."""
        deadline = time.monotonic() + 1.0
        while (self._messages or self._acks) and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        await self._close(GOING_AWAY, "the gateway stops")

    async def _close(self, code: int, reason: str) -> None:
        with contextlib.suppress(ConnectionClosed, TimeoutError):
            async with asyncio.timeout(SEND_TIMEOUT_S):
                await self._websocket.close(code, _short(reason))


def _fell_silent(closed: ConnectionClosed) -> bool:
    """The connection ended because nothing came, not because the peer's kernel closed it."""
    timed_out = isinstance(closed.__cause__, TimeoutError)
    keepalive = closed.rcvd is None and closed.sent is not None and "keepalive" in closed.sent.reason
    return timed_out or keepalive


def _short(reason: str) -> str:
    """A close reason holds 123 bytes."""
    return reason.encode()[:120].decode(errors="ignore")
