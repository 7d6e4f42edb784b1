"""Collective progress of the ranks of one world at any moment, as hot frames carry it.

In: ``WorldPlan``, ``Timeline``, stalls. Out: columns for a range of nodes. Numbers are those that the traces
of the same world hold (``traces``): both count the calls of the same ``Program``. In a healthy step all ranks
go through their stage's calls evenly, each a little later than the first; in a stalled step nobody passes the
call where ``traces_stall`` says it gets stuck.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from clusterwatch.simulate import traces_program
from clusterwatch.simulate.plans import WorldPlan
from clusterwatch.simulate.timeline import STARTUP, TRAIN, Moment, Timeline
from clusterwatch.simulate.traces import TraceJob
from clusterwatch.simulate.traces_faults import Kind
from clusterwatch.simulate.traces_program import Program, StepShape

SHAPE: Final = StepShape()
"""What a step of every simulated job calls."""
_LAG_MAX_S: Final = 0.02
_BEFORE_STOP_S: Final = 0.001
"""Whoever got furthest did so just before the world stopped."""
_HEARD_AGO_NS: Final = 250_000_000
_S: Final = 1_000_000_000

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Stall:
    """A step of an attempt that cannot be finished, and how far each rank gets in it."""

    attempt: int
    step: int
    trace: TraceJob
    """the same state as every rank's recorder has it"""


@dataclass(frozen=True, slots=True)
class Columns:
    """Progress of the ranks of K nodes. Arrays of shape (K, ranks a node) or (K, ranks a node, groups)."""

    step: Ints
    phase: NDArray[np.uint8]
    phase_since_ns: Ints
    moved_ns: Ints
    heard_ns: Ints
    enqueued: Ints
    completed: Ints
    sequence: Ints


class WorldProgress:
    """Progress of one world. ``stalls`` may grow until the world lives."""

    def __init__(self, plan: WorldPlan, timeline: Timeline, seed: int) -> None:
        self.plan = plan
        self.timeline = timeline
        self.stalls: list[Stall] = []
        layout = plan.layout
        self.programs = tuple(
            traces_program.build(layout, stage, 0, SHAPE) for stage in range(layout.pipeline)
        )
        self._stage = np.arange(layout.world) // (layout.world // layout.pipeline)
        longest = max(len(program.calls) for program in self.programs)
        self._tables = np.stack([counts(p, len(layout.roles), longest) for p in self.programs])
        self._ahead = np.stack([_ahead(program, longest) for program in self.programs])
        self._calls = np.array([len(program.calls) for program in self.programs])[self._stage]
        self._strides = self._tables[:, -1][self._stage]
        random = np.random.default_rng([seed, plan.first_node, 5])
        self._lag_s = random.uniform(0.0, _LAG_MAX_S, layout.world)
        self._comparable = np.array([role != "pp" for role in layout.roles])

    def stall_at(self, moment: Moment) -> Stall | None:
        """The stall that a moment's step ends in."""
        found = (s for s in self.stalls if (s.attempt, s.step) == (moment.attempt, moment.step))
        return next(found, None)

    def columns(self, nodes: slice, t_ns: int) -> Columns:
        """Progress of some nodes (counted from the world's first). Cost: linear in (rank, group) pairs."""
        per_node = self.plan.gpus_per_node
        ranks = slice(nodes.start * per_node, nodes.stop * per_node)
        moment = self.timeline.moment(t_ns)
        done, issued = self._reach(ranks, moment)
        since_s = self.timeline.start_of_step(moment.step + done / self._calls[ranks]) + self._lag_s[ranks]
        if self.timeline.pieces[moment.piece].rate == 0.0:
            since_s = np.minimum(since_s, self.timeline.job_s(t_ns) - _BEFORE_STOP_S)
        moved_ns = np.minimum(self._walls(since_s, moment, t_ns), t_ns)
        if moment.phase != TRAIN:
            moved_ns[:] = moment.phase_since_ns
        base = self._strides[ranks] * (moment.step - moment.first_step)
        enqueued = base + self._numbers(ranks, issued, moment)
        completed = base + self._numbers(ranks, done, moment)
        shape = (nodes.stop - nodes.start, per_node)

        def of_ranks(value: int) -> Ints:
            return np.full(shape, value, np.int64)

        return Columns(
            of_ranks(moment.step), of_ranks(moment.phase).astype(np.uint8), of_ranks(moment.phase_since_ns),
            moved_ns.reshape(shape), of_ranks(t_ns - _HEARD_AGO_NS), enqueued.reshape(*shape, -1),
            completed.reshape(*shape, -1), np.where(self._comparable, enqueued, -1).reshape(*shape, -1),
        )  # fmt: skip

    def _reach(self, ranks: slice, moment: Moment) -> tuple[Ints, Ints]:
        """Calls of the running step that ranks have finished and issued."""
        if moment.phase != TRAIN:
            return np.zeros(ranks.stop - ranks.start, np.int64), np.zeros(ranks.stop - ranks.start, np.int64)
        part = np.maximum(0.0, moment.done_ratio - self._lag_s[ranks] / self.plan.step_s)
        done = (part * self._calls[ranks]).astype(np.int64)
        stall = self.stall_at(moment)
        if stall is not None:
            reached = stall.trace.reached.completed[ranks]
            stands = self.timeline.pieces[moment.piece].rate == 0.0
            done = reached.copy() if stands else np.minimum(done, reached)
        issued = self._ahead[self._stage[ranks], done]
        if stall is not None:
            issued = np.minimum(issued, stall.trace.reached.issued[ranks])
        return done, issued

    def _numbers(self, ranks: slice, calls: Ints, moment: Moment) -> Ints:
        """Per rank and group the number of the last of so many calls of the step."""
        found: Ints = self._tables[self._stage[ranks], calls]
        stall = self.stall_at(moment)
        for plan in stall.trace.plans if stall is not None else ():
            if plan.kind is Kind.CROSS_GROUP_CYCLE and ranks.start <= plan.rank < ranks.stop:
                row = plan.rank - ranks.start
                program = self.programs[int(self._stage[plan.rank])]
                swapped = counts(
                    program, found.shape[1], self._tables.shape[1] - 1, (plan.place, plan.place + 1)
                )
                found[row] = swapped[calls[row]]
        return found

    def _walls(self, job_s: NDArray[np.float64], moment: Moment, t_ns: int) -> Ints:
        """Wall times of moments of job time not after now, in the running attempt."""
        pieces = [
            p
            for p in self.timeline.pieces[: moment.piece + 1]
            if p.attempt == moment.attempt and p.phase != STARTUP
        ]
        first_ns = pieces[0].start_ns if pieces else moment.phase_since_ns
        at_s = [piece.at_s for piece in pieces] + [self.timeline.job_s(t_ns)]
        walls = [piece.start_ns - first_ns for piece in pieces] + [t_ns - first_ns]
        found: Ints = np.interp(job_s, at_s, walls).astype(np.int64) + first_ns
        return found


def counts(program: Program, roles: int, longest: int, swap: tuple[int, int] | None = None) -> Ints:
    """Number of each role's last call after so many calls of a step, shape (longest + 1, roles).

    Args:
        swap: two calls that are made in the other order.
    """
    entries = program.entries
    table = np.zeros((longest + 1, roles), np.int64)
    call = entries.call.copy()
    if swap is not None:
        call[entries.call == swap[0]], call[entries.call == swap[1]] = swap[1], swap[0]
    np.maximum.at(table, (call + 1, entries.group), np.maximum(entries.sequence, entries.p2p_sequence))
    found: Ints = np.maximum.accumulate(table, axis=0)
    return found


def _ahead(program: Program, longest: int) -> Ints:
    """Calls issued by a CPU that waits for the first blocking one not yet done, by calls done."""
    count = len(program.calls)
    found = np.full(longest + 1, count, np.int64)
    found[:count] = program.next_blocking + 1
    return found
