"""Calls of a made training job as the columns, and the lines, of a collective log.

In: ``Call`` by call in true time. Out: ``StepColumns``, one entry for one rank's view of one call in the
clock of its host; lines in the order of step and time of call.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import chain
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from clusterwatch.simulate.step_job_engine import Call
from clusterwatch.simulate.step_job_layout import Floats, Ints, JobShape

NONE: Final = np.iinfo(np.int64).min
"""In columns of integers, where there is no value."""
COMPLETED: Final = 0
STARTED: Final = 1
SCHEDULED: Final = 2
STATES: Final = ("completed", "started", "scheduled")
_EPOCH_NS: Final = 1_760_000_000_000_000_000
_LINES_AT_ONCE: Final = 100_000


@dataclass(frozen=True, slots=True)
class Clocks:
    """The clock of each host, length nodes: error at the start, drift, and one jump of one of them."""

    offset_ns: Floats
    drift_ratio: Floats
    jump_node: int = -1
    jump_step: int = 0
    jump_ns: float = 0.0

    def read(self, t_ns: Floats, node: Ints, step: Ints) -> Ints:
        """What hosts say it is, where the time is finite."""
        known = np.isfinite(t_ns)
        error = self.offset_ns[node] + np.where(known, t_ns, 0.0) * self.drift_ratio[node]
        error += np.where((node == self.jump_node) & (step >= self.jump_step), self.jump_ns, 0.0)
        read = np.rint(np.where(known, t_ns, 0.0) + error).astype(np.int64) + _EPOCH_NS
        return np.where(known, read, NONE)


@dataclass(frozen=True, slots=True)
class StepColumns:
    """A collective log, length N; ``NONE`` where there is no value."""

    rank: Ints
    node: Ints
    gpu: Ints
    pg: Ints
    """index into ``pg_names``"""
    op: Ints
    """index into ``op_names``"""
    seq: Ints
    step: Ints
    mb: Ints
    """-1 for calls made once per step"""
    peer: Ints
    bytes: Ints
    enqueue_ns: Ints
    start_ns: Ints
    end_ns: Ints
    state: Ints
    """index into ``STATES``"""
    pg_names: tuple[str, ...]
    op_names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.rank)

    def take(self, places: Ints | NDArray[np.bool_]) -> StepColumns:
        """Some entries, in that order."""
        arrays = {f.name: getattr(self, f.name)[places] for f in fields(self)[:14]}
        return StepColumns(**arrays, pg_names=self.pg_names, op_names=self.op_names)

    def sorted(self) -> StepColumns:
        """By step, then by time of call as the hosts tell it."""
        return self.take(np.lexsort((self.enqueue_ns, self.step)))


def columns(shape: JobShape, calls: Sequence[Call], clocks: Clocks) -> StepColumns:
    """The log of all calls that were made."""
    groups = _Groups(shape)
    ops = {name: number for number, name in enumerate(dict.fromkeys(call.op for call in calls))}
    sizes = np.array([call.enqueue.size for call in calls])

    def each(values: Iterator[int]) -> Ints:
        return np.repeat(np.fromiter(values, np.int64, len(calls)), sizes)

    rank = _joined(_ranks(shape, call.stage) for call in calls)
    step = each(call.step for call in calls)
    node, gpu = np.divmod(rank, shape.gpus_per_node)
    enqueue, start, end = (
        np.concatenate([getattr(call, name).reshape(-1) for call in calls])
        for name in ("enqueue", "start", "end")
    )
    state = np.where(np.isfinite(end), COMPLETED, np.where(np.isfinite(start), STARTED, SCHEDULED))
    made = StepColumns(
        rank, node, gpu, _joined(groups.of(call) for call in calls), each(ops[call.op] for call in calls),
        each(call.seq for call in calls), step, each(call.micro_batch for call in calls),
        _joined(_peers(shape, call) for call in calls), each(call.bytes for call in calls),
        clocks.read(enqueue, node, step), clocks.read(start, node, step), clocks.read(end, node, step),
        state, groups.names, tuple(ops),
    )  # fmt: skip
    return made.take(np.isfinite(enqueue)).sorted()


def _joined(parts: Iterator[Ints]) -> Ints:
    return np.concatenate(list(parts))


def _ranks(shape: JobShape, stage: int | None) -> Ints:
    return (shape.rank if stage is None else shape.rank[stage]).reshape(-1)


def _peers(shape: JobShape, call: Call) -> Ints:
    if call.peer_stage is None:
        return np.full(call.enqueue.size, NONE)
    return _ranks(shape, call.peer_stage)


class _Groups:
    """Numbers and names of the process groups."""

    def __init__(self, shape: JobShape) -> None:
        stages, replicas, places = (range(size) for size in shape.grid)
        tensor = [f"tp:pp{p}:dp{d}" for p in stages for d in replicas]
        data = [f"dp:pp{p}:tp{t}" for p in stages for t in places]
        pipeline = [f"pp:dp{d}:tp{t}" for d in replicas for t in places]
        self.names = tuple(chain(tensor, data, pipeline, ["world"]))
        stage, replica, place = np.indices(shape.grid)
        first = len(tensor), len(tensor) + len(data), len(tensor) + len(data) + len(pipeline)
        self._number = {
            "tp": stage * shape.data + replica,
            "dp": first[0] + stage * shape.tensor + place,
            "pp": first[1] + replica * shape.tensor + place,
            "world": np.full(shape.grid, first[2]),
        }

    def of(self, call: Call) -> Ints:
        """The group of each rank that makes a call."""
        number: Ints = self._number[call.role]
        return (number if call.stage is None else number[call.stage]).reshape(-1)


def lines(made: StepColumns) -> Iterator[str]:
    """The lines of ``records.jsonl``, as texts of many lines each."""
    groups = [f'"pg":"{name}","op":"' for name in made.pg_names]
    ops = [f'{name}","seq":' for name in made.op_names]
    for first in range(0, len(made), _LINES_AT_ONCE):
        part = made.take(np.arange(first, min(first + _LINES_AT_ONCE, len(made))))
        rows = zip(*(getattr(part, f.name).tolist() for f in fields(part)[:14]), strict=True)
        yield "".join(
            f'{{"rank":{rank},"node":{node},"gpu":{gpu},{groups[pg]}{ops[op]}{seq},"step":{step},"mb":{mb},'
            f'"peer":{"null" if peer == NONE else peer},"bytes":{size},"enqueue_ns":{enqueue},'
            f'"start_ns":{"null" if start == NONE else start},"end_ns":{"null" if end == NONE else end},'
            f'"state":"{STATES[state]}"}}\n'
            for rank, node, gpu, pg, op, seq, step, mb, peer, size, enqueue, start, end, state in rows
        )


def write(made: StepColumns, path: Path) -> None:
    """Writes ``records.jsonl.gz``; the same columns give the same bytes."""
    with path.open("wb") as file, gzip.GzipFile("", "wb", 3, file, mtime=0) as packed:
        for text in lines(made):
            packed.write(text.encode())
