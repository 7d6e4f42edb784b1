"""The clockwork of a made training job: who waits for whom, call by call, in one true time.

In: a shape, the effects of each step, noise. Out: ``Call`` by call the times at which each rank put it on its
stream, began it and ended it, nanoseconds from the start of the job; infinite where it never came to that.
Vectorised over the ranks of a stage: the cost is about 50 us for each call of a stage.

A model of the job, not of any detector: the host launches ahead and is stopped only by what it reads back;
the stream runs its work in order; a collective ends for all when the last member has come and the bytes have
passed; a message ends when both sides are there. Effective speeds are set so that transfers take what they
take in recorded jobs of 2 x 2 x 4 ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from clusterwatch.simulate.step_job_effects import Story
from clusterwatch.simulate.step_job_faults import Kind, Planned
from clusterwatch.simulate.step_job_layout import Floats, Half, JobShape

_FORWARD_NS: Final = 6.0e6
_BACKWARD_NS: Final = 12.0e6
_OPTIMIZER_NS: Final = 5.0e6
_TAIL_RATIO: Final = 0.15
"""What the GPU still has to do of a piece of work when the host has launched the last of it."""
_LAUNCH_FORWARD_NS: Final = 1.65e6
_LAUNCH_BACKWARD_NS: Final = 2.67e6
_LAUNCH_OPTIMIZER_NS: Final = 0.45e6
_LAUNCH_SPREAD: Final = 0.07
_CALL_NS: Final = 10e3
_QUEUE_NS: Final = 8e3
"""From the call of the host to the kernel's start on an idle stream."""
_READ_BACK_NS: Final = 20e3
_SYNC_NS: Final = 50e3
_INPUT_NS: Final = 2.5e6
_WRITE_NS: Final = 300e6
_WRITE_TAIL_NS: Final = 30e6
_NVLINK_BYTES_PER_NS: Final = 112.8
_PORT_BYTES_PER_NS: Final = 67.0
_RING_RATIO: Final = 0.86
"""Of the bandwidth of the ports, what a ring over several nodes makes use of."""
_GATHER_RATIO: Final = 0.88
"""Of the speed of a reduce-scatter, that of an all-gather of the same bytes."""
_LATENCY_NS: Final = 5e3
_WORLD_NS: Final = 51e3
"""Of a call of few bytes, for each doubling of the ranks."""
_BARRIER_NS: Final = 26e3
_TRANSFER_HICCUP: Final = (1e-3, 0.8)
"""Chance, and mean excess of a transfer that has one, relative."""
_HOST_HICCUP: Final = (5e-4, 6e6)


@dataclass(frozen=True, slots=True)
class Noise:
    """What differs without a fault; standard deviations, relative where not in ns."""

    silicon: float = 0.004
    """of a rank, for good"""
    work: float = 0.0075
    """of each piece of work"""
    hiccup: tuple[float, float] = (4e-4, 1.2e6)
    """chance of each piece of work, mean of its delay in ns"""
    transfer: float = 0.024
    """of the half-normal excess of each transfer: 1.4 % spread"""
    jitter_ns: float = 3e3
    """between the ends of one collective"""


@dataclass(slots=True)
class Call:
    """One call of all ranks of a stage, or of all ranks; times over (data, tensor) or the whole grid."""

    op: str
    role: str
    stage: int | None
    step: int
    micro_batch: int
    bytes: int
    seq: int
    enqueue: Floats
    start: Floats
    end: Floats
    peer_stage: int | None = None


class Clockwork:
    """Runs one job."""

    def __init__(self, shape: JobShape, story: Story, noise: Noise, seed: int) -> None:
        self._shape, self._story, self._noise = shape, story, noise
        self._silicon = 1.0 + noise.silicon * np.random.default_rng([seed, 21]).standard_normal(shape.grid)
        self._silicon = np.maximum(self._silicon, 0.5)
        self._random = np.random.default_rng([seed, 22])
        self._free = np.zeros(shape.grid)
        self._host = np.zeros(shape.grid)
        self._seq: dict[tuple[str, int | None, str], int] = {}
        self._calls: list[Call] = []
        self._sent: dict[tuple[str, int, int], Call] = {}
        self._step = 0
        self._effects = story.of(0)

    def run(self) -> list[Call]:
        """All calls up to the last step, or until every rank stands still."""
        for step in range(self._shape.steps):
            self._step, self._effects = step, self._story.of(step)
            self._input()
            self._micro_batches()
            self._finish()
            if not np.isfinite(self._host).any():
                break
        return self._calls

    # --- the parts of a step --------------------------------------------------------------------------

    def _input(self) -> None:
        first = self._host[0].shape
        self._host[0] += _INPUT_NS * self._spread(first, 0.03) + self._effects.input_ns[0]

    def _micro_batches(self) -> None:
        """Every stage in its own order; one that needs a message waits until the other stage has sent it."""
        count, last = self._effects.micro_batches, self._shape.pipeline - 1
        programs = [self._program(stage, count) for stage in range(last + 1)]
        done = [0] * len(programs)
        while any(at < len(program) for at, program in zip(done, programs, strict=True)):
            for stage, program in enumerate(programs):
                while done[stage] < len(program) and self._has_input(program[done[stage]], stage):
                    self._half(stage, program[done[stage]], done[stage])
                    done[stage] += 1

    def _program(self, stage: int, count: int) -> tuple[Half, ...]:
        if self._effects.forward_only:
            return tuple(Half(True, number) for number in range(count))
        return self._shape.schedule(stage, count)

    def _has_input(self, half: Half, stage: int) -> bool:
        before = self._before(half, stage)
        return before is None or ("fb"[not half.forward], before, half.micro_batch) in self._sent

    def _before(self, half: Half, stage: int) -> int | None:
        """The stage that a half of a micro-batch comes from."""
        before = stage - 1 if half.forward else stage + 1
        return before if 0 <= before < self._shape.pipeline else None

    def _half(self, stage: int, half: Half, place: int) -> None:
        """Receive, compute, sum over the tensor group, send."""
        way, before = "fb"[not half.forward], self._before(half, stage)
        if before is not None:
            self._receive(stage, before, way, half.micro_batch)
        self._work(stage, half, place)
        if self._shape.tensor > 1:
            self._sum(stage, half)
        after = stage + (1 if half.forward else -1)
        if 0 <= after < self._shape.pipeline:
            self._send(stage, after, way, half.micro_batch)

    def _work(self, stage: int, half: Half, place: int) -> None:
        effects, launch = self._effects, _LAUNCH_FORWARD_NS if half.forward else _LAUNCH_BACKWARD_NS
        host = self._host[stage]
        host += launch * effects.launch[stage] * self._spread(host.shape, _LAUNCH_SPREAD)
        host += self._rare(host.shape, *_HOST_HICCUP)
        host += np.where(effects.pause_at[stage] == place, effects.pause_ns[stage], 0.0)
        base = (_FORWARD_NS if half.forward else _BACKWARD_NS) * effects.batch
        work = base * self._silicon[stage] * effects.work[stage]
        work *= effects.micro_work[:, half.micro_batch, None]
        self._compute(self._free[stage], host, work)

    def _compute(self, free: Floats, host: Floats, work: Floats) -> None:
        """A piece of work on the stream: not over before the host has launched all of it."""
        work = work * self._spread(work.shape, self._noise.work)
        extra = self._rare(work.shape, *self._noise.hiccup)
        free[...] = np.maximum(free + work, host + _TAIL_RATIO * work) + extra

    # --- calls ----------------------------------------------------------------------------------------

    def _issue(
        self, host: Floats, free: Floats, point: str, stage: int | None = None, micro_batch: int = -1
    ) -> tuple[Floats, Floats]:
        """The host makes a call: when, and when the stream comes to it. Hangs of ranks begin here."""
        for fault in self._at(point, stage, micro_batch):
            place = self._shape.place(fault.place)[0 if stage is None else 1 :]
            if fault.kind is Kind.ABSENT:
                host[place] = np.inf
            elif fault.kind is Kind.QUEUED:
                free[place] = np.inf
        host += _CALL_NS
        enqueue = host.copy()
        return enqueue, np.maximum(free, enqueue + _QUEUE_NS)

    def _at(self, point: str, stage: int | None, micro_batch: int) -> list[Planned]:
        """The hangs at this call of this step."""
        if micro_batch not in (-1, self._step % self._effects.micro_batches):
            return []
        return [
            fault for fault in self._effects.hangs
            if fault.point == point and stage in (None, self._shape.place(fault.place)[0])
        ]  # fmt: skip

    def _transfer(self, base: Floats, point: str, stage: int | None = None, micro_batch: int = -1) -> Floats:
        """How long the bytes of each group take. A fault inside of the kernel: for ever."""
        over = np.abs(self._random.standard_normal(base.shape)) * self._noise.transfer
        taken = base * (1.0 + over + self._rare(base.shape, *_TRANSFER_HICCUP))
        for fault in self._at(point, stage, micro_batch):
            if fault.kind is Kind.INSIDE:
                place = self._shape.place(fault.place)[0 if stage is None else 1 :]
                taken[tuple(0 if size == 1 else at for at, size in zip(place, taken.shape, strict=True))] = (
                    np.inf
                )
        return taken

    def _collective(self, start: Floats, taken: Floats, axis: tuple[int, ...], free: Floats) -> Floats:
        """All members end together, when the last one has come and the bytes have passed."""
        end = start.max(axis=axis, keepdims=True) + taken
        ends: Floats = end + np.abs(self._random.standard_normal(start.shape)) * self._noise.jitter_ns
        free[...] = ends
        return ends

    def _sum(self, stage: int, half: Half) -> None:
        host, free, shape = self._host[stage], self._free[stage], self._shape
        point = "tensor_forward" if half.forward else "tensor_backward"
        enqueue, start = self._issue(host, free, point, stage, half.micro_batch)
        size = int(shape.tensor_bytes * self._effects.batch)
        moved = 2 * (shape.tensor - 1) / shape.tensor * size
        share = self._effects.nvlink[stage].min(axis=1, keepdims=True)
        base = _LATENCY_NS * shape.tensor + moved / (_NVLINK_BYTES_PER_NS * share)
        taken = self._transfer(base, point, stage, half.micro_batch)
        end = self._collective(start, taken, (1,), free)
        self._record("all_reduce", "tp", stage, half.micro_batch, size, (enqueue, start, end))

    def _send(self, stage: int, peer: int, way: str, micro_batch: int) -> None:
        """Beside the stream; it ends when the other side has received."""
        enqueue, start = self._issue(self._host[stage], self._free[stage], "send", stage, micro_batch)
        size = int(self._shape.stage_bytes * self._effects.batch)
        times = enqueue, start, np.full(start.shape, np.inf)
        call = self._record(f"send_{way}{stage}", "pp", stage, micro_batch, size, times)
        call.peer_stage = peer
        self._sent[way, stage, micro_batch] = call

    def _receive(self, stage: int, peer: int, way: str, micro_batch: int) -> None:
        sent = self._sent.pop((way, peer, micro_batch))
        enqueue, start = self._issue(self._host[stage], self._free[stage], "receive", stage, micro_batch)
        effects, near = self._effects, self._shape.node[stage] == self._shape.node[peer]
        port = _PORT_BYTES_PER_NS * np.minimum(effects.nic[stage], effects.nic[peer])
        link = _NVLINK_BYTES_PER_NS * np.minimum(effects.nvlink[stage], effects.nvlink[peer])
        base = _LATENCY_NS + sent.bytes / np.where(near, link, port) * effects.stage_wait
        taken = self._transfer(base, "receive", stage, micro_batch)
        end = np.maximum(start, sent.start) + taken
        jitter = np.abs(self._random.standard_normal((2, *end.shape))) * 2 * self._noise.jitter_ns
        sent.end, self._free[stage] = end + jitter[0], end + jitter[1]
        times = enqueue, start, end + jitter[1]
        call = self._record(f"recv_{way}{stage}", "pp", stage, micro_batch, sent.bytes, times)
        call.peer_stage = peer

    # --- the end of a step ----------------------------------------------------------------------------

    def _finish(self) -> None:
        """Gradients, their norm (read back by the host), optimizer, weights, now and then a checkpoint."""
        trains, shape = not self._effects.forward_only, self._shape
        self._norm(self._gradients() if trains and shape.data > 1 else None)
        if trains:
            self._host += _LAUNCH_OPTIMIZER_NS * self._effects.launch
            work = _OPTIMIZER_NS * self._silicon * self._effects.work
            self._compute(self._free, self._host, work)
            if shape.data > 1:
                enqueue, start = self._issue(self._host, self._free, "all_gather")
                taken = self._transfer(self._data_ns(shape.weight_bytes) / _GATHER_RATIO, "all_gather")
                end = self._collective(start, taken, (1,), self._free)
                times = enqueue, start, end
                self._record("all_gather", "dp", None, -1, shape.weight_bytes, times)
        np.maximum(self._host, self._free + _SYNC_NS, out=self._host)
        if trains and (self._step + 1) % shape.checkpoint_steps == 0:
            self._checkpoint()

    def _gradients(self) -> tuple[Call, dict[tuple[int, ...], float]]:
        """The reduce-scatter; and of ranks that make their calls in the wrong order, when they are free."""
        size, free = self._shape.gradient_bytes, self._free
        enqueue, start = self._issue(self._host, free, "reduce_scatter")
        early: dict[tuple[int, ...], float] = {}
        for fault in self._at("reduce_scatter", None, -1):
            if fault.kind is Kind.ORDER:
                place = self._shape.place(fault.place)
                early[place], start[place] = float(start[place]), np.inf
        taken = self._transfer(self._data_ns(size), "reduce_scatter")
        end = self._collective(start, taken, (1,), free)
        return self._record("reduce_scatter", "dp", None, -1, size, (enqueue, start, end)), early

    def _norm(self, gradients: tuple[Call, dict[tuple[int, ...], float]] | None) -> None:
        enqueue, start = self._issue(self._host, self._free, "norm")
        if gradients is not None:
            call, early = gradients
            for place, free in early.items():
                enqueue[place], call.enqueue[place] = call.enqueue[place], enqueue[place]
                start[place] = free
        end = self._world(start, _WORLD_NS, "norm")
        self._record("all_reduce", "world", None, -1, 4, (enqueue, start, end))
        np.maximum(self._host, end + _READ_BACK_NS, out=self._host)

    def _checkpoint(self) -> None:
        shape = self._shape.grid
        tail = self._random.exponential(_WRITE_TAIL_NS, shape)
        self._host += (_WRITE_NS * self._spread(shape, 0.02) + tail) * self._effects.write
        enqueue, start = self._issue(self._host, self._free, "barrier")
        end = self._world(start, _BARRIER_NS, "barrier")
        self._record("barrier", "world", None, -1, 1, (enqueue, start, end))
        np.maximum(self._host, end, out=self._host)

    def _world(self, start: Floats, doubling_ns: float, point: str) -> Floats:
        base = np.full((1, 1, 1), doubling_ns * np.log2(max(self._shape.world, 2)))
        return self._collective(start, self._transfer(base, point), (0, 1, 2), self._free)

    def _data_ns(self, size: int) -> Floats:
        """Transfer time of each data group, shape (pipeline, 1, tensor)."""
        shape, effects = self._shape, self._effects
        if shape.data * shape.tensor > shape.gpus_per_node:
            beside = max(1, min(shape.data, shape.gpus_per_node // shape.tensor))
            speed = _PORT_BYTES_PER_NS * _RING_RATIO * beside * effects.nic.min(axis=1, keepdims=True)
        else:
            speed = _NVLINK_BYTES_PER_NS * effects.nvlink.min(axis=1, keepdims=True)
        moved = (shape.data - 1) / shape.data * size
        taken: Floats = _LATENCY_NS * shape.data + moved / speed * effects.data_wait
        return taken

    # --- noise and notes ------------------------------------------------------------------------------

    def _spread(self, shape: tuple[int, ...], deviation: float) -> Floats:
        factors: Floats = np.exp(deviation * self._random.standard_normal(shape))
        return factors

    def _rare(self, shape: tuple[int, ...], chance: float, mean: float) -> Floats:
        """Mostly 0; now and then an exponential delay."""
        hit = self._random.random(shape) < chance
        return np.where(hit, self._random.exponential(mean, shape), 0.0) if hit.any() else np.zeros(shape)

    def _record(
        self, op: str, role: str, stage: int | None, micro_batch: int, size: int,
        times: tuple[Floats, Floats, Floats],
    ) -> Call:  # fmt: skip
        key = role, stage, op if role == "pp" else ""
        seq = self._seq.get(key, 0)
        self._seq[key] = seq + 1
        call = Call(op, role, stage, self._step, micro_batch, size, seq, *times)
        self._calls.append(call)
        return call
