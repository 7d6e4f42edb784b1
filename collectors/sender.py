"""The connection to the gateway: hello, hot frames, spooled records with their acknowledgements, captures.

In: the spool, the newest hot frame. Out: wire messages; ``on_capture`` for orders. The spool is the truth:
after any break the gateway says what it has committed and everything above goes again, in order. Hot frames
are never kept: newest wins. Unacknowledged records in flight are bounded; ``Slow`` pauses a lane.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake

from collectors.chain import SyncJob
from collectors.clock import Clock
from collectors.config import AgentConfig
from collectors.spool import Spool
from collectors.wire import codec, limits, records
from collectors.wire.records import LANES, Lane

log = logging.getLogger(__name__)

BACKOFF_FIRST_S: Final = 0.5
BACKOFF_MAX_S: Final = 30.0
BROKEN_SPREAD_S: Final = 1.0
"""A connection that broke is made again within this; a node silent for 3 s is told of."""
RESUME_SPREAD_S: Final = 8.0
"""The same after a gateway said that it stops or has too much to do: it greets some hundred a second."""
_LEFT_BY_GATEWAY: Final = frozenset({1001, 1012, 1013})
"""Close codes: going away, service restart, try again later. Source: IANA WebSocket close code registry."""
REFUSED_RETRY_S: Final = 60.0
WELCOME_TIMEOUT_S: Final = 15.0
ACK_TIMEOUT_S: Final = 120.0
"""Records in flight without any acknowledgement for so long: the connection is made anew."""
IN_FLIGHT_MAX_RECORDS: Final = 1_024
PUT_MAX_BYTES: Final = 1024 * 1024
PAUSE_MAX_S: Final = 300.0
_CLOSE_TIMEOUT_S: Final = 2.0


class Refused(Exception):
    """The gateway will not talk to this agent."""

    def __init__(self, refusal: records.Refuse) -> None:
        super().__init__(f"{refusal.code}: {refusal.reason}")
        self.refusal = refusal


class Stalled(Exception):
    """The gateway stays connected but commits nothing."""


@dataclass(slots=True)
class LaneState:
    """One lane of one connection."""

    sent: int = 0
    paused_until_s: float = 0.0
    waiting_since_s: float | None = None
    rejected: set[int] = field(default_factory=set)


class CredentialFile:
    """The credential of this node, 0600."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> str | None:
        try:
            return self._path.read_text(encoding="utf-8").strip() or None
        except OSError:
            return None

    def write(self, credential: str) -> None:
        """Replaces the file. Raises ``OSError``."""
        temporary = self._path.with_suffix(".new")
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            file.write(credential + "\n")
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self._path)


class Sender:
    """Keeps one connection alive; ``run`` ends only when it is cancelled or ``stop`` was called."""

    def __init__(
        self,
        config: AgentConfig,
        spool: Spool,
        clock: Clock,
        hello: Callable[[str | None, str | None], records.Hello],
        on_capture: Callable[[records.CaptureOrder], None],
        on_new_epoch: Callable[[], None] = lambda: None,
    ) -> None:
        """``hello`` makes the first message from (credential, enrolment token)."""
        self._config = config
        self._spool = spool
        self._clock = clock
        self._hello = hello
        self._on_capture = on_capture
        self._on_new_epoch = on_new_epoch
        self._credential = CredentialFile(config.state_dir / "credential")
        self._enrol_again = False
        self._hot: bytes | None = None
        self._hot_ready = asyncio.Event()
        self._work = asyncio.Event()
        self._lanes: dict[Lane, LaneState] = {lane: LaneState() for lane in LANES}
        self._stopping = asyncio.Event()
        self.connected = False
        self.welcomed = asyncio.Event()

    # --- for the agent ---------------------------------------------------------------------------------

    def hot(self, frame: records.HotFrame) -> None:
        """Offers the newest hot frame; it replaces one that was not sent yet."""
        if self.connected:
            self._hot = codec.encode(frame)
            self._hot_ready.set()

    def wake(self) -> None:
        """There is something new in the spool."""
        self._work.set()

    async def stop(self) -> None:
        """Says goodbye where there is a connection; ``run`` returns soon after."""
        self._stopping.set()

    async def run(self) -> None:
        """Connects, again and again."""
        backoff_s = BACKOFF_FIRST_S
        while not self._stopping.is_set():
            pause_s = random.uniform(backoff_s / 2, backoff_s)  # noqa: S311  spreads a fleet, no secret
            try:
                await self._session()
                backoff_s = BACKOFF_FIRST_S
            except Refused as refused:
                pause_s = self._refused(refused)
            except (
                OSError,
                InvalidHandshake,
                ConnectionClosed,
                codec.WireError,
                TimeoutError,
                Stalled,
            ) as error:
                if self.welcomed.is_set():
                    backoff_s = BACKOFF_FIRST_S
                    pause_s = random.uniform(0, _resume_spread_s(error))  # noqa: S311
                log.warning("gateway_away url=%s error=%s", self._config.gateway_url, _words(error))
                backoff_s = min(backoff_s * 2, BACKOFF_MAX_S)
            self.connected = False
            self.welcomed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._stopping.wait()

    # --- one connection --------------------------------------------------------------------------------

    async def _session(self) -> None:
        url = self._config.gateway_url
        async with connect(
            url,
            compression=None,
            max_size=limits.FRAME_MAX_BYTES,
            max_queue=64,
            open_timeout=WELCOME_TIMEOUT_S,
            close_timeout=_CLOSE_TIMEOUT_S,
            ssl=tls_context(self._config) if urlsplit(url).scheme == "wss" else None,
            proxy=None,
        ) as connection:
            await self._greet(connection)
            log.info("gateway_connected url=%s node=%s", url, self._config.node)
            tasks = [
                asyncio.create_task(part)
                for part in (
                    self._receive(connection),
                    self._send_hot(connection),
                    self._send_records(connection),
                    self._stopping.wait(),
                )
            ]
            try:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                self.connected = False
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
            if self._stopping.is_set():
                await connection.send(codec.encode(records.Bye(reason="the agent stops")))
                return
            for task in done:
                task.result()

    async def _greet(self, connection: ClientConnection) -> None:
        credential = None if self._enrol_again else self._credential.read()
        token = self._config.enrolment_token() if credential is None else None
        await connection.send(codec.encode(self._hello(credential, token)))
        async with asyncio.timeout(WELCOME_TIMEOUT_S):
            answer = await connection.recv(decode=False)
        message = codec.decode_from_gateway(answer)
        if isinstance(message, records.Refuse):
            raise Refused(message)
        if not isinstance(message, records.Welcome):
            raise codec.WireError("bad_message", f"a {type(message).__name__} instead of a welcome")
        codec.check_version(message.version)
        if message.credential:
            self._credential.write(message.credential)
        self._enrol_again = False
        self._resume(message)
        self.connected = True
        self.welcomed.set()

    def _resume(self, welcome: records.Welcome) -> None:
        """Goes on behind what the server has; a server ahead of us shows that our folder is an old copy."""
        given = self._spool.next_sequences()
        acked: dict[Lane, int] = {"urgent": welcome.acked.urgent, "bulk": welcome.acked.bulk}
        if acked["urgent"] >= given.urgent or acked["bulk"] >= given.bulk:
            log.error("spool_is_old server=%s ours=%s: a new epoch begins", welcome.acked, given)
            self._spool.begin_epoch()
            self._on_new_epoch()
            raise Stalled("the spool folder is an older copy, so a new epoch begins")
        for lane in LANES:
            self._spool.ack(lane, acked[lane])
            self._lanes[lane] = LaneState(
                sent=max(acked[lane], self._spool.acked(lane)), rejected=self._lanes[lane].rejected
            )
        self._work.set()

    # --- in ---------------------------------------------------------------------------------------------

    async def _receive(self, connection: ClientConnection) -> None:
        while True:
            message = codec.decode_from_gateway(await connection.recv(decode=False))
            if isinstance(message, records.Ack):
                self._acknowledged(message)
            elif isinstance(message, records.Reject):
                self._rejected(message)
            elif isinstance(message, records.Slow):
                pause_s = min(max(message.pause_s, 0.0), PAUSE_MAX_S)
                self._lanes[message.lane].paused_until_s = _loop_time() + pause_s
            elif isinstance(message, records.CaptureOrder):
                log.info("capture_order id=%d job=%s want=%s", message.capture_id, message.job, message.want)
                self._on_capture(message)
            elif isinstance(message, records.Refuse):
                raise Refused(message)
            self._work.set()

    def _acknowledged(self, ack: records.Ack) -> None:
        lane = self._lanes[ack.lane]
        if ack.sequence > lane.sent:
            log.warning("ack_of_unsent lane=%s sequence=%d sent=%d", ack.lane, ack.sequence, lane.sent)
            return
        self._spool.ack(ack.lane, ack.sequence)
        lane.rejected = {sequence for sequence in lane.rejected if sequence > ack.sequence}
        lane.waiting_since_s = _loop_time() if lane.sent > ack.sequence else None

    def _rejected(self, reject: records.Reject) -> None:
        lane = self._lanes[reject.lane]
        if reject.sequence > lane.sent or reject.sequence in lane.rejected:
            return
        log.warning(
            "record_rejected lane=%s sequence=%d reason=%s", reject.lane, reject.sequence, reject.reason
        )
        self._spool.note_rejected(reject.lane, reject.sequence, reject.reason[: limits.NAME_MAX_CHARS])
        lane.rejected.add(reject.sequence)

    # --- out --------------------------------------------------------------------------------------------

    async def _send_hot(self, connection: ClientConnection) -> None:
        while True:
            await self._hot_ready.wait()
            self._hot_ready.clear()
            frame, self._hot = self._hot, None
            if frame is not None:
                await connection.send(frame)

    async def _send_records(self, connection: ClientConnection) -> None:
        while True:
            self._work.clear()
            await self._flush_spool()
            moved = [await self._send_some(connection, lane) for lane in LANES]
            self._check_stall()
            if not any(moved):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._idle_s()):
                        await self._work.wait()

    async def _flush_spool(self) -> None:
        """Only what is on the disk may be sent (see ``spool``); the disk is waited for in a thread."""
        job = self._spool.begin_sync()
        if job is None:
            return
        try:
            await asyncio.to_thread(SyncJob.run, job)
        except OSError as error:
            # Sent all the same: a disk that cannot flush endangers the records more than their numbers.
            log.error("spool_sync_failed error=%s", error)
        self._spool.end_sync(job)

    async def _send_some(self, connection: ClientConnection, name: Lane) -> bool:
        """Sends one ``Put`` of the lane if it may; says whether it did."""
        lane = self._lanes[name]
        room = IN_FLIGHT_MAX_RECORDS - (lane.sent - self._spool.acked(name))
        if room <= 0 or _loop_time() < lane.paused_until_s:
            return False
        found = self._spool.read(name, lane.sent, min(room, limits.RECORDS_PER_PUT_MAX), PUT_MAX_BYTES)
        if not found:
            return False
        items = [
            records.PutItem(sequence, payload) for sequence, payload in found if sequence not in lane.rejected
        ]
        if items:
            await connection.send(codec.encode(records.Put(lane=name, items=items)))
        lane.sent = found[-1][0]
        if lane.waiting_since_s is None:
            lane.waiting_since_s = _loop_time()
        return True

    def _check_stall(self) -> None:
        for name, lane in self._lanes.items():
            since_s = lane.waiting_since_s
            paused = _loop_time() < lane.paused_until_s
            if since_s is not None and not paused and _loop_time() - since_s > ACK_TIMEOUT_S:
                raise Stalled(f"no acknowledgement in lane {name} for {ACK_TIMEOUT_S:.0f} s")

    def _idle_s(self) -> float:
        now_s = _loop_time()
        pauses = [lane.paused_until_s - now_s for lane in self._lanes.values()]
        return min([pause for pause in pauses if pause > 0] + [ACK_TIMEOUT_S / 4])

    def _refused(self, refused: Refused) -> float:
        """Logs, and says after how many seconds to try again."""
        code = refused.refusal.code
        retry_s = refused.refusal.retry_after_s
        pause_s = REFUSED_RETRY_S if retry_s is None else min(max(retry_s, 1.0), 10 * REFUSED_RETRY_S)
        # A server that was set up anew does not know our credential: it may enrol us with the token instead.
        enrols = (
            code == "bad_credential" and not self._enrol_again and self._config.enrolment_token() is not None
        )
        self._enrol_again = enrols
        if enrols:
            pause_s = min(pause_s, BACKOFF_FIRST_S)
        log.error(
            "gateway_refused code=%s reason=%s retry_s=%.1f: nothing is lost, the spool keeps the records",
            code, refused.refusal.reason, pause_s,
        )  # fmt: skip
        return pause_s


def tls_context(config: AgentConfig) -> ssl.SSLContext:
    """Verifies the gateway by the system's authorities, or by the given file only."""
    context = ssl.create_default_context(cafile=str(config.gateway_ca) if config.gateway_ca else None)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _resume_spread_s(error: BaseException) -> float:
    """Over how many seconds a fleet comes back: a gateway that says goodbye leaves all its nodes at once."""
    code = error.rcvd.code if isinstance(error, ConnectionClosed) and error.rcvd is not None else None
    return RESUME_SPREAD_S if code in _LEFT_BY_GATEWAY else BROKEN_SPREAD_S


def _loop_time() -> float:
    return asyncio.get_running_loop().time()


def _words(error: BaseException) -> str:
    text = str(error).strip() or type(error).__name__
    return text.replace("\n", " ")[:300]
