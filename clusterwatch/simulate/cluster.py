"""The simulated cluster as it lives: every second a hot frame of each node, every minute its records.

In: settings. Out: a process that speaks the wire until it is stopped, then says Bye on every line. Nodes are
served in ``PHASES`` groups spread over the second, as real agents are.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from clusterwatch.simulate import topology
from clusterwatch.simulate.line import Line, credential_folder
from clusterwatch.simulate.telemetry import MINUTE_NS, Telemetry
from clusterwatch.simulate.training import Run, RunningJob, plan
from collectors.clock import Clock, SystemClock
from collectors.config import AgentConfig
from collectors.minute import spread_s
from collectors.wire import hot_values, records

PHASES: Final = 8
"""Groups of nodes whose seconds begin at different times."""
START_SPREAD_S: Final = 0.02
"""Between two nodes' first connections: the server enrols them one after the other."""
_STOP_WITHIN_S: Final = 5.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Settings:
    """What a simulated cluster is."""

    cluster: str
    gpu_count: int
    seed: int
    root: Path
    """the state folder; credentials lie in ``simulator`` below it"""
    gateway_url: str
    token: str | None = None
    token_file: Path | None = None
    gateway_ca: Path | None = None


class Cluster:
    """All nodes, jobs and lines."""

    def __init__(self, settings: Settings, clock: Clock | None = None) -> None:
        """Raises ``OSError`` when the state folder cannot be used."""
        self._settings = settings
        self._clock = clock or SystemClock()
        self.nodes = topology.build(settings.gpu_count, settings.seed)
        run = _run_of(settings, self._clock.now_ns())
        self._jobs = [
            RunningJob(job, self.nodes, run, settings.seed) for job in plan(len(self.nodes), settings.seed)
        ]
        self._job_of: list[tuple[RunningJob, int] | None] = [None] * len(self.nodes)
        for job in self._jobs:
            for place in range(job.plan.node_count):
                self._job_of[job.plan.first_node + place] = (job, place)
        busy = np.array([held is not None for held in self._job_of])
        self._telemetry = Telemetry(len(self.nodes), busy, settings.seed)
        self.lines = [Line(node, self._config(node), self._clock) for node in self.nodes]
        self._closed_minute = [0] * len(self.nodes)
        self._begun_ns = 0

    def _config(self, node: topology.SimulatedNode) -> AgentConfig:
        settings = self._settings
        folder = credential_folder(settings.root, settings.cluster, node.name)
        return AgentConfig(
            state_dir=folder,
            gateway_url=settings.gateway_url,
            hook_socket=folder / "hook.sock",
            cluster=settings.cluster,
            node=node.name,
            machine_id=node.machine_id,
            boot_id=f"simulated-{settings.seed}",
            token=settings.token,
            token_file=settings.token_file,
            gateway_ca=settings.gateway_ca,
        )

    # --- the life of it ---------------------------------------------------------------------------------

    async def run(self, stop: asyncio.Event) -> None:
        """Lives until ``stop`` is set."""
        self._begun_ns = self._clock.now_ns()
        for place in range(len(self.nodes)):
            self._announce(place, self._begun_ns)
        async with asyncio.TaskGroup() as tasks:
            senders = [tasks.create_task(self._connect(place)) for place in range(len(self.lines))]
            ticking = tasks.create_task(self._tick())
            await stop.wait()
            ticking.cancel()
            await self._say_bye(senders)

    async def _connect(self, place: int) -> None:
        await asyncio.sleep(place * START_SPREAD_S)
        await self.lines[place].run()

    async def _say_bye(self, senders: list[asyncio.Task[None]]) -> None:
        for line in self.lines:
            await line.stop()
        _, late = await asyncio.wait(senders, timeout=_STOP_WITHIN_S)
        for task in late:
            task.cancel()

    async def _tick(self) -> None:
        """Serves one group of nodes after the other, each once a second."""
        loop = asyncio.get_running_loop()
        next_s = loop.time()
        while True:
            for phase in self._phases():
                self._serve(phase, self._clock.now_ns())
                next_s = max(next_s + 1 / PHASES, loop.time())
                await asyncio.sleep(next_s - loop.time())

    def _phases(self) -> Iterator[slice]:
        bounds = np.linspace(0, len(self.nodes), PHASES + 1).astype(int).tolist()
        return (slice(first, last) for first, last in zip(bounds[:-1], bounds[1:], strict=True))

    # --- what nodes say ---------------------------------------------------------------------------------

    def _announce(self, place: int, t_ns: int) -> None:
        """What a node says once: itself and its training processes."""
        node, line = self.nodes[place], self.lines[place]
        line.append(
            records.Inventory(
                t_ns=t_ns, hostname=node.name, kernel="6.8.0", os="simulated", cpu_model="simulated",
                cpu_count=topology.CPU_COUNT, memory_bytes=topology.MEMORY_BYTES, gpus=list(node.gpus),
                facts={"simulated": "yes"},
            )
        )  # fmt: skip
        if held := self._job_of[place]:
            for inventory in held[0].inventories(held[1], t_ns):
                line.append(inventory)

    def _serve(self, nodes: slice, now_ns: int) -> None:
        """One second of some nodes."""
        metrics = self._telemetry.sample(nodes, now_ns)
        for row, place in enumerate(range(nodes.start, nodes.stop)):
            line = self.lines[place]
            self._close_minute(place, now_ns)
            if not line.connected:
                continue
            held = self._job_of[place]
            line.offer(
                records.HotFrame(
                    t_ns=now_ns,
                    metrics=hot_values.pack({name: rows[row] for name, rows in metrics.items()}),
                    progress=held[0].progress(held[1], now_ns) if held else None,
                    agent=records.AgentCost(
                        dropped_total=line.spool.dropped_total, sources={"simulator": "ok"}
                    ),
                )
            )

    def _close_minute(self, place: int, now_ns: int) -> None:
        """Sends the last full minute of a node once its own moment after the minute has come."""
        minute_ns = (
            now_ns - int(spread_s(self.nodes[place].name) * 1e9)
        ) // MINUTE_NS * MINUTE_NS - MINUTE_NS
        if minute_ns <= self._closed_minute[place] or minute_ns + MINUTE_NS <= self._begun_ns:
            return
        self._closed_minute[place] = minute_ns
        line = self.lines[place]
        if block := self._telemetry.block(place, minute_ns):
            line.append(block)
        if held := self._job_of[place]:
            for steps in _steps(
                held[0], held[1], max(minute_ns, self._begun_ns), minute_ns + MINUTE_NS, now_ns
            ):
                line.append(steps)


def _steps(job: RunningJob, node: int, start_ns: int, end_ns: int, now_ns: int) -> Iterator[records.Steps]:
    """The steps that each rank of a node finished in a span of time."""
    numbers, ends, durations = job.steps_between(node, start_ns, end_ns)
    if not len(numbers):
        return
    nothing: list[float | None] = [None] * len(numbers)
    for local, row in enumerate(durations):
        yield records.Steps(
            t_ns=now_ns,
            id=job.rank_id(node * topology.GPUS_PER_NODE + local),
            step=numbers.tolist(),
            end_ns=ends.tolist(),
            duration_s=row.round(6).tolist(),
            data_wait_s=(row * 0.004).round(6).tolist(),
            checkpoint_s=nothing,
            gc_s=nothing,
            cpu_s=nothing,
        )


def _run_of(settings: Settings, now_ns: int) -> Run:
    """The run of the simulated jobs: kept, so that their steps go on rising over restarts.

    A cluster of another size cannot go on with the same ranks: its jobs begin their next attempt.
    Raises ``OSError``.
    """
    folder = settings.root / "simulator" / settings.cluster
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / f"run-{settings.seed}.json"
    attempt = 0
    try:
        kept = msgspec.json.decode(path.read_bytes(), type=_KeptRun)
        if kept.gpu_count == settings.gpu_count:
            return Run(kept.attempt, kept.started_ns)
        attempt = kept.attempt + 1
    except (FileNotFoundError, msgspec.MsgspecError):
        log.info("simulated jobs begin anew")
    path.write_bytes(msgspec.json.encode(_KeptRun(settings.gpu_count, attempt, now_ns)))
    return Run(attempt, now_ns)


class _KeptRun(msgspec.Struct):
    gpu_count: int
    attempt: int
    started_ns: int
