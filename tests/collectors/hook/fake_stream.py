"""GPUs of a made-up job: streams on which work of known length runs while each host runs ahead of its own.

``Torch`` has as much of ``torch.cuda`` as the hook asks for; asking for more (to synchronise, to bring CUDA
up) fails. What is put on a stream begins when the thing before it is over, and not before the host put it
there. A collective ends for all its members ``transfer_s`` after the last of them has come to it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

TICK_S = 0.5e-6
"""What an event's time is rounded to."""


class Collective:
    """One call of a group."""

    def __init__(self, size: int, transfer_s: float) -> None:
        self.arrived_s: dict[int, float] = {}
        self._size, self._transfer_s = size, transfer_s

    @property
    def ends_s(self) -> float | None:
        """None until all have come."""
        if len(self.arrived_s) < self._size:
            return None
        return max(self.arrived_s.values()) + self._transfer_s


class Stream:
    """Things to do in order; ``settle`` finds out how far they have come."""

    def __init__(self, gpu: Gpu, number: int) -> None:
        self._gpu = gpu
        self.device_index, self.stream_id = 0, number
        self.ends_s: float | None = 0.0
        """when all is done that was put here; None while it waits for others"""
        self._reached_s = 0.0
        self._todo: deque[tuple[float, Callable[[float], float | None]]] = deque()

    def put(self, thing: Callable[[float], float | None]) -> None:
        """``thing`` tells from when it may begin when it is over, None while that is not known."""
        self._todo.append((self._gpu.host_s, thing))
        self.ends_s = None
        self.settle()

    def settle(self) -> bool:
        """True when something more is over."""
        moved = False
        while self._todo:
            put_s, thing = self._todo[0]
            over_s = thing(max(self._reached_s, put_s))
            if over_s is None:
                return moved
            self._reached_s = over_s
            self._todo.popleft()
            moved = True
        self.ends_s = self._reached_s
        return moved

    def query(self) -> bool:
        self._gpu.ask()
        return self.ends_s is not None and self.ends_s <= self._gpu.host_s


class GpuEvent:
    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self.at_s: float | None = None

    def record(self, stream: Stream) -> None:
        self._gpu.ask()
        self.at_s = None

        def reach(begin_s: float) -> float:
            self.at_s = begin_s
            return begin_s

        stream.put(reach)

    def query(self) -> bool:
        self._gpu.ask()
        return self.at_s is not None and self.at_s <= self._gpu.host_s

    def elapsed_time(self, end: GpuEvent) -> float:
        if not (self.query() and end.query()) or self.at_s is None or end.at_s is None:
            raise RuntimeError("Both events must be recorded and done before calculating elapsed time")
        return round((end.at_s - self.at_s) / TICK_S) * TICK_S * 1e3


class Gpu:
    """One rank's GPU and the clock of its host; it is ``torch.cuda``, too."""

    def __init__(self) -> None:
        self.host_s = 0.0
        self.streams = [Stream(self, number) for number in range(2)]
        self.current = self.streams[0]
        self.is_up = True
        self.capturing = False
        self.broken = False
        self.events = 0

    def ask(self) -> None:
        """Every question to the driver comes by here."""
        if self.capturing:
            raise RuntimeError("operation not permitted when stream is capturing")
        if self.broken:
            raise RuntimeError("CUDA error: context is destroyed")

    def compute(self, length_s: float) -> None:
        self.current.put(lambda begin_s: begin_s + length_s)

    def join(self, call: Collective, rank: int) -> None:
        """The call begins for this rank when its stream has come here."""

        def arrive(begin_s: float) -> float:
            call.arrived_s.setdefault(rank, begin_s)
            return begin_s

        self.current.put(arrive)

    def wait(self, call: Collective) -> None:
        self.current.put(lambda begin_s: None if call.ends_s is None else max(begin_s, call.ends_s))

    # --- torch.cuda ------------------------------------------------------------------------------------

    def is_initialized(self) -> bool:
        return self.is_up

    def is_current_stream_capturing(self) -> bool:
        return self.capturing

    def current_stream(self) -> Stream:
        return self.current

    def Event(self, enable_timing: bool = False) -> GpuEvent:  # noqa: N802 - torch's name
        assert enable_timing
        self.events += 1
        return GpuEvent(self)


class Torch:
    def __init__(self, gpu: Gpu) -> None:
        self.cuda: Any = gpu


def settle(gpus: list[Gpu]) -> None:
    """Lets all streams come as far as they can."""
    streams = [stream for gpu in gpus for stream in gpu.streams]
    while any(list(map(Stream.settle, streams))):
        pass
