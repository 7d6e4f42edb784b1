"""Counts training steps by the optimizer, told apart from everything else that calls ``step()``.

In: torch's global optimizer post-step hook, counts of collectives and batches, times of a step's parts. Out:
columns of the protocol's ``steps`` and the number of the last finished step (1 after the first).

One optimizer, the first that stepped, leads: each of its steps ends a training step. So chained optimizers
and one optimizer per parameter (optimizer-in-backward) count once. A second call with no collective, batch
or backward pass since the last one belongs to the same step. A step that a gradient scaler skipped calls no
hook: where the number of collectives per step is constant, a gap of k times that number counts k steps.
Without any torch optimizer (fully custom ones) batches of the data loader count instead, from the 64th on;
with gradient accumulation that counts micro-batches.
"""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from .marked import Marked
from .watch import Operations, Watch

SAME_PERIOD = 3
"""So many equal gaps in a row make a period."""
SKIPPED_MAX = 64
LEADER_LOST_AFTER = 3
"""Another optimizer that made so many steps without the leader takes over; they count then."""
BATCHES_WITHOUT_OPTIMIZER = 64
ROWS_MAX = 1_000
"""Finished steps kept until the thread fetches them; the oldest go first."""

HOLD_NS = 15_000_000_000
"""So long, and three times its own length, a step's row waits for its marks; later rows wait behind it."""

COLUMNS = (
    "step", "end_ns", "duration_s", "data_wait_s", "checkpoint_s", "gc_s", "cpu_s", "wait_s", "late_launch"
)  # fmt: skip
Row = tuple[int, int, float, float, float, float, float, "float | None", "float | None"]
"""step, end ns UTC, duration s, data wait s, checkpoint s, GC s, CPU s, wait s, share of it launched late"""


class _Mark(NamedTuple):
    """Totals at the end of a step."""

    at_ns: int
    sequence: int
    batches: int
    backwards: int
    loader_ns: int
    checkpoint_ns: int
    gc_ns: int
    cpu_s: float
    waiting_ns: int
    seen: int | None
    """of ``sequence``, the calls whose waiting is in ``waiting_ns``; None where it cannot be told"""


class _Ended(NamedTuple):
    """A row to be told."""

    step: int
    end_ns: int
    steps: int
    last: _Mark
    mark: _Mark
    marked: Marked | None

    def is_ready(self, now_ns: int) -> bool:
        """Its marks are read or given up, or it has waited long enough."""
        if self.marked is None or self.marked.is_settled:
            return True
        length_ns = self.mark.at_ns - self.last.at_ns
        return now_ns - self.mark.at_ns > HOLD_NS + 3 * length_ns


class StepCounter:
    """State of the count; ``after_optimizer_step`` runs in the training thread, ``take`` in the hook's."""

    def __init__(
        self,
        watch: Watch,
        operations: Callable[[], Operations],
        turn: Callable[[int, int, float], Marked | None] = lambda _step, _count, _duration_s: None,
    ) -> None:
        """Args: ``operations`` gives the collectives of this process so far; ``turn`` is ``Closely.turn``."""
        self._watch = watch
        self._turn = turn
        self._operations = operations
        self._leader: weakref.ref[Any] | None = None
        self._others: dict[int, int] = {}
        self._last: _Mark | None = None
        self._last_other: _Mark | None = None
        """last step of an optimizer that does not lead, since the leader's"""
        self._period: tuple[int, int] = (0, 0)
        """collectives and backward passes of the newest step"""
        self._period_seen = 0
        """how many steps in a row had them"""
        self._ended: deque[_Ended] = deque(maxlen=ROWS_MAX)
        self._by_batch = False
        self.step = 0
        """training steps finished"""

    def after_optimizer_step(self, optimizer: Any) -> None:
        """One optimizer finished ``step()``."""
        leads = self._leader is not None and self._leader() is optimizer
        mark, last = self._mark(), self._last
        before = last if leads else self._last_other or last
        if before is not None and _idle(before, mark):
            return
        count = self._steps_in(last, mark) if leads else self._take_over(optimizer)
        if not count:
            self._last_other = mark
            return
        self._others.clear()
        self._last_other = None
        self._by_batch = False
        self._finish(last, mark, count)

    def after_batch(self) -> None:
        """The training thread got a batch; counts only where no optimizer was ever seen."""
        if self._leader is not None or self._watch.batches < BATCHES_WITHOUT_OPTIMIZER:
            return
        if not self._by_batch:
            self._by_batch = True
            self.step = self._watch.batches - 1
        self._finish(self._last, self._mark(), 1)

    def take(self) -> dict[str, list[Any]] | None:
        """Columns of the steps finished since the last call, None when there are none."""
        rows: list[Row] = []
        now_ns = time.perf_counter_ns()
        while self._ended and self._ended[0].is_ready(now_ns):
            rows.append(_row(self._ended.popleft()))
        if not rows:
            return None
        columns = {name: list(column) for name, column in zip(COLUMNS, zip(*rows))}  # noqa: B905 - Python 3.9
        if all(late is None for late in columns["late_launch"]):
            del columns["late_launch"]
        return columns

    def _take_over(self, optimizer: Any) -> int:
        """Steps to count for another optimizer than the leader: 0 while that one may still come back."""
        count = 1
        if self._leader is not None and self._leader() is not None:
            count = self._others[id(optimizer)] = self._others.get(id(optimizer), 0) + 1
            if count < LEADER_LOST_AFTER:
                return 0
        self._leader = weakref.ref(optimizer)
        self._watch.steps_by_batch = False
        self._period_seen = 0
        return count

    def _mark(self) -> _Mark:
        watch, (made, seen) = self._watch, self._operations()
        return _Mark(
            time.perf_counter_ns(),
            made,
            watch.batches,
            watch.backwards,
            watch.loader.total_ns,
            watch.checkpoint.total_ns,
            watch.gc.total_ns,
            time.process_time(),
            watch.waiting.total_ns,
            None if seen is None else seen + watch.covered,
        )

    def _steps_in(self, last: _Mark | None, mark: _Mark) -> int:
        """1, or more where the gap is a whole multiple of a proven period: the scaler skipped the others.

        An evaluation is no multiple: it makes collectives, but no backward pass.
        """
        if last is None:
            return 1
        gap = (mark.sequence - last.sequence, mark.backwards - last.backwards)
        if gap == self._period:
            self._period_seen += 1
            return 1
        collectives, backwards = self._period
        if self._period_seen >= SAME_PERIOD and collectives > 0:
            count, rest = divmod(gap[0], collectives)
            if 1 < count <= SKIPPED_MAX and not rest and gap[1] == count * backwards:
                return count
        self._period, self._period_seen = gap, 1
        return 1

    def _finish(self, last: _Mark | None, mark: _Mark, count: int) -> None:
        self.step += count
        self._last = mark
        duration_s = 0.0 if last is None else (mark.at_ns - last.at_ns) / 1e9 / count
        marked = self._turn(self.step, count, duration_s)
        if last is not None:  # nobody saw the first step begin
            self._watch.has_unseen = _unseen(last, mark)
            self._ended.append(_Ended(self.step, time.time_ns(), count, last, mark, marked))


def _row(ended: _Ended) -> Row:
    """Means over the steps between two marks; worked out by the hook's thread.

    All by the host's clock; where marks on the GPU's stream were read, length, waiting, data and checkpoint
    are by the stream's.
    """
    step, end_ns, count, last, mark, marked = ended
    figures = marked.figures if marked is not None else None
    wait_s: float | None
    if figures is not None:
        duration_s, wait_s, loader_s, checkpoint_s, late = figures
    else:
        duration_s = (mark.at_ns - last.at_ns) / 1e9 / count
        loader_s = (mark.loader_ns - last.loader_ns) / 1e9 / count
        checkpoint_s = (mark.checkpoint_ns - last.checkpoint_ns) / 1e9 / count
        wait_s = None if marked is not None else _wait_s(last, mark, count)
        late = None
    gc_s, cpu_s = (mark.gc_ns - last.gc_ns) / 1e9 / count, (mark.cpu_s - last.cpu_s) / count
    return (step, end_ns, duration_s, loader_s, checkpoint_s, gc_s, cpu_s, wait_s, late)


def _wait_s(last: _Mark, mark: _Mark, count: int) -> float | None:
    """None where a call was made whose waiting nobody timed: a part of it would name the wrong rank."""
    return None if _unseen(last, mark) else (mark.waiting_ns - last.waiting_ns) / 1e9 / count


def _unseen(last: _Mark, mark: _Mark) -> bool:
    if last.seen is None or mark.seen is None:
        return True
    return mark.sequence - last.sequence > mark.seen - last.seen


def _idle(last: _Mark, mark: _Mark) -> bool:
    """Nothing that makes a step happened in between."""
    return (last.sequence, last.batches, last.backwards) == (mark.sequence, mark.batches, mark.backwards)
