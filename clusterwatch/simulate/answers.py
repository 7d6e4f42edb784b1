"""What a simulated node answers to a capture: rings and stacks that agree with its hot frames.

In: a ``CaptureOrder``. Out: ``Trace``, ``Stacks``, one ``CaptureDone``. Rings come from ``traces``: of the
stall the world stands in, else of a job on its way, with times moved to now.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import numpy as np

from clusterwatch.simulate.progress import SHAPE
from clusterwatch.simulate.timeline import Moment
from clusterwatch.simulate.traces import TraceJob
from clusterwatch.simulate.traces_columns import START_NS, step_ns
from clusterwatch.simulate.world import World
from collectors.formats import columns as trace_columns
from collectors.formats.columns import NULL, TraceColumns
from collectors.wire import records
from collectors.wire.records import CaptureOrder, ThreadStack

RING: Final = 400
"""Entries a simulated recorder keeps."""
FRAMES: Final = 6
"""Stack frames of each of them."""
_TRAIN: Final = "<module> (/opt/train/train.py:212)"
_STEP: Final = "train_step (/opt/train/loop.py:88)"
_COMPUTE: Final = (_TRAIN, _STEP, "forward (/opt/train/model.py:141)")
_WAIT: Final = (
    _TRAIN,
    _STEP,
    "reduce_gradients (/opt/train/parallel.py:57)",
    "synchronize (/opt/venv/lib/python3.12/site-packages/torch/cuda/__init__.py:1081)",
)


def healthy(world: World, steps: int, seed: int) -> TraceJob:
    """The recorders of a world on its way, ``steps`` steps after its attempt began."""
    return TraceJob(
        world.plan.layout, (), SHAPE, steps=steps, ring=RING, frames=FRAMES, moving=True, seed=seed
    )


class Answers:
    """Answers for the nodes of one world."""

    def __init__(self, world: World, seed: int) -> None:
        self._world = world
        self._seed = seed
        self._jobs: dict[tuple[int, int, bool], TraceJob] = {}

    def answer(self, order: CaptureOrder, node: int, t_ns: int) -> Iterator[records.Spooled]:
        """What a node (counted from the world's first) sends. Cost: about 1 ms a rank."""
        world, moment = self._world, self._world.timeline.moment(t_ns)
        per_node = world.plan.gpus_per_node
        local = range(node * per_node, (node + 1) * per_node)
        living = world.living(slice(node, node + 1), t_ns)
        wanted = [rank for rank in local if order.ranks is None or rank in order.ranks]
        silent = {
            str(r): "no such rank of this job on this node" for r in order.ranks or () if r not in local
        }
        answered = []
        for rank in wanted:
            if living is not None and not living[0, rank - local.start]:
                silent[str(rank)] = "no such rank of this job on this node"
                continue
            answered.append(rank)
            yield from self._of_rank(order, rank, moment, t_ns)
        yield records.CaptureDone(t_ns, order.capture_id, answered, silent)

    def _of_rank(
        self, order: CaptureOrder, rank: int, moment: Moment, t_ns: int
    ) -> Iterator[records.Spooled]:
        world = self._world
        identity, pid = world.rank_id(rank, moment.attempt), world.pid(rank, moment.attempt)
        for want in order.want:
            if want == "stacks":
                threads = [ThreadStack("MainThread", list(self._frames(rank, moment, t_ns)), main=True)]
                yield records.Stacks(
                    t_ns, identity, pid, order.capture_id, "hook", threads, process_state="S"
                )
                continue
            trace = self._trace(rank, want == "window", moment, t_ns)
            if trace is not None:
                yield records.Trace(
                    t_ns, identity, pid, order.capture_id, want, "nccl", trace_columns.pack(trace)
                )

    def _frames(self, rank: int, moment: Moment, t_ns: int) -> tuple[str, ...]:
        held = self._world.frames.get(rank)
        stall = self._world.progress.stall_at(moment)
        if held is not None and stall is not None:
            return held
        columns = self._world.progress.columns(slice(*_node_of(rank, self._world)), t_ns)
        row = rank % self._world.plan.gpus_per_node
        waits = (columns.enqueued[0, row] > columns.completed[0, row]).any()
        return _WAIT if waits else _COMPUTE

    def _trace(self, rank: int, window: bool, moment: Moment, t_ns: int) -> TraceColumns | None:
        job = self._job(moment, window)
        found = next(iter(job.traces([rank])), None)
        if found is None:
            return None
        world = self._world
        last_ns = START_NS + (moment.step - moment.first_step) * step_ns(world.progress.programs)
        begun_ns = world.timeline.wall_ns(
            float(world.timeline.start_of_step(np.array([float(moment.step)]))[0]), moment.piece
        )
        return moved(found, min(begun_ns, t_ns) - last_ns)

    def _job(self, moment: Moment, window: bool) -> TraceJob:
        """The recorders' state; the newest is kept, since a capture asks for thousands of ranks."""
        stall = self._world.progress.stall_at(moment)
        step = -1 if stall is not None else moment.step
        key = (moment.attempt, step, window)
        if key not in self._jobs:
            steps = moment.step - moment.first_step + 1
            found = stall.trace if stall is not None else healthy(self._world, steps, self._seed)
            kept = {k: job for k, job in self._jobs.items() if k[:2] == key[:2]}
            self._jobs = {**kept, key: replace(found, open_only=True) if window else found}
        return self._jobs[key]


def _node_of(rank: int, world: World) -> tuple[int, int]:
    node = rank // world.plan.gpus_per_node
    return node, node + 1


def moved(trace: TraceColumns, by_ns: int) -> TraceColumns:
    """The same calls at another time."""
    entries = trace.entries
    return replace(
        trace,
        entries=replace(
            entries,
            created_ns=_moved(entries.created_ns, by_ns),
            started_ns=_moved(entries.started_ns, by_ns),
            completed_ns=_moved(entries.completed_ns, by_ns),
        ),
    )


def _moved(times: array[int], by_ns: int) -> array[int]:
    values = np.frombuffer(times, np.int64)
    found = array("q")
    found.frombytes(np.where(values == NULL, NULL, values + by_ns).astype(np.int64).tobytes())
    return found
