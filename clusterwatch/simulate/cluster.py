"""The simulated cluster as it lives: every second a hot frame of each node, every minute its records.

In: a ``Scenario``, settings. Out: a process that speaks the wire until it is stopped, then says Bye on every
line. Nodes are served in ``PHASES`` groups spread over the second, as real agents are; a group is served in
parts, each of one world or of idle nodes, all of it as arrays.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from clusterwatch.simulate import kept, node_line, topology
from clusterwatch.simulate.answers import Answers
from clusterwatch.simulate.edges import Fabric
from clusterwatch.simulate.frames import FrameKind, FrameTemplate, message
from clusterwatch.simulate.kept import Settings
from clusterwatch.simulate.memory_spool import fair_bytes
from clusterwatch.simulate.minutes import MINUTE_NS, Minutes
from clusterwatch.simulate.node_line import NodeLine
from clusterwatch.simulate.parts import Part, drivers_of, parts_of, shifted, wire_values
from clusterwatch.simulate.scenario import AgentFault, Scenario
from clusterwatch.simulate.steps import Finished, finished, step_records, step_times
from clusterwatch.simulate.telemetry import Telemetry
from clusterwatch.simulate.wire import Shared
from clusterwatch.simulate.world import World
from collectors.clock import Clock, SystemClock
from collectors.minute import spread_s
from collectors.wire.records import CaptureDone, CaptureOrder, Spooled

PHASES: Final = 10
"""Groups of nodes whose seconds begin at different times."""
GREETINGS_AT_ONCE: Final = 8
"""The server enrols nodes one after the other; the others wait their turn here."""
_STOP_WITHIN_S: Final = 5.0
_LATE_S: Final = 1.0
_LAG_OF_BLOCKS_S: Final = 20.0
_S: Final = 1_000_000_000

log = logging.getLogger(__name__)


class Cluster:
    """All nodes, worlds and lines."""

    def __init__(self, settings: Settings, scenario: Scenario, clock: Clock | None = None) -> None:
        self.scenario = scenario
        self._clock = clock or SystemClock()
        nodes, per_node, seed = scenario.nodes, scenario.shape.gpus_per_node, scenario.seed
        self._telemetry = Telemetry(len(nodes), per_node, seed)
        self._minutes = Minutes(len(nodes), per_node, self._telemetry)
        self._parts = parts_of(scenario, PHASES)
        self._templates: dict[FrameKind, FrameTemplate] = {}
        self._shifts = tuple(scenario.shifts)
        self._credentials = kept.Credentials(settings)
        self._captures: deque[tuple[int, CaptureOrder]] = deque()
        self._asked = asyncio.Event()
        shared = Shared(self._credentials.held, GREETINGS_AT_ONCE)
        config = kept.agent_config(settings)
        spool_bytes = fair_bytes(len(nodes))
        self.lines = [
            NodeLine(
                node, config, self._clock, shared, self._on_capture,
                node_line.facts_of(node, scenario.shape), spool_bytes,
            )
            for node in nodes
        ]  # fmt: skip
        domain_nodes = scenario.shape.domain_nodes
        self._fabrics = {w.plan.first_node: Fabric(w, domain_nodes, seed) for w in scenario.worlds}
        self._answers = {world.plan.first_node: Answers(world, seed) for world in scenario.worlds}
        self._spread_ns = np.array([int(spread_s(node.name) * 1e9) for node in nodes], np.int64)
        self._closed_ns = np.full(
            len(nodes), scenario.begun_ns // MINUTE_NS * MINUTE_NS - MINUTE_NS, np.int64
        )
        self._finished: dict[tuple[int, int], Finished] = {}
        self.late_total = 0
        """times that this process fell behind its seconds; they are left out"""

    # --- the life of it ---------------------------------------------------------------------------------

    async def run(self, stop: asyncio.Event) -> None:
        """Lives until ``stop`` is set."""
        async with asyncio.TaskGroup() as tasks:
            wires = [tasks.create_task(line.wire.run()) for line in self.lines]
            others = [tasks.create_task(part) for part in (self._tick(), self._answer_captures())]
            await stop.wait()
            for task in others:
                task.cancel()
            await self._say_bye(wires)
        self._credentials.save()

    async def _say_bye(self, wires: list[asyncio.Task[None]]) -> None:
        for line in self.lines:
            await line.wire.stop()
        _, late = await asyncio.wait(wires, timeout=_STOP_WITHIN_S)
        for task in late:
            task.cancel()

    async def _tick(self) -> None:
        """Serves one group of nodes after the other, each once a second."""
        loop = asyncio.get_running_loop()
        next_s = loop.time()
        while True:
            for group in self._parts:
                self.serve(group, self._clock.now_ns())
                next_s += 1 / PHASES
                if loop.time() > next_s + _LATE_S:
                    self.late_total += 1
                    log.warning(
                        "simulator_late behind_s=%.1f times=%d", loop.time() - next_s, self.late_total
                    )
                    next_s = loop.time()
                await asyncio.sleep(max(0.0, next_s - loop.time()))
            self._credentials.save()

    # --- what nodes say ---------------------------------------------------------------------------------

    def serve(self, group: tuple[Part, ...], now_ns: int) -> None:
        """One second of a group of nodes."""
        for node, make in self.scenario.take_due(now_ns):
            for record in make():
                self.lines[node].append(record)
        for part in group:
            self._serve(part, now_ns)
            self._close_minutes(part, now_ns)
            for node in range(part.nodes.start, part.nodes.stop):
                line = self.lines[node]
                if line.wire.connected:
                    if not line.introduced:
                        self._introduce(node, now_ns)
                    line.wire.tend()

    def _serve(self, part: Part, now_ns: int) -> None:
        """Values and progress of one second, kept and sent."""
        nodes, world = part.nodes, part.world
        columns = living = None
        if world is not None:
            living = world.living(part.local, now_ns)
            columns = world.columns(part.local, now_ns)
        drivers = drivers_of(part, self.scenario.shape.gpus_per_node, now_ns, columns, living)
        self._minutes.begin(nodes, now_ns)
        values = self._telemetry.sample(nodes, now_ns, drivers, self._shifts)
        self._minutes.add(nodes, now_ns, values)
        faults = [f for f in self.scenario.agents if nodes.start <= f.node < nodes.stop]
        offsets = self._apply_agent_faults(faults, nodes, now_ns)
        if columns is not None and offsets.any():
            columns = shifted(columns, offsets)
        kind = part.kind(now_ns)
        packed = wire_values(values, self._telemetry.origin(nodes))
        frames = self._template(kind).frames(now_ns + offsets, packed, columns)
        skipped = {
            f.node for f in faults if f.kind == "lagging" and f.is_on(now_ns) and not _is_its_turn(f, now_ns)
        }
        for row, node in enumerate(range(nodes.start, nodes.stop)):
            if node in skipped:
                continue
            if living is not None and not living[row].all():
                text = message(kind, now_ns + int(offsets[row]), packed[row], columns, row, living[row])
                self.lines[node].wire.send_message(text)
            else:
                self.lines[node].wire.send_frame(frames[row])

    def _template(self, kind: FrameKind) -> FrameTemplate:
        found = self._templates.get(kind)
        if found is None:
            found = self._templates[kind] = FrameTemplate(kind)
        return found

    def _introduce(self, node: int, now_ns: int) -> None:
        """What a node says once: itself and its training processes."""
        line, world = self.lines[node], self.scenario.world_at(node)
        line.introduced = True
        line.append(line.inventory(now_ns))
        if world is not None:
            moment = world.timeline.moment(now_ns)
            started_ns = next(p.start_ns for p in world.timeline.pieces if p.attempt == moment.attempt)
            for record in world.inventories(node - world.plan.first_node, moment.attempt, started_ns, now_ns):
                line.append(record)

    def _apply_agent_faults(self, faults: list[AgentFault], nodes: slice, now_ns: int) -> NDArray[np.int64]:
        """Breaks and mends connections; returns how far ahead each node's clock is, ns."""
        offsets = np.zeros(nodes.stop - nodes.start, np.int64)
        for fault in faults:
            on, wire = fault.is_on(now_ns), self.lines[fault.node].wire
            if fault.kind == "clock" and on:
                offsets[fault.node - nodes.start] += int(fault.value * _S)
            elif fault.kind == "dead":
                if on:
                    self._minutes.forget(fault.node, now_ns)
                    if not wire.held:
                        wire.drop()
                elif wire.held:
                    wire.let_go()
        return offsets

    # --- minutes ----------------------------------------------------------------------------------------

    def _close_minutes(self, part: Part, now_ns: int) -> None:
        """Sends the last full minute of nodes once their own moment after the minute has come."""
        spread_ns = self._spread_ns[part.nodes]
        minutes = (now_ns - spread_ns) // MINUTE_NS * MINUTE_NS - MINUTE_NS
        due = np.flatnonzero(minutes > self._closed_ns[part.nodes])
        for row in due.tolist():
            node, minute_ns = part.nodes.start + row, int(minutes[row])
            faults = [f for f in self.scenario.agents if f.node == node and f.is_on(now_ns)]
            if any(f.kind == "lagging" for f in faults) and (
                now_ns - int(spread_ns[row]) - minute_ns < MINUTE_NS + int(_LAG_OF_BLOCKS_S * _S)
            ):
                continue
            self._closed_ns[node] = minute_ns
            dead = any(f.kind == "dead" for f in faults)
            clock_ns = int(sum(f.value for f in faults if f.kind == "clock") * _S)
            self._send_minute(None if dead else part.world, node, minute_ns, now_ns, clock_ns)

    def _send_minute(
        self, world: World | None, node: int, minute_ns: int, now_ns: int, clock_ns: int
    ) -> None:
        """The block of a node, and the steps of its ranks where somebody was there to count them.

        The block of an agent that died meanwhile lies in its spool, as on a real node, until it is back.
        """
        line = self.lines[node]
        told_ns = (minute_ns + clock_ns) // MINUTE_NS * MINUTE_NS
        if block := self._minutes.block(node, minute_ns, told_ns):
            line.append(block)
        if world is None:
            return
        ranks = world.plan.ranks_of(node)
        times = step_times(
            world, self._steps_of(world, minute_ns), ranks, self._telemetry.silicon[node],
            self.scenario.step_shifts.get(world.plan.first_node, ()), self.scenario.seed,
        )  # fmt: skip
        for record in step_records(world, ranks, times, now_ns, clock_ns):
            line.append(record)
        first = world.plan.first_node
        paces = self.scenario.link_paces.get(first, ())
        for told in self._fabrics[first].records(ranks, times, paces, now_ns, clock_ns):
            line.append(told)

    def _steps_of(self, world: World, minute_ns: int) -> Finished:
        """Shared by all nodes of the world."""
        key = (world.plan.first_node, minute_ns)
        found = self._finished.get(key)
        if found is None:
            self._finished = {k: v for k, v in self._finished.items() if k[1] >= minute_ns - MINUTE_NS}
            start_ns = max(minute_ns, self.scenario.begun_ns)
            found = self._finished[key] = finished(world, start_ns, minute_ns + MINUTE_NS)
        return found

    # --- captures ---------------------------------------------------------------------------------------

    def _on_capture(self, node: topology.SimulatedNode, order: CaptureOrder) -> None:
        self._captures.append((node.place, order))
        self._asked.set()

    async def _answer_captures(self) -> None:
        """One node after the other, so that hot frames go on in between."""
        while True:
            while self._captures:
                node, order = self._captures.popleft()
                for record in self._answer(node, order):
                    self.lines[node].append(record)
                self.lines[node].wire.send_records()
                await asyncio.sleep(0)
            self._asked.clear()
            await self._asked.wait()

    def _answer(self, node: int, order: CaptureOrder) -> Iterator[Spooled]:
        world, now_ns = self.scenario.world_at(node), self._clock.now_ns()
        if world is None or world.plan.job != order.job:
            silent = {str(rank): "no such rank of this job on this node" for rank in order.ranks or ()}
            yield CaptureDone(now_ns, order.capture_id, [], silent)
            return
        started_s = time.process_time()
        yield from self._answers[world.plan.first_node].answer(order, node - world.plan.first_node, now_ns)
        log.debug("capture_answered node=%d cpu_ms=%.1f", node, (time.process_time() - started_s) * 1e3)


def _is_its_turn(fault: AgentFault, t_ns: int) -> bool:
    return (t_ns // _S) % max(1, int(fault.value)) == 0
