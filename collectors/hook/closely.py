"""The steps that are looked at closely: how long their calls took, and on a GPU what they waited for.

In: ends of steps. Out: the protocol's ``edges``, ``Marked`` steps, words for what stays unknown. About one
step in ``TELL_EVERY_S`` is told, chosen by its number. On processors its calls are timed by the host's
clock; once a GPU is in use, by the marks of the steps that are marked and told.
"""

from __future__ import annotations

from typing import Any

from .edges import EdgeQueue, EdgeStep
from .groups import GroupTable, operations
from .marked import Marked
from .marks import Marks
from .rhythm import Rhythm
from .stream import cuda_clock
from .watch import Operations, Watch

SETTLE_STEPS = 32
"""Which steps are looked at changes at multiples of this, so on all ranks at once."""
TELL_EVERY_S = 7.5
"""Of the powers of two the first that is enough: a step is told each 8 to 15 s."""
TELL_POWER_MAX = 16
FIRST_TOLD = 32
"""The first steps are told each: their lengths are not known yet, and a new attempt is looked at most."""
GROUPS_MAX = 64
"""Of a process in more groups the waiting on a GPU stays unknown: each is asked for its number of calls."""


class Closely:
    """Of one process; ``turn`` runs in the training thread, the rest in the hook's."""

    def __init__(self, torch: Any, watch: Watch, table: GroupTable) -> None:
        self._watch = watch
        self._table = table
        self._queue = EdgeQueue()
        self._told = Rhythm(0, TELL_POWER_MAX)
        self._passed_s, self._passed_count = 0.0, 0
        self.marks = Marks(watch, lambda: cuda_clock(torch), self._operations, self._queue.put, self._is_told)

    def turn(self, step: int, count: int, duration_s: float) -> Marked | None:
        """A step is over. Returns it where it was marked on a GPU; its figures come later.

        Args: ``count`` steps that ended here, more than 1 after skipped ones; ``duration_s`` of one by the
        host's clock, 0 where it is not known.
        """
        watch = self._watch
        if watch.operations is None:
            return None
        edges, watch.edges = watch.edges, None
        if edges is not None and count == 1:
            self._queue.put(step, edges)
        self._passed_s += duration_s * count
        self._passed_count += count
        if not step % SETTLE_STEPS and self._passed_s:
            mean_s = self._passed_s / self._passed_count
            self._told.settle(TELL_EVERY_S / mean_s)
            self.marks.settle(mean_s)
            self._passed_s, self._passed_count = 0.0, 0
        marked = self.marks.turn(step, count)
        if not watch.on_stream and self._is_told(step + 1):
            watch.edges = EdgeStep()
        return marked

    def _is_told(self, step: int) -> bool:
        return step <= FIRST_TOLD or self._told.holds(step)

    def _operations(self) -> Operations:
        """Calls of all groups, those that only a mark can time among them."""
        groups = self._table.groups
        return operations(groups[:GROUPS_MAX], self._watch, len(groups) <= GROUPS_MAX, on_stream=True)

    def frame(self) -> dict[str, Any] | None:
        """The calls of steps that have ended since the last time, None when there are none."""
        index_of: dict[str, int] = {}
        for group in self._table.groups:
            index_of[group.name] = group.index
            if group.is_default:
                index_of[""] = group.index
        return self._queue.frame(index_of)
