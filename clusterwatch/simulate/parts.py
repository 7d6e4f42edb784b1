"""Parts of a cluster that are served at once: nodes in a row, of one world or idle; their values as sent."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from clusterwatch.simulate.frames import FrameKind
from clusterwatch.simulate.progress import Columns
from clusterwatch.simulate.scenario import Scenario
from clusterwatch.simulate.telemetry import COUNTERS, MISSING, Drivers, Values
from clusterwatch.simulate.world import World
from collectors.wire.metrics import GPU_METRICS, HOST_METRICS

_GPU_SCALE: Final = np.array([metric.resolution for metric in GPU_METRICS])[None, :, None]
_HOST_SCALE: Final = np.array([metric.resolution for metric in HOST_METRICS])[None, :]


@dataclass(frozen=True, slots=True)
class Part:
    """Nodes of the cluster, all of ``world`` or all idle."""

    nodes: slice
    world: World | None
    gpus: int

    @property
    def local(self) -> slice:
        """The nodes, counted from the world's first."""
        assert self.world is not None
        first = self.world.plan.first_node
        return slice(self.nodes.start - first, self.nodes.stop - first)

    def kind(self, t_ns: int) -> FrameKind:
        """What its frames look like at a moment."""
        if self.world is None:
            return FrameKind(self.gpus)
        attempt = self.world.timeline.moment(t_ns).attempt
        groups = len(self.world.plan.layout.roles)
        return FrameKind(self.gpus, self.gpus, groups, self.world.first_ref(attempt))


def parts_of(scenario: Scenario, groups: int) -> tuple[tuple[Part, ...], ...]:
    """The cluster in ``groups`` of about the same number of nodes, each in its parts."""
    count, gpus = len(scenario.nodes), scenario.shape.gpus_per_node
    cuts = {0, count, *np.linspace(0, count, groups + 1).astype(int).tolist()}
    for world in scenario.worlds:
        cuts |= {world.plan.first_node, world.plan.end_node}
    edges = sorted(cuts)
    parts = [
        Part(slice(first, last), scenario.world_at(first), gpus)
        for first, last in zip(edges[:-1], edges[1:], strict=True)
    ]
    found: list[list[Part]] = [[] for _ in range(groups)]
    for part in parts:
        found[part.nodes.start * groups // count].append(part)
    return tuple(tuple(group) for group in found)


def drivers_of(
    part: Part, gpus: int, t_ns: int, columns: Columns | None, living: NDArray[np.bool_] | None
) -> Drivers:
    """What the GPUs of a part do."""
    if part.world is not None and columns is not None:
        return part.world.drivers(part.local, t_ns, columns, living)
    count = part.nodes.stop - part.nodes.start
    idle = np.zeros((count, gpus), np.float32)
    return Drivers(idle, idle, idle, np.zeros(count, np.float32), np.zeros(count, np.float32))


def wire_values(values: Values, origin: NDArray[np.int64]) -> NDArray[np.float32]:
    """Values of K nodes as frames carry them, (K, series), NaN where there is none."""
    multiples = values.gpu.astype(np.float64)
    multiples[:, COUNTERS, :] += origin
    gpu = multiples * _GPU_SCALE
    gpu[values.gpu == MISSING] = np.nan
    host = values.host * _HOST_SCALE
    host[values.host == MISSING] = np.nan
    return np.concatenate([gpu.reshape(len(gpu), -1), host], axis=1).astype(np.float32)


def shifted(columns: Columns, offsets: NDArray[np.int64]) -> Columns:
    """The same progress by clocks that are so far ahead, ns per node."""
    by = offsets[:, None]
    return replace(
        columns,
        phase_since_ns=columns.phase_since_ns + by,
        moved_ns=columns.moved_ns + by,
        heard_ns=columns.heard_ns + by,
    )
