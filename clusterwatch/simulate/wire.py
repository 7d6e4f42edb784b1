"""One simulated node's connection to its gateway, as lean as a connection can be.

It says what ``collectors.sender`` says (``tests/simulate/test_wire.py`` compares the two): hello, hot frames,
spooled records with their acknowledgements, resumption after a break, back-off. There is one protocol object
and one sleeping task a node, the websocket is ``websockets``' own state machine without its tasks and queues,
and hot frames come ready for the socket (``frames``): thousands of nodes share one process.
"""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
import time
from collections.abc import Callable
from typing import Final, cast

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidHandshake
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.protocol import State
from websockets.uri import WebSocketURI, parse_uri

from clusterwatch.simulate.memory_spool import MemorySpool
from collectors.config import AgentConfig
from collectors.sender import (
    ACK_TIMEOUT_S,
    BACKOFF_FIRST_S,
    BACKOFF_MAX_S,
    IN_FLIGHT_MAX_RECORDS,
    PAUSE_MAX_S,
    PUT_MAX_BYTES,
    REFUSED_RETRY_S,
    WELCOME_TIMEOUT_S,
    LaneState,
    tls_context,
)
from collectors.wire import codec, limits, records
from collectors.wire.records import LANES, Lane

log = logging.getLogger(__name__)

UNSENT_MAX_BYTES: Final = 32 * 1024
"""A socket that holds more takes no further hot frame: newest wins, and a slow gateway costs no memory."""
SILENT_MAX_S: Final = 60.0
"""A gateway that sends nothing, not even its ping every 20 s, is gone."""


class Shared:
    """What all nodes of one process share."""

    def __init__(self, credentials: dict[str, str], greetings_at_once: int) -> None:
        """``credentials``: by node; a new one is put in."""
        self.credentials = credentials
        self.gate = asyncio.Semaphore(greetings_at_once)
        """so many nodes greet at once: a gateway enrols them one after the other"""
        self._tls: ssl.SSLContext | None = None

    def tls(self, config: AgentConfig) -> ssl.SSLContext:
        """Made once: to read the system's authorities for each of thousands takes minutes."""
        if self._tls is None:
            self._tls = tls_context(config)
        return self._tls


class Over(Exception):
    """The connection ended; ``retry_s`` says when to try again, None where back-off decides."""

    def __init__(self, text: str, retry_s: float | None = None) -> None:
        super().__init__(text)
        self.retry_s = retry_s


class Wire(asyncio.Protocol):
    """Keeps one node connected; ``run`` ends when it is cancelled or ``stop`` was called."""

    def __init__(
        self,
        config: AgentConfig,
        spool: MemorySpool,
        hello: Callable[[str | None, str | None], records.Hello],
        on_capture: Callable[[records.CaptureOrder], None],
        shared: Shared,
        on_new_epoch: Callable[[], None] = lambda: None,
    ) -> None:
        """``on_new_epoch``: the server cannot know what this node said of itself before."""
        self._config = config
        self._spool = spool
        self._hello = hello
        self._on_capture = on_capture
        self._shared = shared
        self._on_new_epoch = on_new_epoch
        self._uri: WebSocketURI = parse_uri(config.gateway_url)
        self._protocol: ClientProtocol
        self._transport: asyncio.Transport | None = None
        self._over: asyncio.Future[None] | None = None
        self._welcomed: asyncio.Future[None] | None = None
        self._parts: list[bytes] = []
        self._lanes: dict[Lane, LaneState] = {lane: LaneState() for lane in LANES}
        self._heard_s = 0.0
        self._enrol_again = False
        self._stopping = asyncio.Event()
        self._held_until_s = 0.0
        self.connected = False
        self.held = False
        """the agent is dead: no connection until it is let go"""

    # --- for the node -----------------------------------------------------------------------------------

    def send_frame(self, frame: memoryview) -> bool:
        """Writes a ready websocket frame; False when the socket cannot take it."""
        transport = self._transport
        if not self.connected or transport is None or transport.get_write_buffer_size() > UNSENT_MAX_BYTES:
            return False
        transport.write(frame)
        return True

    def send_message(self, message: bytes) -> bool:
        """Sends one message that is not ready for the socket."""
        if not self.connected or self._transport is None:
            return False
        self._protocol.send_binary(message)
        self._flush()
        return True

    def tend(self) -> None:
        """To be called once a second: sends what waits, and ends a connection that is dead."""
        if not self.connected:
            return
        now_s = time.monotonic()
        if now_s - self._heard_s > SILENT_MAX_S:
            self._end(Over("the gateway is silent"))
            return
        for name, lane in self._lanes.items():
            waiting_s = now_s - lane.waiting_since_s if lane.waiting_since_s is not None else 0.0
            if waiting_s > ACK_TIMEOUT_S and now_s >= lane.paused_until_s:
                self._end(Over(f"no acknowledgement in lane {name} for {ACK_TIMEOUT_S:.0f} s"))
                return
        self.send_records()

    def send_records(self) -> None:
        """Sends spooled records as far as lanes allow."""
        if not self.connected:
            return
        for name in LANES:
            while self._send_some(name):
                pass

    def drop(self) -> None:
        """The agent is killed: the connection breaks without a word."""
        self.held = True
        self._end(Over("killed"))

    def let_go(self) -> None:
        """The agent is back."""
        self.held = False

    async def stop(self) -> None:
        """Says Bye; ``run`` returns soon after."""
        self._stopping.set()
        if self.send_message(codec.encode(records.Bye(reason="the agent stops"))):
            self._protocol.send_close(1000)
            self._flush()
        if not self.connected:
            self._end(Over("stopped"))

    # --- the life of it ---------------------------------------------------------------------------------

    async def run(self) -> None:
        """Connects, again and again."""
        backoff_s = BACKOFF_FIRST_S
        while not self._stopping.is_set():
            pause_s = random.uniform(backoff_s / 2, backoff_s)  # noqa: S311  spreads a fleet, no secret
            welcomed = False
            try:
                async with self._shared.gate:
                    over = await self._connect()
                welcomed = True
                if not self._stopping.is_set():
                    await over
            except Over as end:
                pause_s = end.retry_s if end.retry_s is not None else pause_s
                log.info("gateway_away node=%s reason=%s", self._config.node, end)
            except (OSError, TimeoutError, InvalidHandshake, codec.WireError) as error:
                log.info("gateway_away node=%s reason=%s", self._config.node, error)
            finally:
                self._hang_up()
            backoff_s = BACKOFF_FIRST_S if welcomed else min(backoff_s * 2, BACKOFF_MAX_S)
            await self._rest(pause_s)

    async def _rest(self, pause_s: float) -> None:
        ends_s = time.monotonic() + pause_s
        while not self._stopping.is_set() and (self.held or time.monotonic() < ends_s):
            left_s = ends_s - time.monotonic()
            await asyncio.sleep(min(max(left_s, 0.05), 1.0))

    async def _connect(self) -> asyncio.Future[None]:
        """Until the gateway's welcome; returns what is done when the connection is over."""
        loop = asyncio.get_running_loop()
        over, welcomed = self._over, self._welcomed = loop.create_future(), loop.create_future()
        self._protocol = ClientProtocol(self._uri, max_size=limits.FRAME_MAX_BYTES)
        self._parts = []
        async with asyncio.timeout(WELCOME_TIMEOUT_S):
            await loop.create_connection(
                lambda: self,
                self._uri.host,
                self._uri.port,
                ssl=self._shared.tls(self._config) if self._uri.secure else None,
                server_hostname=self._uri.host if self._uri.secure else None,
            )
            await asyncio.wait([over, welcomed], return_when=asyncio.FIRST_COMPLETED)
        if over.done():
            over.result()
        return over

    def _hang_up(self) -> None:
        self.connected = False
        if self._transport is not None:
            self._transport.abort()
            self._transport = None
        for future in (self._over, self._welcomed):
            if future is not None and not future.done():
                future.cancel()
            elif future is not None and not future.cancelled():
                future.exception()  # whoever set it last has nobody to tell

    def _end(self, over: Over) -> None:
        """The connection is over; whoever waits for it is told why."""
        self.connected = False
        if self._over is not None and not self._over.done():
            self._over.set_exception(over)

    # --- asyncio.Protocol -------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._heard_s = time.monotonic()
        self._protocol.send_request(self._protocol.connect())
        self._flush()

    def data_received(self, data: bytes) -> None:
        self._heard_s = time.monotonic()
        self._protocol.receive_data(data)
        try:
            for event in self._protocol.events_received():
                self._take(event)
        except (codec.WireError, Over) as error:
            self._end(error if isinstance(error, Over) else Over(str(error)))
        self._flush()

    def eof_received(self) -> bool:
        self._protocol.receive_eof()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(Over(str(exc) if exc else "the connection was closed"))

    def _flush(self) -> None:
        for data in self._protocol.data_to_send():
            if self._transport is not None and data:
                self._transport.write(data)
        if self._protocol.close_expected() and self._protocol.close_code is not None:
            self._end(Over(f"closed with {self._protocol.close_code}"))

    # --- in ---------------------------------------------------------------------------------------------

    def _take(self, event: object) -> None:
        if isinstance(event, Response):
            if self._protocol.state is not State.OPEN:
                raise Over(str(self._protocol.handshake_exc or "no websocket there"))
            self._greet()
        elif isinstance(event, Frame) and event.opcode in (Opcode.BINARY, Opcode.CONT):
            self._parts.append(bytes(event.data))
            if event.fin:
                message, self._parts = b"".join(self._parts), []
                self._dispatch(codec.decode_from_gateway(message))

    def _greet(self) -> None:
        credential = None if self._enrol_again else self._shared.credentials.get(self._config.node)
        token = self._config.enrolment_token() if credential is None else None
        self._protocol.send_binary(codec.encode(self._hello(credential, token)))

    def _dispatch(self, message: records.FromGateway) -> None:
        if isinstance(message, records.Refuse):
            raise self._refused(message)
        if not self.connected:
            if not isinstance(message, records.Welcome):
                raise Over(f"a {type(message).__name__} instead of a welcome")
            self._begin(message)
        elif isinstance(message, records.Ack):
            self._acknowledged(message)
        elif isinstance(message, records.Reject):
            self._rejected(message)
        elif isinstance(message, records.Slow):
            pause_s = min(max(message.pause_s, 0.0), PAUSE_MAX_S)
            self._lanes[message.lane].paused_until_s = time.monotonic() + pause_s
        elif isinstance(message, records.CaptureOrder):
            self._on_capture(message)

    def _begin(self, welcome: records.Welcome) -> None:
        codec.check_version(welcome.version)
        if welcome.credential:
            self._shared.credentials[self._config.node] = welcome.credential
        self._enrol_again = False
        given, acked = self._spool.next_sequences(), welcome.acked
        if acked.urgent >= given.urgent or acked.bulk >= given.bulk:
            self._spool.begin_epoch()
            self._on_new_epoch()
            raise Over("the server is ahead of us, so a new epoch begins")
        for lane in LANES:
            self._spool.ack(lane, getattr(acked, lane))
            sent = max(getattr(acked, lane), self._spool.acked(lane))
            self._lanes[lane] = LaneState(sent=sent, rejected=self._lanes[lane].rejected)
        self.connected = True
        if self._welcomed is not None and not self._welcomed.done():
            self._welcomed.set_result(None)
        self.send_records()

    def _acknowledged(self, ack: records.Ack) -> None:
        lane = self._lanes[ack.lane]
        if ack.sequence > lane.sent:
            return
        self._spool.ack(ack.lane, ack.sequence)
        lane.rejected = {sequence for sequence in lane.rejected if sequence > ack.sequence}
        lane.waiting_since_s = time.monotonic() if lane.sent > ack.sequence else None
        self.send_records()

    def _rejected(self, reject: records.Reject) -> None:
        lane = self._lanes[reject.lane]
        if reject.sequence > lane.sent or reject.sequence in lane.rejected:
            return
        log.warning(
            "record_rejected node=%s lane=%s sequence=%d reason=%s",
            self._config.node, reject.lane, reject.sequence, reject.reason,
        )  # fmt: skip
        self._spool.note_rejected(reject.lane, reject.sequence, reject.reason)
        lane.rejected.add(reject.sequence)

    def _refused(self, refusal: records.Refuse) -> Over:
        retry_s = refusal.retry_after_s
        pause_s = REFUSED_RETRY_S if retry_s is None else min(max(retry_s, 1.0), 10 * REFUSED_RETRY_S)
        enrols = (
            refusal.code == "bad_credential"
            and not self._enrol_again
            and self._config.enrolment_token() is not None
        )
        self._enrol_again = enrols
        log.error(
            "gateway_refused node=%s code=%s reason=%s", self._config.node, refusal.code, refusal.reason
        )
        return Over(f"refused: {refusal.code}", min(pause_s, BACKOFF_FIRST_S) if enrols else pause_s)

    # --- out --------------------------------------------------------------------------------------------

    def _send_some(self, name: Lane) -> bool:
        """Sends one ``Put`` of the lane if it may; says whether it did."""
        lane = self._lanes[name]
        room = IN_FLIGHT_MAX_RECORDS - (lane.sent - self._spool.acked(name))
        if room <= 0 or self._spool.last(name) <= lane.sent:
            return False
        now_s = time.monotonic()
        if now_s < lane.paused_until_s:
            return False
        found = self._spool.read(name, lane.sent, min(room, limits.RECORDS_PER_PUT_MAX), PUT_MAX_BYTES)
        if not found:
            return False
        items = [
            records.PutItem(sequence, payload) for sequence, payload in found if sequence not in lane.rejected
        ]
        if items:
            self._protocol.send_binary(codec.encode(records.Put(lane=name, items=items)))
            self._flush()
        lane.sent = found[-1][0]
        if lane.waiting_since_s is None:
            lane.waiting_since_s = now_s
        return True
