"""A simulated cluster lived through without any connection: what its nodes would have sent."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from clusterwatch.simulate import kept, start
from clusterwatch.simulate.faults.truth import Truth
from clusterwatch.simulate.kept import Settings
from clusterwatch.simulate.parts import drivers_of, parts_of, wire_values
from clusterwatch.simulate.progress import Columns
from clusterwatch.simulate.steps import StepTimes, finished, step_times
from clusterwatch.simulate.telemetry import Telemetry
from clusterwatch.simulate.topology import Shape
from clusterwatch.simulate.world import World
from collectors.wire import records
from collectors.wire.metrics import GPU_METRICS, HOST_METRICS

S = 1_000_000_000
BEGIN = 1_796_000_000 * S
GPUS = 512


def at(seconds: float) -> int:
    return BEGIN + int(seconds * S)


@dataclass(frozen=True)
class Second:
    """Metric -> (nodes, GPUs) or (nodes,), NaN where there is no value."""

    values: dict[str, np.ndarray]

    def changed(self, other: Second) -> dict[str, set[tuple[int, ...]]]:
        """Metric -> places (node, GPU) or (node,) whose values differ."""
        found = {}
        for name, mine in self.values.items():
            theirs = other.values[name]
            odd = ~((mine == theirs) | (np.isnan(mine) & np.isnan(theirs)))
            if odd.any():
                found[name] = {tuple(place) for place in np.argwhere(odd).tolist()}
        return found


class Lived:
    """A cluster with some faults; times are seconds after its begin."""

    def __init__(self, *faults: str, gpus: int = GPUS, shape: Shape | None = None, seed: int = 0) -> None:
        form = shape or Shape()
        self.settings = Settings("c", gpus, seed, Path(), "ws://none", shape=form, faults=faults)
        self.scene, self.truths = start.story(self.settings, kept.Run(0, BEGIN), BEGIN)
        self._seed = seed

    @property
    def truth(self) -> Truth:
        (found,) = self.truths
        return found

    @property
    def world(self) -> World:
        """The one the truth speaks of."""
        found = [
            w for w in self.scene.worlds if (w.plan.job, w.plan.world) == (self.truth.job, self.truth.world)
        ]
        return found[0]

    def node(self, name: str | None = None) -> int:
        """Number of a node, of the truth's by default."""
        wanted = name or self.truth.node
        return next(node.place for node in self.scene.nodes if node.name == wanted)

    @cached_property
    def records(self) -> list[tuple[int, records.Spooled]]:
        """(node, record) of everything that comes by itself in the first hour."""
        return [(node, record) for node, make in self.scene.take_due(at(3_600)) for record in make()]

    def of(self, kind: type) -> list[records.Spooled]:
        return [record for _, record in self.records if isinstance(record, kind)]

    def events(self, kind: str) -> list[tuple[int, records.Event]]:
        return [(n, r) for n, r in self.records if isinstance(r, records.Event) and r.kind == kind]

    def columns(self, world: World, seconds: float) -> Columns:
        return world.columns(slice(0, world.plan.node_count), at(seconds))

    def second(self, seconds: float, first: float | None = None) -> Second:
        """Values of a second; counters have counted since ``first`` (that second alone by default)."""
        gpus = self.scene.shape.gpus_per_node
        telemetry = Telemetry(len(self.scene.nodes), gpus, self._seed)
        begin = seconds if first is None else first
        for moment in np.arange(begin, seconds + 0.5, 1.0):
            rows = [self._rows(telemetry, float(moment), gpus)]
        (packed,) = rows
        values: dict[str, np.ndarray] = {}
        place = 0
        for metric in GPU_METRICS:
            values[metric.name], place = packed[:, place : place + gpus], place + gpus
        for metric in HOST_METRICS:
            values[metric.name], place = packed[:, place], place + 1
        return Second(values)

    def _rows(self, telemetry: Telemetry, seconds: float, gpus: int) -> np.ndarray:
        rows = []
        for group in parts_of(self.scene, 4):
            for part in group:
                t_ns = at(seconds)
                columns = living = None
                if part.world is not None:
                    living = part.world.living(part.local, t_ns)
                    columns = part.world.columns(part.local, t_ns)
                drivers = drivers_of(part, gpus, t_ns, columns, living)
                values = telemetry.sample(part.nodes, t_ns, drivers, tuple(self.scene.shifts))
                rows.append((part.nodes.start, wire_values(values, telemetry.origin(part.nodes))))
        return np.concatenate([row for _, row in sorted(rows, key=lambda item: item[0])])

    def steps(self, world: World, first: float, last: float) -> StepTimes:
        """Steps of all ranks of a world between two moments."""
        silicon = np.zeros(world.plan.size, np.float32)
        shifts = self.scene.step_shifts.get(world.plan.first_node, ())
        return step_times(
            world, finished(world, at(first), at(last)), range(world.plan.size), silicon, shifts, self._seed
        )
