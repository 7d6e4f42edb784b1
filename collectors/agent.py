"""The node agent: puts spool, sender, hook listener, sources and guard together and ticks once a second.

In: ``AgentConfig``. Out: records to the gateway, one ready line on stdout. Everything runs in one asyncio
loop; only sources, disk flushes and the decoding of dumps are in threads. A fault in one part of a tick is
logged and the other parts go on; SIGTERM and SIGINT end it cleanly: buffers go to the spool, the gateway
hears a goodbye.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import signal
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Final

from collectors import inventory, node_series, sources, wire_events
from collectors.capture import Capturer
from collectors.clock import Clock, SystemClock
from collectors.config import AgentConfig, publish_hook_socket
from collectors.exits import ExitWatch
from collectors.guard import Guard
from collectors.hook_server import HookServer
from collectors.minute import MetricSpec, MinuteStore
from collectors.node_series import NodeSeries
from collectors.poller_link import PollerLink
from collectors.rank_allocator import AllocatorReadings
from collectors.rank_memory import RankMemory
from collectors.ranks import RankTable
from collectors.readings import Newest
from collectors.sender import Sender
from collectors.sources import gpu_pause
from collectors.sources.base import OK, Resuming, SourceEvent
from collectors.sources.news import News
from collectors.sources.tree import Tree
from collectors.spool import Spool
from collectors.supervise import Supervisor
from collectors.wire import hot_values, records
from collectors.wire.records import AgentCost, HotFrame

log = logging.getLogger(__name__)

STEPS_EVERY_TICKS: Final = 10
BLOCKS_EVERY_TICKS: Final = 5
"""How often to see whether a finished minute is due; its place in the minute need not be exact."""
_BYE_TIMEOUT_S: Final = 3.0
_LAST_WORDS_S: Final = 2.0
"""How long a stop waits for the gateway to take what is left."""
_GPUS_TIMEOUT_S: Final = 12.0
_RELEASE_WITHIN_NS: Final = 60_000_000_000
_TIMER_SLACK_S: Final = 0.005


class AlreadyRunning(Exception):
    """Another agent holds the state folder."""


class Agent:
    """One agent. Raises ``AlreadyRunning`` or ``OSError`` from the constructor."""

    def __init__(self, config: AgentConfig, clock: Clock | None = None, tree: Tree | None = None) -> None:
        """``tree``: what sources read instead of this machine, a recorded one."""
        self._config = config
        self._clock = clock or SystemClock()
        self._tree = tree or Tree()
        self._lock_fd = lock_folder(config.state_dir)
        self._spool = Spool(config.state_dir / "spool", max_bytes=config.spool_max_bytes, clock=self._clock)
        made = (block.minute_ns for block in self._spool.newest_blocks(3))
        self._minutes = MinuteStore(config.state_dir / "minute", config.node, made)
        self._table = RankTable(config.node, self._clock, self.emit)
        self._exits = ExitWatch(self._clock, self._table.exited)
        self._hooks = HookServer(config.hook_socket, self._table, self._exits)
        self._capturer = Capturer(self._table, self._hooks, self._clock, self.emit)
        self._sender = Sender(
            config, self._spool, self._clock, self._hello, self._capturer.start, self._say_who_we_are
        )
        self._guard = Guard(self._clock)
        self._memory = RankMemory(config.state_dir / "ranks", config.boot_id)
        self._ranks_changed = False
        self._faults: dict[str, str] = {}
        """part of the tick -> the fault it has now"""
        self._specs: dict[str, MetricSpec] = {}
        self._news = News()
        self._series = NodeSeries()
        self._values: dict[str, list[float | None]] = {}
        self._supervisor: Supervisor | None = None
        self._newest = Newest(config.node, self._clock, [])
        self._newest_sequence: int | None = None
        """of the last ``Readings``: the next one waits until the gateway has it"""
        self._allocator = AllocatorReadings()
        self._pollers = self._poller_link()
        self._ticks = 0
        self._stop = asyncio.Event()

    def _poller_link(self) -> PollerLink | None:
        """Only an agent that was told to poll devices has one."""
        file, folder = self._config.pollers_file, self._config.state_dir / "pollers"
        return PollerLink(file, folder, self._spool, self._clock, self._poller_changed) if file else None

    def emit(self, record: records.Spooled) -> None:
        """Puts one record on its way."""
        self._spool.append(record)
        self._sender.wake()
        self._ranks_changed |= isinstance(record, records.RankInventory | records.RankExit)

    async def run(self, on_ready: Callable[[], None]) -> None:
        """Runs until SIGTERM or SIGINT. Raises ``OSError`` when the hook socket cannot be bound."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        await self._hooks.start()
        publish_hook_socket(self._config.state_dir.parent, self._config.hook_socket)
        gpu_pause.WATCH.keep_in(self._config.state_dir)
        chosen = [sources.make(name) for name in sources.names() if name not in self._config.sources_off]
        for source in chosen:
            if isinstance(source, Resuming):
                source.keep_in(self._config.state_dir)
        self._specs = {spec.name: spec for source in chosen for spec in source.metrics}
        self._specs |= {spec.name: spec for spec in node_series.SPECS}
        self._series = await self._series_of_the_node()
        self._supervisor = Supervisor(chosen, self._tree, self._clock, self._source_changed)
        self._newest = Newest(self._config.node, self._clock, [*chosen, self._allocator])
        self._say_who_we_are()
        self._say("agent_started", "info", f"agent of {self._config.node} started", {})
        self._recall_ranks()
        sending = loop.create_task(self._sender.run())
        sending.add_done_callback(self._sender_ended)
        on_ready()
        try:
            await self._tick_until_stopped()
        finally:
            await self._close(sending)

    async def _series_of_the_node(self) -> NodeSeries:
        """The driver is asked beside the loop, and not for long: without an answer the agent still starts."""
        try:
            async with asyncio.timeout(_GPUS_TIMEOUT_S):
                return await asyncio.to_thread(NodeSeries.of, self._tree)
        except TimeoutError:
            log.warning("gpus_unknown reason=the driver gave no answer")
            return NodeSeries()

    # --- each second -------------------------------------------------------------------------------------

    async def _tick_until_stopped(self) -> None:
        """Ticks at this node's own place inside the second, so that a fleet does not send at once."""
        phase_ns = zlib.crc32(self._config.node.encode()) % 1000 * 1_000_000
        while not self._stop.is_set():
            wait_s = (1_000_000_000 - (self._clock.now_ns() - phase_ns) % 1_000_000_000) / 1e9
            if wait_s < _TIMER_SLACK_S:
                wait_s += 1.0  # the timer was a little early: not twice in one second
            try:
                async with asyncio.timeout(wait_s):
                    await self._stop.wait()
            except TimeoutError:
                self._hooks.hear_all()
                self._tick()

    def _tick(self) -> None:
        self._ticks += 1
        for part in (
            gpu_pause.WATCH.tick,
            self._collect,
            self._look_at_ranks,
            self._keep_second,
            self._send_hot,
            self._keep_allocators,
            self._send_readings,
            self._close_minutes,
            self._flush_steps,
            self._remember_ranks,
            self._spool.report_drops,
            self._mind_budget,
            self._mind_pollers,
            self._begin_looks,
        ):
            try:
                part()
                self._faults.pop(part.__name__, None)
            except Exception as error:  # noqa: BLE001  one part of the tick must not end the agent
                if self._faults.get(part.__name__) != repr(error):  # a full disk is not news each second
                    log.exception("tick_failed part=%s", part.__name__)
                self._faults[part.__name__] = repr(error)

    def _collect(self) -> None:
        assert self._supervisor is not None
        for source, reading in self._supervisor.tick():
            self._series.add(self._values, reading)
            self._newest.keep(source, reading)
            for event in self._news.fresh(source.name, reading):
                self._release_gpus(event)
                self.emit(wire_events.of_source(source.name, event, self._clock.now_ns()))

    def _begin_looks(self) -> None:
        """Last, so that no source competes with the tick for the interpreter."""
        assert self._supervisor is not None
        self._supervisor.begin()

    def _release_gpus(self, event: SourceEvent) -> None:
        """A reset that the driver asks for is blocked by whoever has it open, us too."""
        wanted = event.attributes.get("recovery_action")
        if event.t_ns is not None and self._clock.now_ns() - event.t_ns > _RELEASE_WITHIN_NS:
            return  # an old line of the kernel's log
        if self._config.gpu_release_s and isinstance(wanted, str) and wanted in gpu_pause.RESETS:
            gpu_pause.WATCH.ask(self._config.gpu_release_s)

    def _look_at_ranks(self) -> None:
        self._table.look_at_still()

    def _flush_steps(self) -> None:
        if self._ticks % STEPS_EVERY_TICKS == 0:
            self._table.flush_all_steps()

    def _keep_allocators(self) -> None:
        """At the first tick, then as often as steps leave; hooks tell anew each minute."""
        if self._ticks % STEPS_EVERY_TICKS == 1:
            self._newest.keep(self._allocator, self._allocator.reading(self._table, self._clock.now_ns()))

    def _remember_ranks(self) -> None:
        if self._ranks_changed:
            self._memory.save(self._table.inventories())
            self._ranks_changed = False

    def _keep_second(self) -> None:
        if self._values:
            self._minutes.add(self._clock.now_ns(), self._values, self._specs)

    def _close_minutes(self) -> None:
        if self._ticks % BLOCKS_EVERY_TICKS == 0:
            for block, path in self._minutes.take_due(self._clock.now_ns()):
                self.emit(block)
                path.unlink(missing_ok=True)

    def _send_hot(self) -> None:
        cost = AgentCost(
            cpu_ratio=self._guard.cpu_ratio,
            rss_bytes=self._guard.pss_bytes,
            spool_bytes=self._spool.size_bytes,
            spool_records=self._spool.pending_records,
            dropped_total=self._spool.dropped_total,
            sources=(self._supervisor.status() if self._supervisor else {})
            | ({"pollers": self._pollers.word} if self._pollers else {}),
        )
        self._sender.hot(
            HotFrame(
                t_ns=self._clock.now_ns(),
                metrics=hot_values.pack(self._values),
                progress=self._table.hot(),
                agent=cost,
            )
        )
        self._values = {}

    def _send_readings(self) -> None:
        """One at a time: while the gateway is away the spool holds one, and what comes after it is newer."""
        assert self._supervisor is not None
        waits = self._newest_sequence
        if waits is not None and self._spool.is_pending("bulk", waits):
            return
        record = self._newest.due(self._supervisor.status() | {self._allocator.name: OK})
        if record is not None:
            self._newest_sequence = self._spool.append(record)
            self._sender.wake()

    def _mind_pollers(self) -> None:
        if self._pollers is not None:
            self._pollers.tick()
            self._guard.excused_s = self._pollers.child_cpu_s
            self._sender.wake()

    def _mind_budget(self) -> None:
        verdict = self._guard.tick()
        if verdict is not None and verdict.sentence and self._supervisor is not None:
            self._supervisor.slow_down(verdict.slowdown)
            self._newest.slowdown = verdict.slowdown
            log.warning("agent_budget %s", verdict.sentence)
            self._say("agent_budget", "warning", verdict.sentence, {"slowdown": str(verdict.slowdown)})

    # --- records -----------------------------------------------------------------------------------------

    def _hello(self, credential: str | None, token: str | None) -> records.Hello:
        return inventory.hello(
            self._config,
            self._tree,
            self._clock,
            self._spool.epoch,
            self._spool.next_sequences(),
            credential,
            token,
            self._series.gpus,
        )

    def _say_who_we_are(self) -> None:
        """At start, and again for a server that cannot know this epoch."""
        self.emit(inventory.inventory(self._config, self._tree, self._clock, self._series.gpus))
        self._table.resend_inventories()

    def _recall_ranks(self) -> None:
        """Goes on with the ranks of the agent before, and tells the end of those that died meanwhile."""
        living, gone = self._memory.load()
        for inventory_record in living:
            self._table.adopt(inventory_record)
            self._exits.watch(inventory_record.pid)
        for found in gone:
            log.info("rank_gone_meanwhile job=%s rank=%d pid=%d", found.id.job, found.id.rank, found.pid)
            self.emit(records.RankExit(t_ns=self._clock.now_ns(), ref=found.ref, id=found.id, pid=found.pid))

    def _source_changed(self, name: str, reason: str, failed: bool) -> None:
        kind = "source_failed" if failed else "source_recovered"
        text = f"source {name} of {self._config.node}: {reason}"
        self._say(kind, "warning" if failed else "info", text, {"source": name, "reason": reason})

    def _poller_changed(self, name: str, reason: str, failed: bool) -> None:
        kind = "poller_failed" if failed else "poller_recovered"
        text = f"{f'poller {name}' if name else 'the pollers'} of {self._config.node}: {reason}"
        log.warning("%s poller=%s reason=%s", kind, name, reason)
        self._say(kind, "warning" if failed else "info", text, {"poller": name, "reason": reason})

    def _say(self, kind: str, severity: records.Severity, text: str, fields: dict[str, str]) -> None:
        self.emit(wire_events.of_agent(self._clock.now_ns(), kind, severity, text, fields))

    # --- the end -----------------------------------------------------------------------------------------

    def _sender_ended(self, task: asyncio.Task[None]) -> None:
        """The sender ends only when told to; anything else is a fault that must not pass unseen."""
        if not task.cancelled() and task.exception() is not None:
            log.critical("sender_failed", exc_info=task.exception())
            self._stop.set()

    async def _deliver_last(self) -> None:
        """What happened just before the stop still leaves: a job's end must not wait for our next start."""
        await self._exits.settle()
        self._table.flush_all_steps()
        self._sender.wake()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORDS_S):
                while self._sender.connected and self._spool.pending_records:
                    await asyncio.sleep(0.05)

    async def _close(self, sending: asyncio.Task[None]) -> None:
        if self._pollers is not None:
            await self._pollers.stop()
        await self._deliver_last()
        self._capturer.close()
        self._exits.close()
        await self._hooks.stop()
        if self._supervisor is not None:
            self._supervisor.stop()
        await self._sender.stop()
        await asyncio.wait([sending], timeout=_BYE_TIMEOUT_S)
        sending.cancel()
        self._minutes.close()
        self._spool.close()
        os.close(self._lock_fd)


def lock_folder(folder: Path) -> int:
    """Makes the state folder (0700) and holds it; the descriptor keeps the lock until it is closed.

    Raises:
        AlreadyRunning: another agent holds it.
        OSError: the folder cannot be made or written.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
    fd = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise AlreadyRunning(f"another agent uses {folder}") from None
    os.ftruncate(fd, 0)
    os.write(fd, f"{os.getpid()}\n".encode())
    return fd
