"""Made jobs of any size with any fault, as the trace of every rank and the truth about them.

In: a ``Layout``, what goes wrong, a seed. Out: ``TraceColumns`` rank by rank, as a decoder of the ranks'
dumps would give them, and ``Truth``. Deterministic by seed. The first trace of each kind of rank takes
milliseconds, every further one about 0.1 ms: ranks of a kind share the columns in which they do not differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from clusterwatch.simulate import traces_columns, traces_faults, traces_program, traces_stall
from clusterwatch.simulate.traces_columns import GroupCounts, Ring, RingShape, Standing
from clusterwatch.simulate.traces_faults import Fault, Kind, Plan, Truth
from clusterwatch.simulate.traces_layout import Ints, Layout
from clusterwatch.simulate.traces_program import Program, StepShape
from collectors.formats.columns import TraceColumns
from collectors.formats.trace import TraceGroup

__all__ = ["PREFIX", "VERSION", "Fault", "Kind", "Layout", "StepShape", "TraceJob", "Truth"]

VERSION: Final = "2.10"
PREFIX: Final = "nccl_trace_rank_"
_CLOCK_ERROR_NS: Final = 200_000
"""Clocks of hosts that keep time by NTP or PTP; below the time from call to call."""
_RANKS_PER_HOST: Final = 8
_NOISES: Final = 1 << 16
_OLDER_NS: Final = 3_600_000_000_000
"""A stale file is of a run an hour earlier."""
_RINGS_KEPT: Final = 512


@dataclass(frozen=True)
class TraceJob:
    """A job in a given state. All ranks have begun the same step, in which the faults come."""

    layout: Layout
    faults: tuple[Fault, ...] = ()
    shape: StepShape = StepShape()
    steps: int | None = None
    """steps begun; None: one more than fill the ring"""
    ring: int = 2000
    """entries that a rank's recorder keeps"""
    frames: int = 0
    """stack frames of each entry"""
    timing: bool = False
    """the recorder sees starts; a queued call cannot be told without"""
    moving: bool = False
    """without a fault: many ranks have not finished their newest call yet"""
    open_only: bool = False
    """of each ring only the newest call of each group and what is open"""
    seed: int = 0

    @property
    def expected(self) -> tuple[Truth, ...]:
        """The truth: one for each fault, or the one that there is none."""
        found = (traces_faults.truth(p, self.layout, self._programs, self._step) for p in self._plans)
        return tuple(found) or (Truth("no_fault"),)

    @property
    def silent(self) -> frozenset[int]:
        """Ranks that leave no trace."""
        return frozenset(plan.rank for plan in self._plans if plan.kind is Kind.NO_DUMP)

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The faults with their places."""
        return self._plans

    @property
    def reached(self) -> traces_stall.Reached:
        """How far every rank gets in the last step."""
        return self._reached

    def traces(self, ranks: Iterable[int] | None = None) -> Iterator[TraceColumns]:
        """The trace of each rank, of ``ranks`` only if given; silent ones are left out."""
        for rank in range(self.layout.world) if ranks is None else ranks:
            if rank not in self.silent:
                yield self._trace(rank)

    def _trace(self, rank: int) -> TraceColumns:
        ring = self._ring(rank)
        host, stale = rank // _RANKS_PER_HOST, self._plan_of(rank, Kind.STALE_DUMP) is not None
        clock_ns = int(self._clocks[host]) - (_OLDER_NS if stale else 0)
        noise = self._noise[rank * 61 % (_NOISES // 2) :]
        return TraceColumns(
            rank, VERSION, "nccl", self._groups(rank, ring.counts), ring.signatures, ring.stacks,
            ring.entries_of(clock_ns, noise), f"{PREFIX}{rank}",
        )  # fmt: skip

    def _plan_of(self, rank: int, *kinds: Kind) -> Plan | None:
        return next((p for p in self._plans if p.rank == rank and (not kinds or p.kind in kinds)), None)

    @cached_property
    def _programs(self) -> tuple[Program, ...]:
        stages = range(self.layout.pipeline)
        return tuple(traces_program.build(self.layout, stage, 0, self.shape) for stage in stages)

    @cached_property
    def _step(self) -> int:
        """The last step, counted from 0."""
        if self.steps is not None:
            return max(self.steps - 1, 0)
        return self.ring // min(len(p.entries.call) for p in self._programs) + 2

    @cached_property
    def _plans(self) -> tuple[Plan, ...]:
        random = np.random.default_rng([self.seed, self.layout.world])
        return traces_faults.plan(self.faults, self.layout, self._programs, random)

    @cached_property
    def _reached(self) -> traces_stall.Reached:
        reached = traces_stall.run(self.layout, self._programs, traces_faults.obstacles(self._plans))
        if self.moving and not self._plans:
            layout = self.layout
            ranks = np.arange(layout.world)
            odd = (ranks // (layout.tensor * layout.context) if layout.data > 1 else ranks) % 2 == 1
            slow = odd & (np.random.default_rng([self.seed, 1]).random(layout.world) < 0.8)
            reached.completed[slow] -= 1  # of every group somebody has finished
        return reached

    @cached_property
    def _clocks(self) -> Ints:
        hosts = -(-self.layout.world // _RANKS_PER_HOST)
        random = np.random.default_rng([self.seed, 2])
        return random.integers(-_CLOCK_ERROR_NS, _CLOCK_ERROR_NS, hosts)

    @cached_property
    def _noise(self) -> Ints:
        count = max(_NOISES, 2 * self.ring + _NOISES // 2)
        return np.random.default_rng([self.seed, 3]).integers(0, traces_columns.NOISE_NS, count)

    @cached_property
    def _ring_shape(self) -> RingShape:
        timing = self.timing or any(p.kind is Kind.QUEUED_NOT_STARTED for p in self._plans)
        between = traces_columns.step_ns(self._programs)
        return RingShape(self._step, between, self.ring, self.frames, timing, self.open_only)

    @cached_property
    def _rings(self) -> dict[tuple[int, int, Standing], Ring]:
        return {}

    def _ring(self, rank: int) -> Ring:
        """The ring that ranks of this kind share; those of the newest kinds are kept."""
        stage, expert = self.layout.stage(rank), self.layout.expert_place(rank)
        completed, issued = int(self._reached.completed[rank]), int(self._reached.issued[rank])
        plan = self._plan_of(rank)
        if plan is not None and plan.kind is Kind.STALE_DUMP:
            completed = issued = len(self._programs[stage].calls)
        key = (stage, expert, Standing(completed, issued, plan))
        kept = self._rings.get(key)
        if kept is None:
            program = self._programs[stage]
            if expert:
                program = traces_program.build(self.layout, stage, expert, self.shape)
            if len(self._rings) >= _RINGS_KEPT:
                self._rings.clear()
            kept = traces_columns.ring(program, len(self.layout.roles), self._ring_shape, key[2])
            self._rings[key] = kept
        return kept

    @cached_property
    def _members(self) -> dict[tuple[str, int], tuple[int, ...]]:
        return {}

    def _groups(self, rank: int, counts: tuple[GroupCounts, ...]) -> tuple[TraceGroup, ...]:
        layout, made = self.layout, []
        for number, role in enumerate(layout.roles):
            index, count = int(layout.group_index[role][rank]), counts[number]
            members = self._members.get((role, index))
            if members is None:
                members = self._members[(role, index)] = layout.members(role, index)
            made.append(
                TraceGroup(
                    str(layout.first_name[role] + index), role, members, number, count.issued,
                    self._started(rank, role, count), count.completed,
                )
            )  # fmt: skip
        return tuple(made)

    def _started(self, rank: int, role: str, count: GroupCounts) -> int | None:
        if not self._ring_shape.timing:
            return None
        reached = int(self._reached.completed[rank])
        calls = self._programs[self.layout.stage(rank)].calls
        held = self._plan_of(rank, Kind.QUEUED_NOT_STARTED) is not None
        runs = reached < len(calls) and calls[reached].role == role and count.issued > count.completed
        return count.completed + (runs and not held)
