"""GPU memory of each rank as torch's caching allocator tells it, from the hooks, as readings of the node.

In: the ranks of the agent. Out: samples of ``job/<id>/rank/<rank>`` beside those of the source ``memory``. A
rank whose hook told nothing (no CUDA in use, another torch) has null with that reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from collectors.minute import MetricSpec
from collectors.ranks import RankState
from collectors.sources.base import OK, Reading, Sample
from collectors.sources.tree import Tree

NOT_TOLD: Final = "no_cuda_told"
"""The process has not brought CUDA up, or its torch tells nothing."""
_FIELDS: Final = {
    "torch_allocated_bytes": "allocated_bytes",
    "torch_allocated_peak_bytes": "allocated_peak_bytes",
    "torch_reserved_bytes": "reserved_bytes",
    "torch_allocator_retries_total": "retries",
    "torch_out_of_memory_total": "ooms",
}
STALE_NS: Final = 180 * 10**9


class AllocatorReadings:
    """Looks like a source to what puts readings together; nothing is read for it."""

    name = "torch_allocator"
    period_s = 60.0
    deadline_s = 1.0
    metrics: Sequence[MetricSpec] = ()

    def read(self, tree: Tree, at_s: float) -> Reading:
        """Hooks tell it, no tree does."""
        return Reading()

    def reading(self, ranks: Iterable[RankState], now_ns: int) -> Reading:
        """What all ranks told last; nothing for an agent without ranks."""
        return Reading([sample for state in ranks for sample in _of(state, now_ns)])


def _of(state: RankState, now_ns: int) -> Iterable[Sample]:
    entity = f"job/{state.id.job}/rank/{state.id.rank}"
    told = state.allocator if now_ns - state.allocator_ns < STALE_NS else None
    for metric, field in _FIELDS.items():
        value = None if told is None else getattr(told, field)
        yield Sample(entity, metric, value, NOT_TOLD if told is None else OK)
