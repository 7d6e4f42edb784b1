"""Where the time of every rank's training steps goes, and the records that tell of it.

In: a world, the steps that ended, what faults change. Out: ``StepTimes`` and ``records.Steps``. A synchronous
step takes all ranks the same time: whoever works longer waits less, so the late rank has the shortest
collectives ("Llama 3 Herd of Models"; stragglers in TraceLens' 8-rank FSDP example).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from clusterwatch.simulate.timeline import CHECKPOINT
from clusterwatch.simulate.world import World
from collectors.wire.records import Steps

Floats = NDArray[np.float64]
Column = Literal["work", "data_wait", "checkpoint", "gc", "cpu", "late_launch"]

_WORK_RATIO: Final = 0.72
_DATA_WAIT_RATIO: Final = 0.004
_GC_S: Final = 0.0015
_CPU_RATIO: Final = 0.31
_LATE_LAUNCH_RATIO: Final = 0.02
"""A host that runs ahead of its GPU launches hardly a collective late."""
_SILICON: Final = 0.005
"""Work, relative, for one standard deviation of silicon."""
_LOOK_BACK_NS: Final = 3_600 * 10**9
"""How long ago the step before may have ended."""


@dataclass(frozen=True, slots=True)
class StepShift:
    """What a fault does to the steps of some ranks between two moments: ``add_s`` after ``factor``.

    ``share`` of the (rank, step) pairs have it: scattered ones are what garbage collection or uneven
    sequences look like.
    """

    ranks: Sequence[int]
    column: Column
    start_ns: int
    end_ns: int | None
    factor: float = 1.0
    add_s: float = 0.0
    share: float = 1.0


@dataclass(frozen=True, slots=True)
class StepTimes:
    """K steps of R ranks: seconds, shape (R, K) where not said otherwise."""

    step: NDArray[np.int64]
    """K; 1 after the first"""
    end_ns: NDArray[np.int64]
    """K"""
    duration_s: Floats
    work_s: Floats
    collective_s: Floats
    """in blocking collectives: what is left of the step"""
    data_wait_s: Floats
    checkpoint_s: Floats
    gc_s: Floats
    cpu_s: Floats
    late_launch: Floats
    """share of the collectives' time, 0 to 1"""


@dataclass(frozen=True, slots=True)
class Finished:
    """Steps of a world that ended in a span of time, K: what its ranks share."""

    step: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    duration_s: Floats
    """from the end of the step before"""
    checkpoint_s: Floats
    """of it, in a checkpoint"""


def finished(world: World, start_ns: int, end_ns: int) -> Finished:
    """The steps of a world that ended in [start, end)."""
    numbers, ends = world.timeline.step_ends(start_ns, end_ns)
    if not len(numbers):
        return Finished(numbers, ends, np.zeros(0), np.zeros(0))
    before, at = world.timeline.step_ends(int(ends[0]) - _LOOK_BACK_NS, int(ends[-1]))
    known = dict(zip(before.tolist(), at.tolist(), strict=True))
    gaps = [
        (end - known[number - 1]) / 1e9 if known.get(number - 1, end) < end else world.plan.step_s
        for number, end in zip(numbers.tolist(), ends.tolist(), strict=True)
    ]
    saved = [_checkpoint_s(world, end_ns) for end_ns in ends.tolist()]
    return Finished(numbers, ends, np.array(gaps), np.array(saved))


def _checkpoint_s(world: World, end_ns: int) -> float:
    """Seconds of the checkpoint just before the step that ended then."""
    before_ns = end_ns - int(world.plan.step_s * 1.05e9)
    moment = world.timeline.moment(before_ns)
    return (before_ns - moment.phase_since_ns) / 1e9 if moment.phase == CHECKPOINT else 0.0


def step_times(
    world: World,
    steps: Finished,
    ranks: range,
    silicon: NDArray[np.float32],
    shifts: Sequence[StepShift],
    seed: int,
) -> StepTimes:
    """What each rank did in these steps.

    Args:
        silicon: of the ranks' GPUs, normal numbers.
    """
    shape, step_s = (len(ranks), len(steps.step)), world.plan.step_s
    first = int(steps.step[0]) if len(steps.step) else 0
    random = np.random.default_rng([seed, 7, world.plan.first_node, ranks.start, first])

    def noise(deviation: float) -> Floats:
        return deviation * random.standard_normal(shape)

    parts: dict[str, Floats] = {
        "work": step_s * _WORK_RATIO * (1.0 + _SILICON * silicon[:, None] + noise(0.002)),
        "data_wait": step_s * _DATA_WAIT_RATIO * (1.0 + noise(0.1)),
        "checkpoint": np.broadcast_to(steps.checkpoint_s, shape).copy(),
        "gc": _GC_S * random.lognormal(0.0, 0.3, shape),
        "cpu": step_s * _CPU_RATIO * (1.0 + noise(0.02)),
        "late_launch": _LATE_LAUNCH_RATIO * random.lognormal(0.0, 0.3, shape),
    }
    for shift in shifts:
        _apply(shift, ranks, steps.end_ns, parts, random)
    duration = np.maximum(np.broadcast_to(steps.duration_s, shape) + noise(0.0004), 0.0)
    left = duration - parts["work"] - parts["data_wait"] - parts["checkpoint"] - parts["gc"]
    return StepTimes(
        steps.step, steps.end_ns, duration, parts["work"], np.maximum(left, 0.0), parts["data_wait"],
        parts["checkpoint"], parts["gc"], parts["cpu"], np.clip(parts["late_launch"], 0.0, 1.0),
    )  # fmt: skip


def _apply(
    shift: StepShift,
    ranks: range,
    ends: NDArray[np.int64],
    parts: dict[str, Floats],
    random: np.random.Generator,
) -> None:
    rows = np.array([rank - ranks.start for rank in shift.ranks if rank in ranks], np.int64)
    on = (ends >= shift.start_ns) & (ends < (shift.end_ns if shift.end_ns is not None else 2**62))
    if not len(rows) or not on.any():
        return
    hit = np.zeros(parts["work"].shape, bool)
    hit[rows] = on[None, :]
    if shift.share < 1.0:
        hit &= random.random(hit.shape) < shift.share
    column = parts[shift.column]
    column[hit] = column[hit] * shift.factor + shift.add_s


def step_records(world: World, ranks: range, times: StepTimes, t_ns: int, clock_ns: int) -> Iterator[Steps]:
    """A record for each rank. ``clock_ns``: error of the node's clock."""
    if not len(times.step):
        return
    for row, rank in enumerate(ranks):
        yield Steps(
            t_ns=t_ns + clock_ns,
            id=world.rank_id(rank, world.timeline.moment(int(times.end_ns[-1])).attempt),
            step=times.step.tolist(),
            end_ns=(times.end_ns + clock_ns).tolist(),
            duration_s=times.duration_s[row].round(6).tolist(),
            data_wait_s=times.data_wait_s[row].round(6).tolist(),
            checkpoint_s=times.checkpoint_s[row].round(6).tolist(),
            gc_s=times.gc_s[row].round(6).tolist(),
            cpu_s=times.cpu_s[row].round(6).tolist(),
            wait_s=times.collective_s[row].round(6).tolist(),
            late_launch=times.late_launch[row].round(3).tolist(),
        )
