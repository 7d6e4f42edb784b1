"""The allocator's words leave once a minute, only once CUDA is up, and no torch can break the job by them."""

from __future__ import annotations

from typing import Any

import pytest

from collectors import hook_messages
from collectors.hook import protocol
from collectors.hook.allocator import EVERY_NS, Allocator


class Cuda:
    def __init__(self) -> None:
        self.is_up = True
        self.asked: list[int] = []

    def is_initialized(self) -> bool:
        return self.is_up

    def device_count(self) -> int:
        return 2

    def memory_stats(self, device: int) -> dict[str, int]:
        self.asked.append(device)
        return {
            "num_alloc_retries": 3, "num_ooms": device, "allocated_bytes.all.current": 10,
            "allocated_bytes.all.peak": 20, "reserved_bytes.all.current": 30, "unknown": 1,
        }  # fmt: skip


class Torch:
    def __init__(self) -> None:
        self.cuda = Cuda()


def test_it_sums_the_devices_of_the_process() -> None:
    frame = Allocator(Torch()).frame(1)
    assert frame is not None and frame.pop("t_ns") > 0
    assert frame == {
        "k": "allocator", "retries": 6, "ooms": 1, "allocated_bytes": 20, "allocated_peak_bytes": 40,
        "reserved_bytes": 60,
    }  # fmt: skip


def test_it_is_asked_once_a_minute() -> None:
    torch = Torch()
    allocator = Allocator(torch)
    frames = [allocator.frame(at_ns) for at_ns in range(1, 2 * EVERY_NS, EVERY_NS // 10)]
    assert sum(frame is not None for frame in frames) == 2 and torch.cuda.asked == [0, 1, 0, 1]


def test_cuda_is_never_brought_up_for_it() -> None:
    torch = Torch()
    torch.cuda.is_up = False
    allocator = Allocator(torch)
    assert allocator.frame(1) is None and torch.cuda.asked == []
    torch.cuda.is_up = True
    assert allocator.frame(2) is not None


@pytest.mark.parametrize("broken", [object(), None])
def test_a_torch_without_cuda_is_left_alone(broken: Any) -> None:
    allocator = Allocator(broken)
    assert allocator.frame(1) is None and allocator.frame(EVERY_NS * 2) is None


def test_the_agent_reads_the_frame_and_refuses_impossible_numbers() -> None:
    frame = Allocator(Torch()).frame(1)
    assert frame is not None
    reader = hook_messages.Reader()
    ((header, _blob),) = reader.feed(protocol.pack(frame))
    kind, message = header
    assert (kind, message.retries, message.reserved_bytes) == ("allocator", 6, 60)
    for wrong in (-1, 2**60, "many", None):
        with pytest.raises(protocol.ProtocolError):
            hook_messages.Reader().feed(protocol.pack(frame | {"retries": wrong}))
