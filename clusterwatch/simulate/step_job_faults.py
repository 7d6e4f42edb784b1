"""What goes wrong in a made training job, where, when and how much: a plan by seed.

In: ``Fault`` and ``Condition``, the shape of the job, a seed. Out: ``Planned`` faults with their ranks and
first step. Kinds are words of verdicts (DESIGN, "Words for verdicts"); conditions are what is nobody's fault.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import numpy as np

from clusterwatch.simulate.step_job_layout import JobShape


class Kind(StrEnum):
    """What can go wrong, or be uneven. Behind each: the meaning of ``Fault.size``."""

    GPU = "slow_gpu"  # factor on its work: 1.3
    NIC = "slow_nic"  # share of its bandwidth that is left: 0.25
    NVLINK = "slow_nvlink"  # the same
    SWITCH = "slow_switch"  # the same, for every port of a leaf
    HOST = "slow_host"  # factor on the time the CPU takes to launch
    LOADER = "slow_dataloader"  # milliseconds more before each step
    STORAGE = "slow_storage"  # factor on the node's checkpoint write
    GC = "gc_pauses"  # share of (rank, step) with a pause
    STAGE = "stage_imbalance"  # factor on the work of one stage
    REPLICA = "replica_skew"  # factor on the work of one replica
    SEQUENCE = "sequence_imbalance"  # spread (sigma of the logarithm) of the work of micro-batches
    ABSENT = "missing_rank"  # no size, as the three below
    QUEUED = "queued_not_started"
    INSIDE = "all_joined_not_finished"
    ORDER = "order_mismatch"


class When(StrEnum):
    """How a fault is spread over the steps."""

    START = "from_start"
    ONSET = "onset"
    INTERMITTENT = "intermittent"
    """12 of each 25 steps after its first"""
    RAMP = "ramp"
    """grows over ``RAMP_STEPS``"""


class Condition(StrEnum):
    """What happens in healthy jobs."""

    NOISY = "noisy"
    CONGESTION = "congestion"
    CLOCK_STEP = "clock_step"
    SLOW_FIRST_STEP = "slow_first_step"
    EVALUATION = "evaluation"
    MICRO_BATCHES = "micro_batch_count"
    BATCH_SIZE = "batch_size"
    DROPPED = "dropped_lines"
    DUPLICATED = "duplicated_lines"
    SHUFFLED = "shuffled_lines"
    SILENT_RANK = "silent_rank"
    SILICON = "uneven_silicon"


CLASSES: Final = {
    Kind.GPU: "hardware", Kind.NIC: "hardware", Kind.NVLINK: "hardware", Kind.SWITCH: "hardware",
    Kind.HOST: "host", Kind.LOADER: "host", Kind.STORAGE: "storage", Kind.GC: "software",
    Kind.STAGE: "workload", Kind.REPLICA: "workload", Kind.SEQUENCE: "workload",
    Kind.ABSENT: "hang", Kind.QUEUED: "hang", Kind.INSIDE: "hang", Kind.ORDER: "hang",
}  # fmt: skip
RAMP_STEPS: Final = 20
_PERIOD: Final = 25
_ON: Final = 12
_ONSET_RATIO: Final = (0.3, 0.55)
"""First bad step, of all steps."""
_HANG_RATIO: Final = (0.4, 0.8)


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing gone wrong. What is None is chosen by the job's seed."""

    kind: Kind
    size: float = 1.0
    when: When = When.ONSET
    place: int | None = None
    """a rank of the part; of stage or replica imbalance the stage or replica"""
    step: int | None = None
    """first bad step"""
    point: str | None = None
    """of a hang: the call it happens at, one of ``POINTS``"""


@dataclass(frozen=True, slots=True)
class Planned:
    """A fault with its place and time."""

    kind: Kind
    size: float
    when: When
    place: int
    ranks: tuple[int, ...]
    """of the part"""
    step: int
    point: str
    """of a hang, else empty"""

    @property
    def fault_class(self) -> str:
        return CLASSES[self.kind]

    def amount(self, step: int) -> float:
        """How much of the fault is there in a step, 0 to 1."""
        if step < self.step:
            return 0.0
        if self.when is When.INTERMITTENT:
            return float((step - self.step) % _PERIOD < _ON)
        if self.when is When.RAMP:
            return min(1.0, (step - self.step + 1) / RAMP_STEPS)
        return 1.0

    def at(self, step: int) -> float:
        """``size`` as far as it is there, for sizes of which 1 is nothing."""
        return 1.0 + (self.size - 1.0) * self.amount(step)


POINTS: Final = ("tensor_forward", "tensor_backward", "receive", "reduce_scatter", "norm", "all_gather")
"""Calls at which a hang can be: within the micro-batches, then one each of the step's end."""


def plan(faults: Sequence[Fault], shape: JobShape, seed: int) -> tuple[Planned, ...]:
    """Where and when each fault is. Two faults are never on one node.

    Raises:
        ValueError: a place that the job does not have.
    """
    kinds = list(Kind)
    random = np.random.default_rng([seed, 11, shape.world, *(kinds.index(fault.kind) for fault in faults)])
    planned: list[Planned] = []
    for fault in faults:
        taken = {rank // shape.gpus_per_node for other in planned for rank in _held(other)}
        place = fault.place if fault.place is not None else _place(fault.kind, shape, random, taken)
        if not 0 <= place < _places(fault.kind, shape):
            raise ValueError(f"the job has no place {place}")
        step = fault.step if fault.step is not None else _step(fault, shape, random)
        point = fault.point or _point(fault.kind, place, shape, random)
        ranks = tuple(_ranks(fault.kind, shape, place))
        planned.append(Planned(fault.kind, fault.size, fault.when, place, ranks, step, point))
    return tuple(planned)


def _places(kind: Kind, shape: JobShape) -> int:
    """How many places there are for a kind of fault."""
    stage_ranks = shape.data * shape.tensor
    return {Kind.STAGE: shape.pipeline, Kind.REPLICA: shape.data, Kind.LOADER: stage_ranks}.get(
        kind, shape.world
    )


def _held(planned: Planned) -> tuple[int, ...]:
    return planned.ranks if planned.fault_class != "workload" else ()


def _place(kind: Kind, shape: JobShape, random: np.random.Generator, taken: set[int]) -> int:
    if kind is Kind.STAGE:  # the usual one: the last stage has the loss, the first one the embedding
        return shape.pipeline - 1 if random.random() < 0.7 else 0
    if kind is Kind.REPLICA:
        return int(random.integers(shape.data))
    last = _places(kind, shape)
    free = [rank for rank in range(last) if rank // shape.gpus_per_node not in taken] or list(range(last))
    return int(random.choice(free))


def _step(fault: Fault, shape: JobShape, random: np.random.Generator) -> int:
    if fault.kind in (Kind.SEQUENCE, Kind.STAGE, Kind.REPLICA, Kind.GC):
        return 0
    if CLASSES[fault.kind] == "hang":
        low, high = (int(share * shape.steps) for share in _HANG_RATIO)
        return int(random.integers(low, max(high, low + 1)))
    if fault.when is When.START:
        return 0
    low, high = (int(share * shape.steps) for share in _ONSET_RATIO)
    step = int(random.integers(low, max(high, low + 1)))
    if fault.kind is Kind.STORAGE:  # nothing of it is there before the next checkpoint
        step += -(step + 1) % shape.checkpoint_steps
    return step


def _point(kind: Kind, place: int, shape: JobShape, random: np.random.Generator) -> str:
    if CLASSES[kind] != "hang":
        return ""
    if kind is Kind.ORDER:
        if shape.data == 1:
            raise ValueError("without data groups there is no order of calls to be wrong")
        return "reduce_scatter"
    stage = shape.place(place)[0]
    possible = [point for point in POINTS if _makes(point, stage, shape)]
    return str(random.choice(possible))


def _makes(point: str, stage: int, shape: JobShape) -> bool:
    """Whether ranks of a stage make such a call."""
    if point.startswith("tensor"):
        return shape.tensor > 1
    if point == "receive":
        return stage > 0
    return point == "norm" or shape.data > 1


def _ranks(kind: Kind, shape: JobShape, place: int) -> Iterator[int]:
    """The ranks of the part that is at fault; of imbalances and pauses nobody."""
    if kind in (Kind.HOST, Kind.STORAGE):
        first = place // shape.gpus_per_node * shape.gpus_per_node
        yield from range(first, first + shape.gpus_per_node)
    elif kind is Kind.SWITCH:
        leaf = shape.leaf[shape.place(place)]
        yield from shape.rank[shape.leaf == leaf].tolist()
    elif CLASSES[kind] not in ("workload", "software"):
        yield place
