"""How long the calls of some steps took: a row per (step, group, op, size), as ``records.Edges`` has it.

In: durations by the host's clock (blocking calls, waits for sends and receives) or by marks on the GPU's
stream. Out: the protocol's ``edges``. Of a step the first ``KEYS_MAX`` different calls are told, the same
ones on ranks that run one program; of many calls of one key a part is kept for the quantiles, while count,
sum and smallest are of all.
"""

from __future__ import annotations

import inspect
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

KEYS_MAX = 64
SAMPLES_MAX = 256
STEPS_MAX = 64
"""Closed steps that wait for the hook's thread; the oldest go first."""
ROWS_MAX = 1_024
"""Of one message; the rest goes with the next one."""
OP_OF = {
    "all_reduce_coalesced": "all_reduce",
    "all_gather_single": "all_gather",
    "all_gather_into_tensor": "all_gather",
    "_all_gather_base": "all_gather",
    "all_gather_coalesced": "all_gather",
    "reduce_scatter_single": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter",
    "_reduce_scatter_base": "reduce_scatter",
    "all_to_all_single": "all_to_all",
    "isend": "send",
    "irecv": "recv",
}
"""torch's names of one and the same call; others are called as they are."""
_PASSED = ("input", "input_tensor", "input_list", "input_tensor_list", "tensor", "tensors")
"""Names of the argument that holds what a rank passes, the likeliest first; torch 2.13."""
COLUMNS = ("step", "group", "op", "size_bytes", "count", "sum_s", "min_s", "p10_s", "p50_s")

Key = tuple[str, str, int]
"""group name ("" for the default group), op, size in bytes"""
Size = Callable[[Any, Any], "int | None"]


def size_of(function: Callable[..., Any]) -> Size:
    """Tells from a call's arguments how many bytes this rank passes; 0 for a call without tensors."""
    names = list(inspect.signature(function).parameters)
    name = next((one for one in _PASSED if one in names), None)
    if name is None:
        return lambda _args, _kwargs: 0
    place = names.index(name)

    def size(args: Any, kwargs: Any) -> int | None:
        return _bytes(args[place] if len(args) > place else kwargs.get(name))

    return size


def _bytes(passed: Any) -> int | None:
    """Bytes of a tensor or a list of them; None for anything else."""
    try:
        if isinstance(passed, (list, tuple)):
            return sum(int(one.numel()) * int(one.element_size()) for one in passed)
        return int(passed.numel()) * int(passed.element_size())
    except Exception:  # noqa: BLE001 - not a tensor: torch will say so, and nothing is told of the call
        return None


class Samples:
    """Durations of one key. Of more than ``SAMPLES_MAX`` each second is kept, then each fourth, and so on."""

    __slots__ = ("count", "every", "kept", "min_ns", "sum_ns")

    def __init__(self) -> None:
        self.count = 0
        self.sum_ns = 0
        self.min_ns = 1 << 62
        self.every = 1
        self.kept: list[int] = []

    def add(self, duration_ns: int) -> None:
        if not self.count % self.every:
            self.kept.append(duration_ns)
            if len(self.kept) > SAMPLES_MAX:
                del self.kept[1::2]
                self.every *= 2
        self.count += 1
        self.sum_ns += duration_ns
        if duration_ns < self.min_ns:
            self.min_ns = duration_ns

    def take_in(self, other: Samples) -> None:
        """Adds the calls of another name of the same key."""
        self.count += other.count
        self.sum_ns += other.sum_ns
        self.min_ns = min(self.min_ns, other.min_ns)
        self.kept += other.kept

    def row(self) -> tuple[int, float, float, float, float]:
        """Count, sum, smallest, p10 and p50 in seconds."""
        ordered = sorted(self.kept)
        last = len(ordered) - 1
        p10_ns, p50_ns = ordered[last // 10], ordered[last // 2]
        return self.count, self.sum_ns / 1e9, self.min_ns / 1e9, p10_ns / 1e9, p50_ns / 1e9


class EdgeStep:
    """The calls of one step."""

    def __init__(self) -> None:
        self.samples: dict[Key, Samples] = {}

    def add(self, key: Key, duration_ns: int) -> None:
        found = self.samples.get(key)
        if found is None:
            if len(self.samples) >= KEYS_MAX:
                return
            found = self.samples[key] = Samples()
        found.add(duration_ns)


    def by_index(self, index_of: Mapping[str, int]) -> dict[tuple[int, str, int], Samples]:
        """The same with a group's index for its name; the default group has two names."""
        found: dict[tuple[int, str, int], Samples] = {}
        for (group, op, size_bytes), samples in self.samples.items():
            index = index_of.get(group)
            if index is None:
                continue
            same = found.setdefault((index, op, size_bytes), samples)
            if same is not samples:
                same.take_in(samples)
        return found


class EdgeQueue:
    """Closed steps, from the training thread to the hook's."""

    def __init__(self) -> None:
        self._closed: deque[tuple[int, EdgeStep]] = deque(maxlen=STEPS_MAX)

    def put(self, step: int, edges: EdgeStep) -> None:
        if edges.samples:
            self._closed.append((step, edges))

    def frame(self, index_of: Mapping[str, int]) -> dict[str, Any] | None:
        """The protocol's ``edges``, None when there is nothing to tell.

        Args: ``index_of`` index of each group by name, the default group's also by "". Calls of a group that
        is gone are left out.
        """
        ops: dict[str, int] = {}
        rows: list[tuple[Any, ...]] = []
        while self._closed and len(rows) + KEYS_MAX <= ROWS_MAX:
            step, edges = self._closed.popleft()
            for (index, op, size_bytes), samples in edges.by_index(index_of).items():
                rows.append((step, index, ops.setdefault(op, len(ops)), size_bytes, *samples.row()))
        if not rows:
            return None
        columns = {name: list(column) for name, column in zip(COLUMNS, zip(*rows))}  # noqa: B905 - Python 3.9
        return {"k": "edges", "t_ns": time.time_ns(), "ops": list(ops), **columns}
