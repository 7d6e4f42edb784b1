"""The gateway's middle: connections, the writer, the board of hot frames, and the loops between them."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import ssl
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from django.db import close_old_connections, connection
from websockets.asyncio.server import Server, ServerConnection, serve

from clusterwatch.ingest.admission import Admission, Refused
from clusterwatch.ingest.admission_desk import AdmissionDesk
from clusterwatch.ingest.apply import TABLE_OF_TAG
from clusterwatch.ingest.board import Board
from clusterwatch.ingest.captures import CaptureWatch
from clusterwatch.ingest.commit import first_line, is_away
from clusterwatch.ingest.hot_writer import GatewayWriter
from clusterwatch.ingest.link import REPLACED, TRY_LATER, Broken, Link
from clusterwatch.ingest.quarantine import Quarantine, clock_step_words, doubt_about_clock
from clusterwatch.ingest.writer import Committed, PendingPut, Writer
from clusterwatch.jobs import queries as job_queries
from clusterwatch.jobs.announcements import RefLayout, layouts_of
from clusterwatch.store import hot, partitions
from clusterwatch.store.gateway_notes import GatewayNotes
from collectors.wire import limits, records

T = TypeVar("T")
logger = logging.getLogger(__name__)

CONNECTIONS_MAX: Final = 16_384
WAITING_MAX_BYTES: Final = 512 * 1024 * 1024
"""Payload bytes of all connections that wait for a commit; beyond it the sender is closed and comes back."""
HOT_EVERY_S: Final = 1.0
RESOLVE_EVERY_S: Final = 1.0
MAINTAIN_EVERY_S: Final = 600.0
STOP_PATIENCE_S: Final = 10.0
DATABASE_THREADS: Final = 4


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    """Where it listens; port 0 takes a free one. ``tls`` is (certificate chain, key)."""

    host: str = "127.0.0.1"
    port: int = 8643
    tls: tuple[Path, Path] | None = None
    connections_max: int = CONNECTIONS_MAX


def retention_of_tags() -> dict[str, int]:
    """How long each kind of record is kept, ns by tag: its table's retention, never above the wire's."""
    wire_ns = limits.RETENTION_MAX_S * 10**9
    kept = dict.fromkeys(records.LANE_OF, wire_ns)
    for tag, table in TABLE_OF_TAG.items():
        kept[tag] = min(wire_ns, partitions.TABLES[table].retention_ns)
    return kept


class Gateway:
    """One gateway process; ``start`` it in a running event loop, ``stop`` it there."""

    def __init__(self, config: GatewayConfig) -> None:
        self.name = hot.new_holder()
        self.board = Board()
        self.writer = Writer(self._on_committed, self._on_trouble, retention_of_tags())
        self._config = config
        self._links: dict[int, Link] = {}
        self._connection_count = 0
        self._stopping = False
        self._loop: asyncio.AbstractEventLoop
        self._server: Server
        self._tasks: list[asyncio.Task[None]] = []
        self._database = ThreadPoolExecutor(DATABASE_THREADS, "database")
        self._hot_thread = ThreadPoolExecutor(1, "hot-writer")
        self._writer_of_hot = GatewayWriter(self.name)
        self._desk = AdmissionDesk(self._call)
        self._quarantine = Quarantine()
        self._captures = CaptureWatch(self._call, self._send_order)

    @property
    def url(self) -> str:
        """Its address, with the real port."""
        host, port = self._server.sockets[0].getsockname()[:2]
        scheme = "wss" if self._config.tls else "ws"
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"

    async def start(self) -> None:
        """Listens. Raises ``OSError`` when the address is taken or a TLS file is no good."""
        self._loop = asyncio.get_running_loop()
        self._server = await serve(
            self._accept,
            self._config.host,
            self._config.port,
            ssl=_tls_context(self._config.tls),
            compression=None,
            max_size=limits.FRAME_MAX_BYTES,
            max_queue=8,
            open_timeout=10,
            close_timeout=2,
            ping_interval=20,
            ping_timeout=20,
            origins=[None],  # a browser always sends an origin and has no business here
            server_header=None,
        )
        self.writer.start()
        self._tasks = [
            asyncio.create_task(_forever(loop))
            for loop in (
                self._hot_loop,
                self._resolve_loop,
                self._maintain_loop,
                self._captures.run,
                self._desk.run,
            )
        ]

    async def stop(self) -> None:
        """Takes no more, commits what it has, acknowledges, says goodbye (1001). Again: does nothing."""
        if self._stopping:
            return
        self._stopping = True
        logger.info("gateway_stopping connections=%d", len(self._links))
        self._server.close(close_connections=False)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        done = await asyncio.to_thread(self.writer.stop, STOP_PATIENCE_S)
        await asyncio.sleep(0)  # lets the acknowledgements of the last commit reach their links
        links = list(self._links.values())
        await asyncio.gather(*(link.say_goodbye() for link in links), return_exceptions=True)
        await self._server.wait_closed()
        await asyncio.to_thread(_close_connections, self._database)
        self._hot_thread.shutdown(wait=False, cancel_futures=True)
        logger.info("gateway_stopped everything_committed=%s stored=%d", done, self.writer.figures.stored)

    # --- connections --------------------------------------------------------------------------------

    async def _accept(self, websocket: ServerConnection) -> None:
        if self._connection_count >= self._config.connections_max:
            await websocket.close(TRY_LATER, "too many connections: add a gateway")
            return
        self._connection_count += 1
        try:
            await Link(websocket, self).run()
        except Exception:  # a supervised boundary: one connection must not end the gateway
            logger.exception("connection_fault peer=%s", websocket.remote_address)
        finally:
            self._connection_count -= 1

    async def admit(self, hello: records.Hello) -> Admission:
        """Proves a node, together with others. Raises ``Refused``; ``Broken`` while the database is away."""
        try:
            admission = await self._desk.admit(hello)
        except Refused:
            raise
        except Exception as error:
            if is_away(error):
                raise Broken(TRY_LATER, "the gateway cannot reach its database: try again") from error
            logger.exception("admission_fault node=%r", hello.node)
            raise Broken(1011, "the gateway failed to admit this node; its log says why") from error
        self._check_name_is_free(admission)
        return admission

    def _check_name_is_free(self, admission: Admission) -> None:
        """Two machines with one name and one credential would push each other out for ever, and each would
        have its records taken for the other's. Raises ``Refused`` for the newer one.
        """
        node_id = admission.origin.node_id
        if node_id not in self._links or not self.board.is_fresh(node_id, time.time_ns()):
            return
        if self._quarantine.takes_turns(node_id, time.monotonic()):
            raise Refused(
                "duplicate_node",
                "another machine with this name and credential is connected and speaks: give one of them a "
                "name and a spool folder of its own",
            )

    def turned_away(self, hello: records.Hello, refusal: Refused, peer: str) -> None:
        """Keeps for people which node was refused, and why."""
        self._note(hello.cluster, hello.node, refusal.code, refusal.reason, peer)

    def _note(self, cluster: str, node: str, code: str, reason: str, peer: str) -> None:
        self._quarantine.note(cluster, node, code, reason, peer, time.time_ns() // 1_000_000)

    def doubt(self, hello: records.Hello, peer: str) -> None:
        """Notes a node whose clock cannot be right; it is admitted all the same."""
        if found := doubt_about_clock(hello, time.time_ns()):
            code, reason = found
            logger.warning(
                "node_in_doubt node=%s/%s code=%s reason=%s", hello.cluster, hello.node, code, reason
            )
            self._note(hello.cluster, hello.node, code, reason, peer)

    def _note_clock_steps(self) -> None:
        while self.board.clock_steps:
            node_id, step_ns = self.board.clock_steps.popleft()
            if link := self._links.get(node_id):
                origin, words = link.admission.origin, clock_step_words(step_ns)
                logger.warning("clock_stepped node=%s %s", link.node, words)
                self._note(origin.cluster, origin.node, "clock_stepped", words, link.peer)

    def joined(self, link: Link) -> None:
        node_id = link.admission.origin.node_id
        old = self._links.get(node_id)
        self._links[node_id] = link
        self.board.opened(link.admission, time.time_ns())
        logger.info(
            "node_connected node=%s epoch=%s acked=%s enrolled=%s",
            link.node,
            link.admission.origin.epoch,
            link.admission.acked,
            link.admission.credential is not None,
        )
        if old is not None:
            old.close_soon(REPLACED, "a newer connection of this node came")
        self._captures.wake()

    def left(self, link: Link, clean: bool, silent: bool) -> None:
        node_id = link.admission.origin.node_id
        logger.info("node_disconnected node=%s clean=%s silent=%s", link.node, clean, silent)
        if self._links.get(node_id) is not link:
            return
        del self._links[node_id]
        # A peer that only fell silent closed nothing: its last frame's age says all we know.
        if not silent:
            self.board.closed(node_id, hot.CLOSED_CLEAN if clean else hot.CLOSED, time.time_ns())

    def take_hot(self, link: Link, frame: records.HotFrame) -> None:
        node_id = link.admission.origin.node_id
        if self._links.get(node_id) is link:
            self.board.take(node_id, frame, time.time_ns())

    def submit(self, put: PendingPut) -> None:
        if self.writer.waiting_bytes > WAITING_MAX_BYTES:
            raise Broken(TRY_LATER, "the gateway has too much to commit: try again")
        node_id = put.origin.node_id
        if self._links.get(node_id) is put.sender:
            self.board.heard(node_id, time.time_ns())
        self.writer.submit(put)

    def _send_order(self, node_id: int, order: records.CaptureOrder) -> None:
        link = self._links.get(node_id)
        if link is not None and order.capture_id not in link.orders_sent:
            link.orders_sent.add(order.capture_id)
            link.send(order)
            logger.info("capture_sent id=%d node=%s want=%s", order.capture_id, link.node, order.want)

    # --- from the writer's thread -------------------------------------------------------------------

    def _on_committed(self, committed: Committed) -> None:
        self._in_loop(self._acknowledge, committed)

    def _acknowledge(self, committed: Committed) -> None:
        self.board.learn(committed.layouts)
        for put, result in committed.results:
            put.sender.acknowledge(put, result)

    def _on_trouble(self, waiting: Sequence[PendingPut], pause_s: float) -> None:
        self._in_loop(self._slow_down, {(put.sender, put.lane) for put in waiting}, pause_s)

    def _slow_down(self, senders: set[tuple[Link, records.Lane]], pause_s: float) -> None:
        for link, lane in senders:
            link.send(records.Slow(lane=lane, pause_s=pause_s))

    def _in_loop(self, function: Callable[..., None], *arguments: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:
            logger.info("loop_closed: the senders will hear of it at their next hello")

    # --- loops --------------------------------------------------------------------------------------

    async def _hot_loop(self) -> None:
        """Once a second everything this gateway knows goes to hot state; Valkey away costs nothing else."""
        next_s = self._loop.time()
        while True:
            snapshot, notes = self.board.collect(time.time_ns()), self._notes()
            work = functools.partial(self._writer_of_hot.write, snapshot, notes)
            await self._loop.run_in_executor(self._hot_thread, work)
            next_s = max(next_s + HOT_EVERY_S, self._loop.time())
            await asyncio.sleep(next_s - self._loop.time())

    def _notes(self) -> GatewayNotes:
        self._note_clock_steps()
        self.writer.mind_hanging_commit()
        nodes = self._quarantine.notes(time.time_ns() // 1_000_000)
        return GatewayNotes(self.writer.storing(), nodes, self._quarantine.total)

    async def _resolve_loop(self) -> None:
        """Refs in hot frames that no commit of ours explained are looked up (after a restart, a move)."""
        while True:
            await asyncio.sleep(RESOLVE_EVERY_S)
            unresolved = self.board.take_unresolved()
            if unresolved:
                self.board.learn(await self._call(functools.partial(_load_layouts, unresolved)))

    async def _maintain_loop(self) -> None:
        """Makes partitions ahead and drops expired ones."""
        while True:
            changed = await self._call(partitions.maintain)
            for what, names in changed.items():
                if names:
                    logger.info("partitions_%s names=%s", what, ",".join(names))
            await asyncio.sleep(MAINTAIN_EVERY_S)

    async def _call(self, function: Callable[[], T]) -> T:
        return await self._loop.run_in_executor(self._database, functools.partial(_with_database, function))


def _with_database(function: Callable[[], T]) -> T:
    """Runs in a thread that keeps its connection; a broken one is closed: the next call makes a new one."""
    close_old_connections()
    try:
        return function()
    except Exception as error:
        if is_away(error):
            connection.close()
        raise


def _close_connections(threads: ThreadPoolExecutor) -> None:
    """Ends the pool; each thread closes its own connection, since no other may."""
    together = threading.Barrier(DATABASE_THREADS)

    def close() -> None:
        connection.close()
        with contextlib.suppress(threading.BrokenBarrierError):
            together.wait(1.0)

    for _ in range(DATABASE_THREADS):
        threads.submit(close)
    threads.shutdown(wait=True)


def _load_layouts(nodes: Sequence[tuple[int, str]]) -> list[RefLayout]:
    return [
        layout for node_id, epoch in nodes for layout in layouts_of(job_queries.ranks_by_ref(node_id, epoch))
    ]


async def _forever(loop: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """A supervised loop: what fails is logged and begins again."""
    while True:
        try:
            await loop()
        except Exception as error:  # the loop's own boundary: the database or Valkey may be away for a while
            if is_away(error):
                logger.warning("loop_waits name=%s reason=%s", loop.__name__, first_line(error))
            else:
                logger.exception("loop_failed name=%s", loop.__name__)
        await asyncio.sleep(1.0)


def _tls_context(files: tuple[Path, Path] | None) -> ssl.SSLContext | None:
    if files is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(*files)
    return context
