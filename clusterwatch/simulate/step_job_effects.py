"""What faults and conditions do to one step of a made training job.

In: the plan, the conditions, a seed. Out: ``Effects`` of a step: factors for every rank. Random draws here
are apart from the noise of the job, so the same job without its fault is otherwise the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from clusterwatch.simulate.step_job_faults import Condition, Kind, Planned
from clusterwatch.simulate.step_job_layout import Floats, Ints, JobShape

_PAUSE_NS: Final = (80e6, 250e6)
"""A full collection of a process with some ten million objects."""
_BURST_RATIO: Final = 0.08
"""Steps in which congestion begins somewhere."""
_BURST_STEPS: Final = 4
_BURST_FACTOR: Final = (1.5, 4.0)
_FIRST_STEP: Final = (4.0, 9.0)
_EVALUATION_STEPS: Final = 5


@dataclass(slots=True)
class Effects:
    """Of one step; arrays over (pipeline, data, tensor) unless said otherwise."""

    work: Floats
    launch: Floats
    nic: Floats
    """share of the bandwidth that is left"""
    nvlink: Floats
    input_ns: Floats
    write: Floats
    micro_work: Floats
    """(data, micro-batches)"""
    data_wait: Floats
    """factor on transfers of data groups, (pipeline, 1, tensor)"""
    stage_wait: Floats
    """of messages between stages, (data, tensor)"""
    pause_ns: Floats
    pause_at: Ints
    """before which half of a micro-batch the pause is"""
    micro_batches: int
    batch: float = 1.0
    """size of a micro-batch"""
    forward_only: bool = False
    hangs: list[Planned] = field(default_factory=list)


class Story:
    """The effects of every step of one job."""

    def __init__(
        self, shape: JobShape, planned: Sequence[Planned], conditions: frozenset[Condition], seed: int
    ) -> None:
        self._shape, self._planned, self._conditions, self._seed = shape, planned, conditions, seed
        random = np.random.default_rng([seed, 12, shape.world])
        self._turn = int(random.integers(shape.steps // 3, max(shape.steps * 2 // 3, 1 + shape.steps // 3)))
        self._batch = float(random.choice([0.5, 1.5, 2.0]))
        self._more = max(1, shape.micro_batches // 2)
        self._bursts = self._congestion(random)

    def of(self, step: int) -> Effects:
        """What is different in a step."""
        shape, one = self._shape, np.ones
        forward_only = Condition.EVALUATION in self._conditions and 0 <= step - self._turn < _EVALUATION_STEPS
        count = shape.micro_batches
        if Condition.MICRO_BATCHES in self._conditions and step >= self._turn:
            count += self._more
        effects = Effects(
            one(shape.grid), one(shape.grid), one(shape.grid), one(shape.grid), np.zeros(shape.grid),
            one(shape.grid), one((shape.data, count)), one((shape.pipeline, 1, shape.tensor)),
            one((shape.data, shape.tensor)), np.zeros(shape.grid), np.full(shape.grid, -1), count,
            forward_only=forward_only,
        )  # fmt: skip
        if Condition.BATCH_SIZE in self._conditions and step >= self._turn:
            effects.batch = self._batch
        if Condition.SLOW_FIRST_STEP in self._conditions and step == 0:
            random = np.random.default_rng([self._seed, 14])
            effects.work *= random.uniform(*_FIRST_STEP, shape.grid)
            effects.launch *= random.uniform(*_FIRST_STEP, shape.grid)
        for first, length, stage_group, place, factor in self._bursts:
            if first <= step < first + length:
                target = effects.stage_wait if stage_group else effects.data_wait
                target.reshape(-1)[place % target.size] *= factor
        for number, fault in enumerate(self._planned):
            self._add(effects, fault, step, number)
        return effects

    def _congestion(self, random: np.random.Generator) -> list[tuple[int, int, bool, int, float]]:
        """Bursts: first step, steps, whether between stages, number of the group, factor."""
        if Condition.CONGESTION not in self._conditions:
            return []
        return [
            (step, int(random.integers(1, _BURST_STEPS + 1)), bool(random.random() < 0.4),
             int(random.integers(2**16)), float(random.uniform(*_BURST_FACTOR)))
            for step in range(self._shape.steps) if random.random() < _BURST_RATIO
        ]  # fmt: skip

    def _add(self, effects: Effects, fault: Planned, step: int, number: int) -> None:
        """One fault's part in a step."""
        if fault.fault_class == "hang":
            if step == fault.step:
                effects.hangs.append(fault)
            return
        if not fault.amount(step):
            return
        mine = np.isin(self._shape.rank, fault.ranks)
        factor = fault.at(step)
        targets = {
            Kind.GPU: effects.work, Kind.NIC: effects.nic, Kind.SWITCH: effects.nic,
            Kind.NVLINK: effects.nvlink, Kind.HOST: effects.launch, Kind.STORAGE: effects.write,
        }  # fmt: skip
        if fault.kind in targets:
            targets[fault.kind][mine] *= factor
        elif fault.kind is Kind.LOADER:
            effects.input_ns[mine] += 1e6 * fault.size * fault.amount(step)
        elif fault.kind is Kind.STAGE:
            effects.work[fault.place] *= factor
        elif fault.kind is Kind.REPLICA:
            effects.work[:, fault.place] *= factor
        else:
            self._draw(effects, fault, np.random.default_rng([self._seed, 13, step, number]))

    def _draw(self, effects: Effects, fault: Planned, random: np.random.Generator) -> None:
        """What differs from step to step: pauses, lengths of sequences."""
        if fault.kind is Kind.SEQUENCE:
            spread = np.exp(fault.size * random.standard_normal(effects.micro_work.shape))
            effects.micro_work *= np.clip(spread, 0.4, 3.0)
            return
        shape = self._shape.grid
        hit = random.random(shape) < fault.size
        effects.pause_ns[hit] = random.uniform(*_PAUSE_NS, shape)[hit]
        effects.pause_at[hit] = random.integers(2 * effects.micro_batches, size=shape)[hit]
