"""What torch's caching allocator says of this process's GPU memory: use, retries, out of memory.

In: torch. Out: the ``allocator`` frame, at most once a minute, from the hook's thread. A retry is the
allocator emptying its cache and asking the driver again: it synchronises the GPU and costs the step. Nothing
is asked before CUDA is up, so it is never brought up by this. Source: torch.cuda.memory_stats, torch 2.13.
"""

from __future__ import annotations

import time
from typing import Any

EVERY_NS = 60_000_000_000
DEVICES_MAX = 16
_STATS = {
    "retries": "num_alloc_retries",
    "ooms": "num_ooms",
    "allocated_bytes": "allocated_bytes.all.current",
    "allocated_peak_bytes": "allocated_bytes.all.peak",
    "reserved_bytes": "reserved_bytes.all.current",
}


class Allocator:
    """Remembers when it looked last. A torch that answers in another way is not asked again."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._next_ns = 0
        self._is_unknown = False

    def frame(self, at_ns: int) -> dict[str, Any] | None:
        """The frame when one is due. Args: ``at_ns`` of a monotonic clock."""
        if self._is_unknown or at_ns < self._next_ns:
            return None
        try:
            cuda = self._torch.cuda
            if not cuda.is_initialized():
                return None
            self._next_ns = at_ns + EVERY_NS
            told = dict.fromkeys(_STATS, 0)
            for device in range(min(cuda.device_count(), DEVICES_MAX)):
                stats = cuda.memory_stats(device)
                for name, theirs in _STATS.items():
                    told[name] += int(stats.get(theirs, 0))
        except Exception:  # noqa: BLE001 - an untried torch may answer in another way: go on without
            self._is_unknown = True
            return None
        return {"k": "allocator", "t_ns": time.time_ns(), **told}
