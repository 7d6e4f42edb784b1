"""A clock of the GPU: marks on the stream that the job computes on, and the time between two of them.

In: the job's own torch with CUDA up. Out: ``Mark``s, and seconds between them once the GPU has passed both.
The host runs ahead of the GPU, so its own clock tells nothing of when a collective began or ended there; a
CUDA event recorded before and one after a call do. Nothing here waits for the GPU, brings CUDA up or records
into a graph that is being captured.

Marks are made and read by the job's own thread: while a thread captures a graph in CUDA's global mode, a
query from another thread (the hook's) would break the capture. Source: CUDA Runtime API,
cudaStreamBeginCapture and cudaThreadExchangeStreamCaptureMode; cudaEventElapsedTime has a resolution of
about 0.5 us.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

POOL_MAX = 16_384
"""Events kept for the next marks: two for each of the calls of two marked steps."""


class Mark(NamedTuple):
    """A place on a stream."""

    event: Any
    stream: tuple[int, int]
    """device, number of the stream there"""
    was_idle: bool
    """the stream had nothing left to do when the mark was made: the GPU stood still for its host"""


class StreamClock(Protocol):
    """What the hook needs of a GPU. Each method may raise what the GPU's driver says."""

    def is_capturing(self) -> bool:
        """What is put on the current stream becomes a graph; nothing else may be asked then."""

    def mark(self) -> Mark:
        """Marks the current stream."""

    def done(self, mark: Mark) -> bool:
        """The GPU has passed the mark. Never waits."""

    def elapsed_s(self, first: Mark, last: Mark) -> float:
        """Time between two marks that are done."""

    def free(self, mark: Mark) -> None:
        """The mark is not needed any more."""


class CudaClock:
    """``StreamClock`` by torch's CUDA events. Only for a process whose CUDA is up."""

    def __init__(self, torch: Any) -> None:
        self._cuda = torch.cuda
        self._pools: dict[int, list[Any]] = {}
        """device -> events; an event belongs to the device that recorded it first"""

    def is_capturing(self) -> bool:
        return bool(self._cuda.is_current_stream_capturing())

    def mark(self) -> Mark:
        cuda = self._cuda
        stream = cuda.current_stream()
        device = int(stream.device_index)
        was_idle = bool(stream.query())
        pool = self._pools.get(device)
        event = pool.pop() if pool else cuda.Event(enable_timing=True)
        event.record(stream)
        return Mark(event, (device, int(stream.stream_id)), was_idle)

    def done(self, mark: Mark) -> bool:
        return bool(mark.event.query())

    def elapsed_s(self, first: Mark, last: Mark) -> float:
        return float(first.event.elapsed_time(last.event)) / 1e3

    def free(self, mark: Mark) -> None:
        pool = self._pools.setdefault(mark.stream[0], [])
        if len(pool) < POOL_MAX:
            pool.append(mark.event)


def cuda_clock(torch: Any) -> CudaClock | None:
    """A clock where CUDA is up in this process, else None; never brings it up."""
    cuda = getattr(torch, "cuda", None)
    return CudaClock(torch) if cuda is not None and cuda.is_initialized() else None
