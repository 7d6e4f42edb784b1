"""Ranks of a made-up job on fake GPUs, each with the hook's own wrappers, marks and step counter around it.

Ranks run one after the other, a step at a time: a host launches and goes on, so nobody has to wait for the
others to have come. After each step the GPUs settle what they did.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from collectors.hook import steps, waits
from collectors.hook.closely import Closely
from collectors.hook.groups import Group
from collectors.hook.steps import StepCounter
from collectors.hook.watch import Operations, Watch
from tests.collectors.hook.fake_stream import Collective, Gpu, Torch, settle

CALL_HOST_S = 20e-6
"""How long a host takes to launch anything."""
TRANSFER_S = 0.010


class Handle:
    """torch's process group, as far as the hook asks."""

    made = 0

    def _get_sequence_number_for_group(self) -> int:
        return self.made


class Table:
    def __init__(self, backend: str = "nccl") -> None:
        self.handle = Handle()
        group: Any = Group(
            3, "0", "default_pg", backend, [0], lambda: self.handle, is_default=True,  # type: ignore[arg-type]
            is_single="," not in backend,
        )  # fmt: skip
        self.groups = [group]


class Tensor:
    def __init__(self, count: int) -> None:
        self._count = count

    def numel(self) -> int:
        return self._count

    def element_size(self) -> int:
        return 4


class Rank:
    """One process: ``calls`` are its torch functions, wrapped."""

    def __init__(self, job: Job, number: int, backend: str) -> None:
        self.job, self.number = job, number
        self.gpu, self.watch, self.table = Gpu(), Watch(), Table(backend)
        self.watch.active = True
        self.watch.operations = lambda: Operations(self.table.handle.made, None)
        self.closely = Closely(Torch(self.gpu), self.watch, self.table)  # type: ignore[arg-type]
        self.counter = StepCounter(self.watch, self.watch.operations, self.closely.turn)
        self.dist: Any = Distributed(self)
        waits.wrap_calls(self.dist, self.watch)
        self._calls = 0

    def next_call(self) -> Collective:
        self.table.handle.made += 1
        self._calls += 1
        return self.job.call(self._calls)

    def finish_step(self) -> None:
        self.counter._finish(self.counter._last, self.counter._mark(), 1)

    @property
    def marks(self) -> Any:
        return self.closely.marks


class Distributed:
    """NCCL's calls: a blocking one is put where the job computes, another one beside it."""

    def __init__(self, rank: Rank) -> None:
        gpu = rank.gpu

        class Work:
            def __init__(self, call: Collective) -> None:
                self.call = call

            def wait(self) -> bool:
                gpu.host_s += CALL_HOST_S
                gpu.wait(self.call)
                return True

        def all_reduce(tensor: Any, op: Any = "sum", group: Any = None, async_op: bool = False) -> Any:
            gpu.host_s += CALL_HOST_S
            call = rank.next_call()
            gpu.join(call, rank.number)
            work = Work(call)
            return work if async_op else (work.wait(), None)[1]

        self.Work: Any = Work
        self.all_reduce: Any = all_reduce


class HostTime:
    """The clock of the host whose turn it is, as module ``time`` of the step counter."""

    gpu: Gpu

    def perf_counter_ns(self) -> int:
        return int(self.gpu.host_s * 1e9)

    def time_ns(self) -> int:
        return 1_796_000_000_000_000_000 + self.perf_counter_ns()

    def process_time(self) -> float:
        return 0.0


class Job:
    """``size`` ranks; ``run`` lets all of them make steps."""

    def __init__(self, patch: pytest.MonkeyPatch, size: int = 4, backend: str = "nccl") -> None:
        self.time = HostTime()
        patch.setattr(steps, "time", self.time)
        self._calls: dict[int, Collective] = {}
        self._size = size
        self.ranks = [Rank(self, number, backend) for number in range(size)]

    def call(self, number: int) -> Collective:
        return self._calls.setdefault(number, Collective(self._size, TRANSFER_S))

    def run(self, steps: int, body: Callable[[Rank], None]) -> None:
        for _ in range(steps):
            for rank in self.ranks:
                self.step(rank, body)
            settle([rank.gpu for rank in self.ranks])
            # a host is held up when it is far ahead; here when its GPU has a whole step left to do
            ends_s = max(rank.gpu.streams[0].ends_s or 0.0 for rank in self.ranks)
            for rank in self.ranks:
                rank.gpu.host_s = max(rank.gpu.host_s, ends_s - 0.5)

    def step(self, rank: Rank, body: Callable[[Rank], None]) -> None:
        self.time.gpu = rank.gpu
        body(rank)
        rank.finish_step()

    def rows(self, rank: int = 0) -> list[dict[str, Any]]:
        """What the rank has told of its steps since the last time."""
        self.time.gpu = self.ranks[rank].gpu
        columns = self.ranks[rank].counter.take() or {}
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    def known(self, rank: int = 0) -> list[dict[str, Any]]:
        """Of those the steps whose waiting is known."""
        return [row for row in self.rows(rank) if row["wait_s"] is not None]


def launch(rank: Rank, compute_s: float) -> None:
    rank.gpu.host_s += CALL_HOST_S
    rank.gpu.compute(compute_s)
