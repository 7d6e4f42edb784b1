"""Marks by torch's CUDA events, on a GPU that fails whatever it is not allowed to be asked."""

from __future__ import annotations

import pytest

from collectors.hook.stream import CudaClock, cuda_clock
from tests.collectors.hook.fake_stream import TICK_S, Gpu, Torch


def test_cuda_is_not_brought_up() -> None:
    gpu = Gpu()
    gpu.is_up = False
    assert cuda_clock(Torch(gpu)) is None and gpu.events == 0
    assert cuda_clock(object()) is None


def test_time_between_two_marks_is_the_streams_own() -> None:
    gpu = Gpu()
    clock = CudaClock(Torch(gpu))
    first = clock.mark()
    gpu.compute(0.25)
    last = clock.mark()
    assert gpu.host_s == 0.0 and clock.done(first) and not clock.done(last), "the host ran ahead"
    gpu.host_s = 0.3
    assert clock.done(last) and clock.elapsed_s(first, last) == pytest.approx(0.25, abs=TICK_S)


def test_a_mark_tells_whether_the_gpu_stood_still_for_its_host() -> None:
    gpu = Gpu()
    clock = CudaClock(Torch(gpu))
    assert clock.mark().was_idle
    gpu.compute(0.1)
    assert not clock.mark().was_idle
    gpu.host_s = 0.2
    assert clock.mark().was_idle


def test_a_mark_knows_its_stream() -> None:
    gpu = Gpu()
    clock = CudaClock(Torch(gpu))
    first = clock.mark()
    gpu.current = gpu.streams[1]
    assert (first.stream, clock.mark().stream) == ((0, 0), (0, 1))


def test_events_are_used_again() -> None:
    gpu = Gpu()
    clock = CudaClock(Torch(gpu))
    for _ in range(10):
        clock.free(clock.mark())
    assert gpu.events == 1


def test_what_the_driver_says_comes_out() -> None:
    gpu = Gpu()
    clock = CudaClock(Torch(gpu))
    mark = clock.mark()
    gpu.capturing = True
    assert clock.is_capturing()
    gpu.capturing, gpu.broken = False, True
    for ask in (clock.mark, lambda: clock.done(mark), lambda: clock.elapsed_s(mark, mark)):
        with pytest.raises(RuntimeError, match="destroyed"):
            ask()
